//! Bytes across the border: Python buffers in, bytes and views out.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};
use roost_core::message::{Message, Part, copy_bytes};
use roost_core::region::View;

/// Received bytes in shared memory, as a writable buffer. The memory goes back to its sender when the last
/// object that uses it dies.
#[pyclass(frozen, module = "roost._core")]
pub struct Buffer(View);

#[pymethods]
impl Buffer {
    fn __len__(&self) -> usize {
        self.0.bytes().len()
    }

    /// A copy as bytes.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        bytes_of(py, self.0.bytes())
    }

    /// # Safety
    /// Called by CPython's buffer protocol with a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        let (pointer, len) = (this.0.pointer().as_ptr(), this.0.bytes().len());
        // SAFETY: the memory lives as long as the object, which the filled view keeps alive.
        let end = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                pointer.cast::<c_void>(),
                len as ffi::Py_ssize_t,
                0,
                flags,
            )
        };
        if end == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

/// From this size on, fresh memory is asked for in huge pages: the faults cost more than the copy.
const HUGE_BYTES: usize = 1 << 20;
const HUGE_PAGE: usize = 2 << 20;

/// A bytes object with a copy of `source`.
pub fn bytes_of<'py>(py: Python<'py>, source: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    if source.len() < HUGE_BYTES {
        return Ok(PyBytes::new(py, source));
    }
    let len =
        ffi::Py_ssize_t::try_from(source.len()).map_err(|_| PyMemoryError::new_err("payload too large"))?;
    // SAFETY: a new bytes object of that length, not shared with anybody until it is returned.
    let object = unsafe { ffi::PyBytes_FromStringAndSize(ptr::null::<c_char>(), len) };
    if object.is_null() {
        return Err(PyErr::fetch(py));
    }
    // SAFETY: `object` is a new reference to a bytes object.
    let object = unsafe { Bound::from_owned_ptr(py, object) };
    // SAFETY: as above; the address is that of its `len` bytes.
    let target = unsafe { ffi::PyBytes_AsString(object.as_ptr()) } as usize;
    py.detach(|| {
        let first = target.next_multiple_of(HUGE_PAGE);
        let last = (target + source.len()) / HUGE_PAGE * HUGE_PAGE;
        if last > first {
            let advice = rustix::mm::Advice::LinuxHugepage;
            // SAFETY: advice about whole pages inside the new object's bytes; contents stay as they are.
            let _ = unsafe { rustix::mm::madvise(first as *mut c_void, last - first, advice) };
        }
        // SAFETY: the new object's `len` bytes, which nobody else has seen.
        copy_bytes(unsafe { std::slice::from_raw_parts_mut(target as *mut u8, source.len()) }, source);
    });
    Ok(object.cast_into::<PyBytes>()?)
}

/// A bytes object with a copy of a buffer; large ones are filled through huge pages.
#[pyfunction]
pub fn to_bytes<'py>(py: Python<'py>, buffer: PyBuffer<u8>) -> PyResult<Bound<'py, PyBytes>> {
    if !buffer.is_c_contiguous() {
        return Err(PyValueError::new_err("the buffer is not contiguous"));
    }
    let len = buffer.len_bytes();
    if len == 0 {
        return Ok(PyBytes::new(py, b""));
    }
    // SAFETY: the exporter keeps the memory in place while `buffer` is held.
    bytes_of(py, unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), len) })
}

/// The parts of an outgoing message. Python's buffers stay locked while this lives.
pub struct Outgoing<'py> {
    first: Vec<Bound<'py, PyBytes>>,
    buffers: Vec<PyBuffer<u8>>,
}

impl<'py> Outgoing<'py> {
    /// The leading parts, then the buffers (each contiguous, of format `B`).
    pub fn new(first: Vec<Bound<'py, PyBytes>>, buffers: Option<Vec<Bound<'py, PyAny>>>) -> PyResult<Self> {
        let buffers = buffers.unwrap_or_default();
        let buffers: Vec<PyBuffer<u8>> = buffers.iter().map(PyBuffer::<u8>::get).collect::<PyResult<_>>()?;
        if buffers.iter().any(|buffer| !buffer.is_c_contiguous()) {
            return Err(PyValueError::new_err("a buffer of a message is not contiguous"));
        }
        Ok(Self { first, buffers })
    }

    /// All parts as slices.
    pub fn slices(&self) -> Vec<&[u8]> {
        let mut slices: Vec<&[u8]> = Vec::with_capacity(self.first.len() + self.buffers.len());
        slices.extend(self.first.iter().map(|bytes| bytes.as_bytes()));
        for buffer in &self.buffers {
            let len = buffer.len_bytes();
            slices.push(if len == 0 {
                &[]
            } else {
                // SAFETY: the exporter keeps the memory in place while the buffer is held; that nobody
                // writes to it during the send is the caller's contract, as for any other copy.
                unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), len) }
            });
        }
        slices
    }
}

/// The first part of a message, and the others.
pub type Unpacked = (Py<PyAny>, Option<Vec<Py<PyAny>>>);

/// Parts `from..` of a message as Python objects: the body as bytes; of the others, which may be written to,
/// small ones as byte arrays and big ones as views.
pub fn unpack(py: Python<'_>, message: &mut Message, from: usize) -> PyResult<Unpacked> {
    let mut parts = std::mem::take(&mut message.parts).into_iter().skip(from);
    let payload: &[u8] = &message.payload;
    let body = match parts.next() {
        Some(Part::Inline(range)) => bytes_of(py, payload.get(range).unwrap_or(&[]))?.into_any().unbind(),
        Some(Part::View(view)) => Py::new(py, Buffer(view))?.into_any(),
        None => PyBytes::new(py, b"").into_any().unbind(),
    };
    let convert = |part: Part| -> PyResult<Py<PyAny>> {
        Ok(match part {
            Part::Inline(range) => {
                PyByteArray::new(py, payload.get(range).unwrap_or(&[])).into_any().unbind()
            }
            Part::View(view) => Py::new(py, Buffer(view))?.into_any(),
        })
    };
    let buffers = parts.map(convert).collect::<PyResult<Vec<_>>>()?;
    Ok((body, if buffers.is_empty() { None } else { Some(buffers) }))
}
