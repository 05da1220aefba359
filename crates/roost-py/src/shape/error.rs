//! The Python exceptions of shape errors.

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use roost_core::shape::ShapeError;

/// Raises what the core refused.
pub fn raise(error: ShapeError) -> PyErr {
    let text = error.to_string();
    match error {
        ShapeError::UnknownDimension { .. } | ShapeError::MissingCoordinate { .. } => unknown_dimension(text),
        ShapeError::IndexOutOfRange { .. } | ShapeError::PositionOutOfRange { .. } => {
            PyIndexError::new_err(text)
        }
        _ => PyValueError::new_err(text),
    }
}

/// The exception is Python's, because it has several bases, which only Python can give it.
fn unknown_dimension(text: String) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    Python::attach(|py| match CLASS.import(py, "roost._shape", "UnknownDimensionError") {
        Ok(class) => PyErr::from_type(class.clone(), (text,)),
        Err(error) => error,
    })
}
