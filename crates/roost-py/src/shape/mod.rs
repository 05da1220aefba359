//! Shapes as Python sees them: thin classes around `roost_core::shape`, immutable and hashable.
//! Pickles name the classes by their public home, `roost.actor`.

use pyo3::prelude::*;

mod argument;
mod error;
mod extent;
mod point;
mod region;
mod slice;

pub use extent::PyExtent;
pub use point::PyPoint;
pub use region::PyRegion;
pub use slice::PySlice;

/// Adds the shape classes to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyExtent>()?;
    module.add_class::<PyPoint>()?;
    module.add_class::<PyRegion>()?;
    module.add_class::<PySlice>()
}
