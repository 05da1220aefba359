//! `Region`, which is also `Shape`: named dimensions over a strided set of ranks.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use roost_core::shape::{Extent, Pick, Region, Result, Slice};

use super::argument::{Int, Items, groups, index, keywords, pick, split};
use super::error::raise;
use super::{PyExtent, PyPoint, PySlice};

/// Ranks of a base mesh under named dimensions: what a view of a mesh holds.
#[pyclass(name = "Region", module = "roost.actor", frozen, eq, hash)]
#[derive(PartialEq, Eq, Hash)]
pub struct PyRegion(pub Region);

impl PyRegion {
    fn made(region: Result<Region>) -> PyResult<Self> {
        region.map(Self).map_err(raise)
    }
}

#[pymethods]
impl PyRegion {
    #[new]
    fn new(labels: Items<String>, slice: &Bound<'_, PySlice>) -> PyResult<Self> {
        Self::made(Region::new(labels.0, slice.get().0.clone()))
    }

    /// The region of one rank and no dimensions.
    #[staticmethod]
    fn unity() -> PyResult<Self> {
        Self::made(Slice::row_major([]).and_then(|slice| Region::new([], slice)))
    }

    /// The names of the dimensions, outermost first.
    #[getter]
    fn labels(&self) -> Vec<String> {
        self.0.labels().to_vec()
    }

    /// The base ranks without names.
    #[getter]
    fn ndslice(&self) -> PySlice {
        PySlice(self.0.slice().clone())
    }

    /// The base ranks without names.
    fn slice(&self) -> PySlice {
        self.ndslice()
    }

    /// The dimensions without the base ranks.
    #[getter]
    fn extent(&self) -> PyResult<PyExtent> {
        self.0.extent().map(PyExtent).map_err(raise)
    }

    /// This region, by its other name.
    #[getter]
    fn region(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// This region, by its other name.
    fn as_shape(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// The base ranks in row-major order.
    fn ranks(&self) -> Vec<usize> {
        self.0.slice().ranks().collect()
    }

    /// The index along each dimension of a base rank.
    fn coordinates<'py>(&self, py: Python<'py>, rank: Int) -> PyResult<Bound<'py, PyDict>> {
        let coordinates = PyDict::new(py);
        let indices = self.0.coordinates(rank.0).map_err(raise)?;
        for (label, index) in self.0.labels().iter().zip(indices) {
            coordinates.set_item(label, index)?;
        }
        Ok(coordinates)
    }

    /// The point of this region's extent at which a base rank stands.
    fn point_of_base_rank(&self, py: Python<'_>, rank: Int) -> PyResult<PyPoint> {
        let position = self.0.position(rank.0).map_err(raise)?;
        let extent: Extent = self.0.extent().map_err(raise)?;
        PyPoint::new(Int(i64::try_from(position)?), Py::new(py, PyExtent(extent))?)
    }

    /// The part at one index of a dimension, which goes away.
    fn at(&self, label: String, index: Int) -> PyResult<Self> {
        Self::made(self.0.pick(&[(label, Pick::At(index.0))]))
    }

    /// The part in a range of a dimension, which stays.
    fn select(&self, label: String, slice: &Bound<'_, pyo3::types::PySlice>) -> PyResult<Self> {
        Self::made(self.0.pick(&[(label, pick(slice)?)]))
    }

    /// The part at one index of each named dimension; these go away.
    #[pyo3(signature = (**dims))]
    fn index(&self, dims: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let picks = keywords(dims, |value| index(value).map(Pick::At))?;
        Self::made(self.0.pick(&picks))
    }

    /// The part at an index or in a range of each named dimension.
    #[pyo3(signature = (**dims))]
    fn cut(&self, dims: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        Self::made(self.0.pick(&keywords(dims, pick)?))
    }

    /// The same ranks under one dimension.
    fn flatten(&self, name: &str) -> PyResult<Self> {
        Self::made(self.0.flatten(name))
    }

    /// The same ranks with dimensions called otherwise.
    #[pyo3(signature = (**names))]
    fn rename(&self, names: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        Self::made(self.0.rename(&keywords(names, |name| name.extract())?))
    }

    /// The same ranks with dimensions replaced by several each.
    #[pyo3(signature = (**parts))]
    fn split(&self, parts: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let (groups, sizes) = groups(keywords(parts, split)?);
        Self::made(self.0.split(&groups, &sizes))
    }

    fn __len__(&self) -> usize {
        self.0.slice().count()
    }

    fn __repr__(&self) -> String {
        self.0.to_string()
    }

    fn __getnewargs__(&self) -> (Vec<String>, PySlice) {
        (self.labels(), self.ndslice())
    }
}
