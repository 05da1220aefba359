//! Shapes as Python sees them.

use pyo3::prelude::*;

/// Adds the shape classes to the module.
pub fn register(_module: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
