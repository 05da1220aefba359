//! The node as Python sees it.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use roost_core::id::ProcId;
use roost_core::link::address::AddressError;
use roost_core::link::session::Pulse;
use roost_core::link::tls;
use roost_core::mailbox::Mode;
use roost_core::route;
use roost_core::wire::Header;

use crate::mailbox::{Bell, Call, Mailbox, Target, deadline, is_big, wait};
use crate::parts::Outgoing;

/// This process among the others.
#[pyclass(frozen, module = "roost._core")]
pub struct Node(Arc<route::Node>);

/// How long a sender waits for a peer that does not take its messages.
const PATIENCE: Duration = Duration::from_secs(10);

fn proc(id: (u64, u32)) -> ProcId {
    ProcId { mesh: id.0, rank: id.1 }
}

/// Takes over a descriptor that Python has detached from its object.
fn own(fd: i32) -> PyResult<OwnedFd> {
    if fd < 0 {
        return Err(PyValueError::new_err("not a descriptor"));
    }
    // SAFETY: the caller hands the descriptor over (`socket.detach()`), nobody else closes it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn seconds(value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value).map_err(|error| PyValueError::new_err(format!("{value}: {error}")))
}

fn host_error(error: route::HostsError) -> PyErr {
    match error {
        route::HostsError::Address(AddressError::Io(number)) => std::io::Error::from(number).into(),
        other => PyValueError::new_err(other.to_string()),
    }
}

/// A new cluster key, as text.
#[pyfunction]
pub fn generate_key() -> PyResult<String> {
    tls::generate_key().map_err(|error| PyValueError::new_err(error.to_string()))
}

#[pymethods]
impl Node {
    /// A node named `me`; `agent` is the process that makes links, none in the agent itself.
    #[new]
    #[pyo3(signature = (me, agent, pool_limit_bytes))]
    fn new(me: (u64, u32), agent: Option<(u64, u32)>, pool_limit_bytes: usize) -> PyResult<Self> {
        let node =
            route::Node::new(proc(me), agent.map(proc), pool_limit_bytes).map_err(std::io::Error::from)?;
        Ok(Self(node))
    }

    /// Starts the thread that polls while all others are busy.
    fn start_backup(&self) -> PyResult<()> {
        let node = Arc::clone(&self.0);
        std::thread::Builder::new()
            .name("roost-backup".into())
            .stack_size(256 << 10)
            .spawn(move || node.run_backup())?;
        Ok(())
    }

    /// Takes a connected socket over as the link with `peer`.
    fn adopt(&self, py: Python<'_>, peer: (u64, u32), fd: i32) -> PyResult<()> {
        let fd = own(fd)?;
        py.detach(|| self.0.adopt(proc(peer), fd)).map_err(std::io::Error::from)?;
        Ok(())
    }

    /// Mailbox `box_id` on each of `procs`.
    fn target(&self, box_id: u64, procs: Vec<(u64, u32)>) -> Target {
        Target(self.0.target(box_id, procs.into_iter().map(proc).collect()))
    }

    /// Opens (or finds) a mailbox.
    fn open_box(&self, id: u64) -> Mailbox {
        Mailbox { node: Arc::clone(&self.0), inner: self.0.open_box(id) }
    }

    /// Opens a mailbox under a new name.
    fn open_fresh_box(&self) -> Mailbox {
        Mailbox { node: Arc::clone(&self.0), inner: self.0.open_fresh_box() }
    }

    /// Sends to all ranks of the target; false when one is known to be gone.
    #[pyo3(signature = (target, meta, body, buffers=None, flags=0, arg=0, src_box=0, trace=0))]
    #[expect(clippy::too_many_arguments, reason = "one crossing a message")]
    fn cast<'py>(
        &self,
        py: Python<'py>,
        target: &Target,
        meta: Bound<'py, PyBytes>,
        body: Bound<'py, PyBytes>,
        buffers: Option<Vec<Bound<'py, PyAny>>>,
        flags: u8,
        arg: u64,
        src_box: u64,
        trace: u64,
    ) -> PyResult<bool> {
        let parts = Outgoing::new(vec![meta, body], buffers)?;
        let slices = parts.slices();
        let header = Header { flags, arg, src_box, trace, ..Header::default() };
        let send = || self.0.cast(&target.0, header, &slices);
        let reached = if is_big(&slices) { py.detach(send) } else { send() };
        self.relieve(py, target)?;
        Ok(reached)
    }

    /// Calls all ranks of the target.
    #[pyo3(signature = (target, meta, body, buffers=None, flags=0, arg=0, src_box=0, trace=0, stream=false))]
    #[expect(clippy::too_many_arguments, reason = "one crossing a message")]
    fn call<'py>(
        &self,
        py: Python<'py>,
        target: &Target,
        meta: Bound<'py, PyBytes>,
        body: Bound<'py, PyBytes>,
        buffers: Option<Vec<Bound<'py, PyAny>>>,
        flags: u8,
        arg: u64,
        src_box: u64,
        trace: u64,
        stream: bool,
    ) -> PyResult<Call> {
        let parts = Outgoing::new(vec![meta, body], buffers)?;
        let slices = parts.slices();
        let header = Header { flags, arg, src_box, trace, ..Header::default() };
        let mode = if stream { Mode::Stream } else { Mode::Whole };
        let send = || self.0.call(&target.0, header, &slices, mode);
        let inner = if is_big(&slices) { py.detach(send) } else { send() };
        self.relieve(py, target)?;
        Ok(Call { node: Arc::clone(&self.0), inner })
    }

    /// The descriptor that becomes readable when `poll` has something to do.
    fn fileno(&self) -> i32 {
        self.0.poller().fd().as_raw_fd()
    }

    /// Handles what is there without waiting.
    fn poll(&self, py: Python<'_>) {
        py.detach(|| self.0.poll_now());
    }

    /// The calling thread's event loop waits in `wait_loop` from now on; `epoll` is a duplicate of its own.
    fn attach_loop(&self, bell: &Bell, epoll: i32) -> PyResult<u64> {
        Ok(self.0.attach_loop(&bell.0, own(epoll)?).map_err(std::io::Error::from)?)
    }

    /// The loop is closed.
    fn detach_loop(&self, key: u64) {
        self.0.detach_loop(key);
    }

    /// Waits until the loop has something to look at: bit 0, tokens; bit 1, its own descriptors.
    #[pyo3(signature = (bell, timeout=None))]
    fn wait_loop(&self, py: Python<'_>, bell: &Bell, timeout: Option<f64>) -> PyResult<u8> {
        if !bell.0.is_due() && timeout != Some(0.0) {
            wait(py, &self.0, deadline(timeout)?, true, || bell.0.is_due())?;
        }
        let due = bell.0.take_due();
        Ok(u8::from(due.rung) | u8::from(due.outside) << 1)
    }

    /// Links two processes of this host (agent only).
    fn introduce(&self, one: (u64, u32), other: (u64, u32)) {
        self.0.introduce(proc(one), proc(other));
    }

    /// Tells those concerned why a process has ended (agent only).
    fn publish_obituary(&self, dead: (u64, u32), owner: (u64, u32), obituary: &[u8]) {
        self.0.publish_obituary(proc(dead), proc(owner), obituary);
    }

    /// Says how this host deals with others (agent only): its name, seconds between signs of life, seconds of
    /// silence after which a host is dead, seconds to try to connect, and the cluster's key.
    #[pyo3(signature = (name, beat, dead, patience, key=None))]
    fn configure_hosts(
        &self,
        name: &str,
        beat: f64,
        dead: f64,
        patience: f64,
        key: Option<&str>,
    ) -> PyResult<()> {
        let pulse = Pulse { beat: seconds(beat)?, dead: seconds(dead)? };
        self.0.configure_hosts(name, pulse, seconds(patience)?, key).map_err(host_error)
    }

    /// Listens for other hosts (agent only). Returns the address with the port that was chosen.
    fn listen(&self, address: &str) -> PyResult<String> {
        self.0.listen(address).map_err(host_error)
    }

    /// Connects with the host at an address (agent only); a message `dialled` tells how that ended.
    fn dial(&self, request: u64, address: &str) -> PyResult<()> {
        self.0.dial(request, address).map_err(host_error)
    }

    /// Says goodbye to all other hosts behind what is queued for them (agent only).
    fn leave_hosts(&self, reason: &str) {
        self.0.leave_hosts(reason);
    }

    /// The ranks of a mesh live on these hosts (agent, address), `per_host` on each.
    fn learn(&self, mesh: u64, per_host: u32, hosts: Vec<(u64, String)>) {
        self.0.learn(mesh, per_host, &hosts);
    }

    /// A process lives on the host of this agent.
    fn learn_proc(&self, of: (u64, u32), agent: u64, address: &str) {
        self.0.learn_proc(proc(of), agent, address);
    }

    /// Waits until all that was sent is written; false when the time is over.
    fn flush(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let end = deadline(Some(timeout))?;
        while !self.0.is_flushed() {
            if end.is_some_and(|end| Instant::now() >= end) {
                return Ok(false);
            }
            let step = deadline(Some(0.002))?;
            wait(py, &self.0, step, true, || self.0.is_flushed())?;
        }
        Ok(true)
    }

    /// Gives idle shared memory back.
    fn trim(&self) {
        self.0.trim();
    }

    /// Counters and sizes.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.0.stats();
        let dict = PyDict::new(py);
        dict.set_item("links", stats.links)?;
        dict.set_item("calls", stats.calls)?;
        dict.set_item("mailboxes", stats.mailboxes)?;
        dict.set_item("undelivered", stats.undelivered)?;
        dict.set_item("pool_bytes", stats.pool_bytes)?;
        dict.set_item("pool_blocks", stats.pool_blocks)?;
        let (hosts, guests) = self.0.count_hosts();
        dict.set_item("hosts", hosts)?;
        dict.set_item("guests", guests)?;
        Ok(dict)
    }

    /// Closes all links and ends the backup thread.
    fn shutdown(&self, py: Python<'_>) {
        py.detach(|| self.0.shutdown());
    }
}

impl Node {
    /// Waits while a peer of the target has too much queued. Not forever: two actors that flood each other
    /// would never take what they have, nor would one that waits for this sender to answer.
    fn relieve(&self, py: Python<'_>, target: &Target) -> PyResult<()> {
        let patience = Instant::now() + PATIENCE;
        while self.0.is_congested(&target.0) && Instant::now() < patience {
            self.0.wake_when_drained(&target.0);
            let step = deadline(Some(0.05))?;
            wait(py, &self.0, step, true, || !self.0.is_congested(&target.0))?;
        }
        self.0.allow_more(&target.0);
        Ok(())
    }
}
