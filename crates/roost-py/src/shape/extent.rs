//! `Extent`: dimensions and their sizes.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyList};
use roost_core::shape::{Extent, Region};

use super::argument::{Int, Items, index, keywords};
use super::error::raise;
use super::{PyPoint, PyRegion};

/// Ordered mapping from the names of dimensions to their sizes.
#[pyclass(name = "Extent", module = "roost.actor", frozen, eq, hash, mapping)]
#[derive(PartialEq, Eq, Hash)]
pub struct PyExtent(pub Extent);

impl PyExtent {
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let sizes = PyDict::new(py);
        for (label, size) in self.0.labels().iter().zip(self.0.sizes()) {
            sizes.set_item(label, size)?;
        }
        Ok(sizes)
    }
}

#[pymethods]
impl PyExtent {
    #[new]
    fn new(labels: Items<String>, sizes: Items<super::argument::Count>) -> PyResult<Self> {
        Extent::new(labels.0, sizes.counts()).map(Self).map_err(raise)
    }

    /// The names of the dimensions, outermost first.
    #[getter]
    fn labels(&self) -> Vec<String> {
        self.0.labels().to_vec()
    }

    /// The sizes of the dimensions, outermost first.
    #[getter]
    fn sizes(&self) -> Vec<usize> {
        self.0.sizes().to_vec()
    }

    /// The number of ranks: the product of the sizes.
    #[getter]
    fn nelements(&self) -> usize {
        self.0.count()
    }

    /// All ranks, as a region of themselves.
    #[getter]
    fn region(&self) -> PyResult<PyRegion> {
        Region::whole(&self.0).map(PyRegion).map_err(raise)
    }

    /// The point of a row-major rank.
    fn point(slf: Py<Self>, rank: Int) -> PyResult<PyPoint> {
        PyPoint::new(rank, slf)
    }

    /// The row-major rank of an index along every dimension.
    #[pyo3(signature = (**coordinates))]
    fn rank(&self, coordinates: Option<&Bound<'_, PyDict>>) -> PyResult<usize> {
        self.0.rank(&keywords(coordinates, index)?).map_err(raise)
    }

    /// The size of a dimension, or the default where there is no such dimension.
    #[pyo3(signature = (label, default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        label: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.to_dict(py)?.get_item(label).map(|size| size.or(default))
    }

    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.to_dict(py)?.call_method0("keys")
    }

    fn values<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.to_dict(py)?.call_method0("values")
    }

    fn items<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.to_dict(py)?.call_method0("items")
    }

    fn __getitem__(&self, label: &str) -> PyResult<usize> {
        self.0.size(label).map_err(raise)
    }

    fn __contains__(&self, label: &Bound<'_, PyAny>) -> bool {
        label.extract::<&str>().is_ok_and(|label| self.0.position(label).is_some())
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        PyList::new(py, self.0.labels())?.try_iter()
    }

    fn __len__(&self) -> usize {
        self.0.labels().len()
    }

    fn __repr__(&self) -> String {
        self.0.to_string()
    }

    fn __getnewargs__(&self) -> (Vec<String>, Vec<usize>) {
        (self.labels(), self.sizes())
    }
}
