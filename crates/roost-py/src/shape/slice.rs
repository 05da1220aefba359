//! `Slice`: a strided set of ranks.

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use roost_core::shape::{ShapeError, Slice};

use super::argument::{Count, Int, Items};
use super::error::raise;

/// Ranks at an offset plus a multiple of a stride for each dimension, in row-major order.
#[pyclass(name = "Slice", module = "roost.actor", frozen, eq, hash)]
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PySlice(pub Slice);

impl PySlice {
    fn missing(&self, rank: i64) -> PyErr {
        raise(ShapeError::NotInSlice { rank, slice: self.0.to_string() })
    }

    fn item(&self, position: i64) -> PyResult<usize> {
        usize::try_from(position)
            .ok()
            .and_then(|position| self.0.get(position))
            .ok_or_else(|| raise(ShapeError::PositionOutOfRange { index: position, size: self.0.count() }))
    }
}

#[pymethods]
impl PySlice {
    #[new]
    #[pyo3(signature = (*, offset, sizes, strides))]
    fn new(offset: Count, sizes: Items<Count>, strides: Items<Count>) -> PyResult<Self> {
        Slice::new(offset.0, sizes.counts(), strides.counts()).map(Self).map_err(raise)
    }

    /// All ranks of a dense array of these sizes.
    #[staticmethod]
    fn new_row_major(sizes: Items<Count>) -> PyResult<Self> {
        Slice::row_major(sizes.counts()).map(Self).map_err(raise)
    }

    /// One-dimensional slices that together hold exactly these ranks, ascending.
    #[staticmethod]
    fn from_list(ranks: Items<Count>) -> Vec<Self> {
        Slice::cover(ranks.counts()).into_iter().map(Self).collect()
    }

    /// The number of dimensions.
    #[getter]
    fn ndim(&self) -> usize {
        self.0.sizes().len()
    }

    /// The first rank.
    #[getter]
    fn offset(&self) -> usize {
        self.0.offset()
    }

    /// The number of indices of each dimension.
    #[getter]
    fn sizes(&self) -> Vec<usize> {
        self.0.sizes().to_vec()
    }

    /// The distance between neighbours along each dimension.
    #[getter]
    fn strides(&self) -> Vec<usize> {
        self.0.strides().to_vec()
    }

    /// The rank at a row-major position.
    fn get(&self, index: Int) -> PyResult<usize> {
        self.item(index.0)
    }

    /// The row-major position of a rank; undoes `get`.
    fn index(&self, value: Int) -> PyResult<usize> {
        usize::try_from(value.0)
            .ok()
            .and_then(|rank| self.0.position(rank))
            .ok_or_else(|| self.missing(value.0))
    }

    /// The index along each dimension of a rank.
    fn coordinates(&self, value: Int) -> PyResult<Vec<usize>> {
        usize::try_from(value.0)
            .ok()
            .and_then(|rank| self.0.coordinates(rank))
            .ok_or_else(|| self.missing(value.0))
    }

    /// The rank at an index along each dimension; undoes `coordinates`.
    fn nditem(&self, coordinates: Items<Int>) -> PyResult<usize> {
        let indices: Vec<i64> = coordinates.0.into_iter().map(|Int(index)| index).collect();
        self.0.at(&indices).map_err(raise)
    }

    fn __getitem__<'py>(&self, py: Python<'py>, i: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let size =
            isize::try_from(self.0.count()).map_err(|_| PyIndexError::new_err("too many ranks to index"))?;
        if let Ok(range) = i.cast::<pyo3::types::PySlice>() {
            let range = range.indices(size)?;
            let positions = (0..range.slicelength).map(|n| range.start + n as isize * range.step);
            let ranks: Vec<usize> =
                positions.map(|position| self.item(position as i64)).collect::<PyResult<_>>()?;
            return PyTuple::new(py, ranks).map(Bound::into_any);
        }
        let Int(index) = i.extract()?;
        let wrapped = if index < 0 { index.saturating_add(size as i64) } else { index };
        self.item(wrapped)?.into_bound_py_any(py)
    }

    fn __contains__(&self, value: &Bound<'_, PyAny>) -> bool {
        value.extract::<usize>().is_ok_and(|rank| self.0.position(rank).is_some())
    }

    fn __iter__(slf: Py<Self>) -> RankIterator {
        RankIterator { slice: slf, next: 0 }
    }

    fn __len__(&self) -> usize {
        self.0.count()
    }

    fn __repr__(&self) -> String {
        self.0.to_string()
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        let parts = PyDict::new(py);
        parts.set_item("offset", self.offset())?;
        parts.set_item("sizes", self.sizes())?;
        parts.set_item("strides", self.strides())?;
        Ok((PyTuple::empty(py), parts))
    }
}

/// The iterator of a `Slice`. Not exported.
#[pyclass(module = "roost._core")]
struct RankIterator {
    slice: Py<PySlice>,
    next: usize,
}

#[pymethods]
impl RankIterator {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&mut self) -> Option<usize> {
        let rank = self.slice.get().0.get(self.next)?;
        self.next += 1;
        Some(rank)
    }
}
