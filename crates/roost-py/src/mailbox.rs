//! Mailboxes, requests, calls and bells as Python sees them.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use roost_core::mailbox as core;
use roost_core::message::Message;
use roost_core::route;
use roost_core::wire::{Kind, Status};

use crate::parts::{Outgoing, unpack};

/// The wait ended because what was waited for is there.
pub const READY: u8 = 0;
/// The wait ended because its time is over.
pub const TIMED_OUT: u8 = 1;
/// The wait ended because an urgent message waits in the mailbox.
pub const URGENT: u8 = 2;

/// A deadline `timeout` seconds from now; none means never.
pub fn deadline(timeout: Option<f64>) -> PyResult<Option<Instant>> {
    let Some(seconds) = timeout else { return Ok(None) };
    let duration = Duration::try_from_secs_f64(seconds)
        .map_err(|error| PyValueError::new_err(format!("invalid timeout {seconds}: {error}")))?;
    Ok(Instant::now().checked_add(duration))
}

/// Waits with the GIL released; signals are looked at as they come.
pub fn wait(
    py: Python<'_>,
    node: &route::Node,
    deadline: Option<Instant>,
    lead: bool,
    mut ready: impl FnMut() -> bool + Send,
) -> PyResult<bool> {
    loop {
        match py.detach(|| node.wait_until(deadline, lead, &mut ready)) {
            route::WaitEnd::Ready => return Ok(true),
            route::WaitEnd::TimedOut => return Ok(false),
            route::WaitEnd::Signal => py.check_signals()?,
        }
    }
}

/// Wakes one foreign event loop.
#[pyclass(frozen, module = "roost._core")]
pub struct Bell(pub Arc<core::Bell>);

#[pymethods]
impl Bell {
    #[new]
    fn new() -> PyResult<Self> {
        Ok(Self(Arc::new(core::Bell::new().map_err(std::io::Error::from)?)))
    }

    fn fileno(&self) -> i32 {
        self.0.fd().as_raw_fd()
    }

    /// Adds a token and wakes the loop.
    fn ring(&self, token: u64) {
        self.0.ring(token);
    }

    /// All tokens that have rung since the last time.
    fn answer(&self) -> Vec<u64> {
        self.0.answer()
    }
}

/// A request that has to be answered once.
#[pyclass(frozen, module = "roost._core")]
pub struct Request {
    node: Arc<route::Node>,
    mailbox: Arc<core::Mailbox>,
    request: core::Request,
}

#[pymethods]
impl Request {
    /// Answers; later answers to the same request are dropped.
    #[pyo3(signature = (status, body, buffers=None))]
    fn reply<'py>(
        &self,
        py: Python<'py>,
        status: u8,
        body: Bound<'py, PyBytes>,
        buffers: Option<Vec<Bound<'py, PyAny>>>,
    ) -> PyResult<()> {
        let status = Status::from_byte(status).ok_or_else(|| PyValueError::new_err("status"))?;
        let parts = Outgoing::new(vec![body], buffers)?;
        let slices = parts.slices();
        let send = || self.node.reply(&self.mailbox, &self.request, status, &slices);
        if is_big(&slices) {
            py.detach(send)
        } else {
            send()
        }
        Ok(())
    }

    /// Whether the caller no longer wants the answer.
    #[getter]
    fn is_cancelled(&self) -> bool {
        !self.mailbox.is_open(&self.request)
    }

    /// Identifies the call: the caller's process, and the number of the call there.
    #[getter]
    fn key(&self) -> (u64, u32, u64, u32) {
        let request = &self.request;
        (request.caller.mesh, request.caller.rank, request.call, request.index)
    }
}

/// Copies of this size are made with the GIL released.
pub fn is_big(slices: &[&[u8]]) -> bool {
    slices.iter().map(|slice| slice.len()).sum::<usize>() > (256 << 10)
}

/// The queue of one actor or port.
#[pyclass(frozen, module = "roost._core")]
pub struct Mailbox {
    pub node: Arc<route::Node>,
    pub inner: Arc<core::Mailbox>,
}

#[pymethods]
impl Mailbox {
    #[getter]
    fn id(&self) -> u64 {
        self.inner.id
    }

    #[getter]
    fn depth(&self) -> usize {
        self.inner.depth()
    }

    #[getter]
    fn is_closed(&self) -> bool {
        self.inner.is_closed()
    }

    #[getter]
    fn has_urgent(&self) -> bool {
        self.inner.has_urgent()
    }

    /// The calling thread reads from now on.
    fn read_by_thread(&self) {
        self.inner.read_by_thread();
    }

    /// The loop behind the bell reads from now on.
    fn read_by_loop(&self, bell: &Bell, token: u64) {
        self.inner.read_by_loop(Arc::clone(&bell.0), token);
    }

    /// Waits for messages and takes up to `most`: `(kind, meta, body, buffers, request, source)` each,
    /// urgent ones first. An empty list means that the time is over or the mailbox is closed.
    #[pyo3(signature = (most, timeout=None, lead=true))]
    fn take<'py>(
        &self,
        py: Python<'py>,
        most: usize,
        timeout: Option<f64>,
        lead: bool,
    ) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        if timeout != Some(0.0) && !self.inner.is_ready() {
            wait(py, &self.node, deadline(timeout)?, lead, || self.inner.is_ready())?;
        }
        self.convert(py, self.inner.take(most, false))
    }

    /// Takes the urgent messages that are there.
    fn take_urgent<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        self.convert(py, self.inner.take(0, true))
    }

    /// Takes nothing more; callers get `status` and `reason`.
    fn close(&self, py: Python<'_>, status: u8, reason: &[u8]) -> PyResult<()> {
        let status = Status::from_byte(status).ok_or_else(|| PyValueError::new_err("status"))?;
        let closed = core::Closed { status, reason: reason.into() };
        py.detach(|| self.node.close_box(&self.inner, &closed));
        Ok(())
    }
}

impl Mailbox {
    fn convert<'py>(&self, py: Python<'py>, messages: Vec<Message>) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        messages.into_iter().map(|message| self.tuple(py, message)).collect()
    }

    fn tuple<'py>(&self, py: Python<'py>, mut message: Message) -> PyResult<Bound<'py, PyTuple>> {
        let header = message.header;
        let meta = PyBytes::new(py, message.part(0));
        let (body, buffers) = unpack(py, &mut message, 1)?;
        let request = match header.kind {
            Kind::Call => Some(Request {
                node: Arc::clone(&self.node),
                mailbox: Arc::clone(&self.inner),
                request: core::Request { caller: header.src, call: header.call, index: header.index },
            }),
            _ => None,
        };
        let source =
            (header.src.mesh, header.src.rank, header.src_box, header.index, header.trace, header.arg);
        (header.kind as u8, meta, body, buffers, request, source).into_pyobject(py)
    }
}

/// A mailbox name on a list of processes.
#[pyclass(frozen, module = "roost._core")]
pub struct Target(pub Arc<route::Target>);

#[pymethods]
impl Target {
    fn __len__(&self) -> usize {
        self.0.procs.len()
    }

    /// Calls to these ranks that wait for an answer.
    #[getter]
    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }
}

/// A call under way.
#[pyclass(frozen, module = "roost._core")]
pub struct Call {
    pub node: Arc<route::Node>,
    pub inner: Arc<core::Call>,
}

#[pymethods]
impl Call {
    /// Waits for `need` answers: READY, TIMED_OUT, or URGENT when `mailbox` has an urgent message.
    #[pyo3(signature = (need, timeout=None, mailbox=None, lead=true))]
    fn wait(
        &self,
        py: Python<'_>,
        need: usize,
        timeout: Option<f64>,
        mailbox: Option<&Mailbox>,
        lead: bool,
    ) -> PyResult<u8> {
        if self.inner.is_ready(need) {
            return Ok(READY);
        }
        let urgent = || mailbox.is_some_and(|mailbox| mailbox.inner.has_urgent());
        let deadline = deadline(timeout)?;
        self.inner.wake_thread(need);
        let ready = || self.inner.is_ready(need) || urgent();
        if !wait(py, &self.node, deadline, lead, ready)? {
            return Ok(TIMED_OUT);
        }
        Ok(if self.inner.is_ready(need) { READY } else { URGENT })
    }

    fn is_ready(&self, need: usize) -> bool {
        self.inner.is_ready(need)
    }

    /// Rings `token` when `need` answers are there.
    fn ring(&self, need: usize, bell: &Bell, token: u64) {
        self.inner.wake_loop(need, Arc::clone(&bell.0), token);
    }

    /// Answers `start..stop` in order of arrival, each once: `(rank, status, body, buffers)`.
    fn take<'py>(&self, py: Python<'py>, start: usize, stop: usize) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        self.inner
            .take(start..stop)
            .into_iter()
            .map(|mut answer| {
                let (body, buffers) = unpack(py, &mut answer.message, 0)?;
                (answer.index, answer.status as u8, body, buffers).into_pyobject(py)
            })
            .collect()
    }

    /// Whether an answer that has come is an error.
    #[getter]
    fn has_failed(&self) -> bool {
        self.inner.has_failed()
    }

    /// Ranks that have not answered.
    fn missing(&self) -> Vec<u32> {
        self.inner.missing()
    }

    /// No answer is wanted any more: what still queues is not begun.
    fn cancel(&self, py: Python<'_>) {
        py.detach(|| {
            self.node.cancel(&self.inner);
            self.inner.finish();
        });
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.node.forget_call(&self.inner);
    }
}
