//! The extension module `roost._core`.

use pyo3::prelude::*;

mod shape;

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    shape::register(module)?;
    Ok(())
}
