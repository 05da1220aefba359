//! What Python passes to shapes, as the core takes it.

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PySlice, PyString};
use roost_core::shape::{Group, Pick, Steps};

/// Any Python integer. Those beyond 64 bits become the nearest one within, which every shape refuses
/// as out of range or, as the bound of a range, cuts off.
pub struct Int(pub i64);

impl FromPyObject<'_, '_> for Int {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        match object.extract::<i64>() {
            Ok(value) => Ok(Self(value)),
            Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => {
                Ok(Self(if object.lt(0)? { i64::MIN } else { i64::MAX }))
            }
            Err(error) => Err(error),
        }
    }
}

/// A size, offset, stride or rank: an integer of zero or more.
pub struct Count(pub usize);

impl FromPyObject<'_, '_> for Count {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let Int(value) = object.extract()?;
        let count = usize::try_from(value)
            .map_err(|_| PyValueError::new_err(format!("expected 0 or more, got {value}")))?;
        Ok(Self(count))
    }
}

/// The items of any iterable but a string.
pub struct Items<T>(pub Vec<T>);

impl<'py, T> FromPyObject<'_, 'py> for Items<T>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.is_instance_of::<PyString>() {
            return Err(PyTypeError::new_err(format!(
                "expected several items, got the string {}",
                object.repr()?
            )));
        }
        object.try_iter()?.map(|item| item?.extract()).collect::<PyResult<_>>().map(Self)
    }
}

impl Items<Count> {
    /// The plain numbers.
    pub fn counts(self) -> Vec<usize> {
        self.0.into_iter().map(|Count(count)| count).collect()
    }
}

/// Keyword arguments by name, each read by `read`; an error says which argument it is about.
pub fn keywords<'py, T>(
    arguments: Option<&Bound<'py, PyDict>>,
    read: impl Fn(&Bound<'py, PyAny>) -> PyResult<T>,
) -> PyResult<Vec<(String, T)>> {
    let Some(arguments) = arguments else {
        return Ok(Vec::new());
    };
    arguments
        .iter()
        .map(|(name, value)| {
            let name: String = name.extract()?;
            match read(&value) {
                Ok(value) => Ok((name, value)),
                Err(error) if error.is_instance_of::<PyTypeError>(value.py()) => {
                    Err(PyTypeError::new_err(format!("{name}: {}", error.value(value.py()))))
                }
                Err(error) => Err(error),
            }
        })
        .collect()
}

/// An index.
pub fn index(value: &Bound<'_, PyAny>) -> PyResult<i64> {
    value.extract().map(|Int(index)| index)
}

/// An index or a range.
pub fn pick(value: &Bound<'_, PyAny>) -> PyResult<Pick> {
    let Ok(range) = value.cast::<PySlice>() else {
        return index(value).map(Pick::At);
    };
    let part = |name| {
        let part: Option<Int> = range.getattr(name)?.extract()?;
        PyResult::Ok(part.map(|Int(part)| part))
    };
    Ok(Pick::Range(Steps { start: part("start")?, stop: part("stop")?, step: part("step")? }))
}

/// An argument of a split: the parts of a dimension, or the size of a part.
pub enum Split {
    /// Names of new dimensions.
    Parts(Vec<String>),
    /// The size of one.
    Size(usize),
}

/// Reads an argument of a split.
pub fn split(value: &Bound<'_, PyAny>) -> PyResult<Split> {
    if value.hasattr("__index__")? {
        let Count(size) = value.extract()?;
        return Ok(Split::Size(size));
    }
    let Items(parts) = value.extract()?;
    Ok(Split::Parts(parts))
}

/// Sorts the arguments of a split into what is split and the sizes of the parts.
pub fn groups(arguments: Vec<(String, Split)>) -> (Vec<Group>, Vec<(String, usize)>) {
    let (mut groups, mut sizes) = (Vec::new(), Vec::new());
    for (label, argument) in arguments {
        match argument {
            Split::Parts(parts) => groups.push(Group { label, parts }),
            Split::Size(size) => sizes.push((label, size)),
        }
    }
    (groups, sizes)
}
