//! `Point`: one rank of an extent.

use std::hash::{DefaultHasher, Hash, Hasher};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyList};

use super::PyExtent;
use super::argument::Int;
use super::error::raise;

/// Mapping from the dimensions of an extent to the indices of one of its ranks.
///
/// A rank and a reference, because one is made for every message; indices are computed when asked
/// for.
#[pyclass(name = "Point", module = "roost.actor", frozen, mapping)]
pub struct PyPoint {
    extent: Py<PyExtent>,
    rank: usize,
}

impl PyPoint {
    fn indices<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let extent = &self.extent.get().0;
        let indices = PyDict::new(py);
        for (dim, label) in extent.labels().iter().enumerate() {
            indices.set_item(label, extent.coordinate(self.rank, dim))?;
        }
        Ok(indices)
    }
}

#[pymethods]
impl PyPoint {
    #[new]
    pub fn new(rank: Int, extent: Py<PyExtent>) -> PyResult<Self> {
        let rank = extent.get().0.check_rank(rank.0).map_err(raise)?;
        Ok(Self { extent, rank })
    }

    /// The row-major rank in the extent.
    #[getter]
    fn rank(&self) -> usize {
        self.rank
    }

    /// The dimensions and their sizes.
    #[getter]
    fn extent(&self, py: Python<'_>) -> Py<PyExtent> {
        self.extent.clone_ref(py)
    }

    /// The size of a dimension.
    fn size(&self, label: &str) -> PyResult<usize> {
        self.extent.get().0.size(label).map_err(raise)
    }

    /// The index along a dimension, or the default where there is no such dimension.
    #[pyo3(signature = (label, default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        label: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.indices(py)?.get_item(label).map(|index| index.or(default))
    }

    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.indices(py)?.call_method0("keys")
    }

    fn values<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.indices(py)?.call_method0("values")
    }

    fn items<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.indices(py)?.call_method0("items")
    }

    fn __getitem__(&self, label: &str) -> PyResult<usize> {
        self.extent.get().0.index_at(self.rank, label).map_err(raise)
    }

    fn __contains__(&self, label: &Bound<'_, PyAny>) -> bool {
        let extent = &self.extent.get().0;
        label.extract::<&str>().is_ok_and(|label| extent.position(label).is_some())
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        PyList::new(py, self.extent.get().0.labels())?.try_iter()
    }

    fn __len__(&self) -> usize {
        self.extent.get().0.labels().len()
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.rank == other.rank && (self.extent.is(&other.extent) || self.extent.get() == other.extent.get())
    }

    /// Of the rank and the sizes alone: labels rarely tell points apart, and cost the most.
    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.rank, self.extent.get().0.sizes()).hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self) -> String {
        let extent = &self.extent.get().0;
        let labels = extent.labels().iter().zip(extent.sizes()).enumerate();
        let indices: Vec<String> = labels
            .map(|(dim, (label, size))| format!("'{label}': {}/{size}", extent.coordinate(self.rank, dim)))
            .collect();
        format!("{{{}}}", indices.join(", "))
    }

    fn __getnewargs__(&self, py: Python<'_>) -> (usize, Py<PyExtent>) {
        (self.rank, self.extent(py))
    }
}
