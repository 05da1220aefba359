//! A session between hosts and the connection that carries it at the moment: sockets and TLS on one side, the
//! pure state machine on the other. Many threads may send; whoever leads the poller reads.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::Poller;
use super::lanes::{Arrival, Outgoing};
use super::session::{Hello, Pulse, Session, SessionError};
use super::tls::{Cipher, TlsError};
use crate::lock;
use crate::region::Pool;

/// Bytes read at once.
const READ_BYTES: usize = 256 << 10;
/// Most bytes read before others get their turn.
const TURN_BYTES: usize = 2 << 20;
/// No more is encrypted while this much waits for the socket.
const BACKLOG_BYTES: usize = 512 << 10;
/// Bytes taken from the session at once.
const PORTION_BYTES: usize = 256 << 10;

/// Why a connection has ended; the session may live on.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The peer closed.
    #[error("the peer closed the connection")]
    Closed,
    /// The kernel refused.
    #[error("{}", std::io::Error::from(*.0))]
    Io(Errno),
    /// TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The protocol.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// One connection.
pub struct Transport {
    /// Its key in the poller.
    pub key: u64,
    socket: OwnedFd,
    cipher: Cipher,
    poller: Arc<Poller>,
    out: Vec<u8>,
    sent: usize,
    armed: bool,
    end: Option<TransportError>,
}

impl Transport {
    /// Watches a socket under `key`; `armed`, also for room to write, which tells when it is connected.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(
        key: u64,
        socket: OwnedFd,
        cipher: Cipher,
        poller: Arc<Poller>,
        armed: bool,
    ) -> Result<Self, Errno> {
        poller.watch(&socket, key)?;
        if armed {
            poller.watch_write(&socket, key, true);
        }
        Ok(Self { key, socket, cipher, poller, out: Vec::new(), sent: 0, armed, end: None })
    }

    /// Whether the attempt to connect has ended, and how.
    ///
    /// # Errors
    /// It has failed.
    pub fn check_connected(&self) -> Result<(), Errno> {
        match rustix::net::sockopt::socket_error(&self.socket) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) | Err(error) => Err(error),
        }
    }

    /// Whether TLS lets plain bytes pass.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.cipher.is_ready()
    }

    fn backlog(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Sends plain bytes, or keeps them until the socket takes them.
    pub fn write(&mut self, plain: &[u8]) {
        self.cipher.output(plain, &mut self.out);
        self.flush();
    }

    /// Writes what the socket takes.
    pub fn flush(&mut self) {
        while self.sent < self.out.len() && self.end.is_none() {
            match send(&self.socket, &self.out[self.sent..], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => self.sent += count,
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOTCONN) => break,
                Err(Errno::INTR) => {}
                Err(error) => self.end = Some(TransportError::Io(error)),
            }
        }
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        } else if self.sent >= BACKLOG_BYTES {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        let wants = self.backlog() > 0 && self.end.is_none();
        if wants != self.armed {
            self.armed = wants;
            self.poller.watch_write(&self.socket, self.key, wants);
        }
    }

    /// Reads what is there, up to about `most` bytes, and appends the plain bytes.
    ///
    /// # Errors
    /// The connection has ended; what came before has been appended.
    pub fn read(&mut self, most: usize, into: &mut Vec<u8>) -> Result<(), TransportError> {
        let mut buffer = vec![0; READ_BYTES.min(most)];
        let mut turn = 0;
        while turn < most {
            match recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(TransportError::Closed),
                Ok((count, _)) => {
                    turn += count;
                    let end = self.cipher.input(&buffer[..count], into);
                    // What TLS has to say goes out also when it was an alert.
                    self.cipher.output(&[], &mut self.out);
                    if self.backlog() > 0 {
                        self.flush();
                    }
                    end?;
                    if count < buffer.len() {
                        return Ok(());
                    }
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(TransportError::Io(error)),
            }
        }
        Ok(())
    }

    /// Says that nothing more will be written; what is written arrives.
    pub fn finish(&mut self) {
        self.flush();
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Write);
    }
}

impl Drop for Transport {
    fn drop(&mut self) {
        self.poller.forget(&self.socket);
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

struct State {
    session: Session,
    transport: Option<Transport>,
    plain: Vec<u8>,
}

/// A session with a host, by whatever connection.
pub struct Trunk {
    /// The other agent; 0 until it has said its name.
    pub agent: AtomicU64,
    /// Name of the session.
    pub session: AtomicU64,
    /// Number of the present connection.
    pub epoch: AtomicU64,
    /// What people call the host.
    name: Mutex<String>,
    /// It was connected once.
    pub has_been_up: AtomicBool,
    state: Mutex<State>,
    is_dead: AtomicBool,
    is_leaving: AtomicBool,
}

impl Trunk {
    /// A session that waits for its connection.
    #[must_use]
    pub fn new(agent: u64, session: u64, name: &str, pulse: Pulse, pool: Arc<Pool>) -> Arc<Self> {
        let state =
            State { session: Session::new(pulse, pool, Instant::now()), transport: None, plain: Vec::new() };
        Arc::new(Self {
            agent: AtomicU64::new(agent),
            session: AtomicU64::new(session),
            epoch: AtomicU64::new(0),
            name: Mutex::new(name.to_owned()),
            has_been_up: AtomicBool::new(false),
            state: Mutex::new(state),
            is_dead: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
        })
    }

    /// What people call the host.
    #[must_use]
    pub fn name(&self) -> String {
        lock(&self.name).clone()
    }

    /// Sets what people call the host.
    pub fn set_name(&self, name: &str) {
        name.clone_into(&mut lock(&self.name));
    }

    /// Sends a frame, or queues it; false when the host is dead.
    pub fn send(&self, frame: Outgoing) -> bool {
        if self.is_dead.load(SeqCst) {
            return false;
        }
        let mut state = lock(&self.state);
        state.session.send(frame);
        state.pump(Instant::now());
        true
    }

    /// The hello for the next connection.
    #[must_use]
    pub fn hello(&self, me: u64, name: &str) -> Hello {
        let (received, dead_ms) = lock(&self.state).session.state();
        Hello {
            agent: me,
            session: self.session.load(SeqCst),
            epoch: self.epoch.load(SeqCst),
            received,
            dead_ms,
            resumes: self.has_been_up.load(SeqCst),
            name: name.to_owned(),
        }
    }

    /// Both sides have said hello on a connection: it carries the session from now on. `rest` came after the
    /// peer's hello. Returns the frames in it.
    ///
    /// # Errors
    /// The sides do not agree on what was received, or the peer sends nonsense.
    pub fn carry(
        &self,
        transport: Transport,
        peer: &Hello,
        rest: &[u8],
        arrivals: &mut Vec<Arrival>,
    ) -> Result<(), SessionError> {
        let now = Instant::now();
        let mut state = lock(&self.state);
        state.session.resume(peer, now)?;
        state.transport = Some(transport);
        self.epoch.store(peer.epoch, SeqCst);
        self.agent.store(peer.agent, SeqCst);
        self.has_been_up.store(true, SeqCst);
        state.session.input(rest, now, arrivals)?;
        state.pump(now);
        Ok(())
    }

    /// Reads what has come.
    ///
    /// # Errors
    /// The connection has ended, or with a `Session` error the session itself; frames that came before have
    /// been appended.
    pub fn receive(&self, arrivals: &mut Vec<Arrival>) -> Result<(), TransportError> {
        let now = Instant::now();
        let mut state = lock(&self.state);
        let State { session, transport, plain } = &mut *state;
        let Some(connection) = transport else { return Ok(()) };
        let end = connection.read(TURN_BYTES, plain);
        let sense = session.input(plain, now, arrivals);
        plain.clear();
        sense?;
        end?;
        state.pump(now);
        state.broken().map_or(Ok(()), Err)
    }

    /// Writes what the connection takes.
    pub fn flush(&self) {
        lock(&self.state).pump(Instant::now());
    }

    /// Looks at the time, and says what has to be said.
    ///
    /// # Errors
    /// The peer has not been heard of for too long.
    pub fn tick(&self, now: Instant) -> Result<(), SessionError> {
        let mut state = lock(&self.state);
        if self.has_been_up.load(SeqCst) {
            state.session.check(now)?;
        }
        state.pump(now);
        Ok(())
    }

    /// When `tick` is due.
    #[must_use]
    pub fn next_timer(&self) -> Option<Instant> {
        self.has_been_up.load(SeqCst).then(|| lock(&self.state).session.next_timer())
    }

    /// The connection has broken; returns its key, if this one was it.
    pub fn suspend(&self, key: u64) -> bool {
        let mut state = lock(&self.state);
        if state.transport.as_ref().is_none_or(|transport| transport.key != key) {
            return false;
        }
        state.transport = None;
        state.session.suspend();
        true
    }

    /// Key of the present connection.
    #[must_use]
    pub fn key(&self) -> Option<u64> {
        lock(&self.state).transport.as_ref().map(|transport| transport.key)
    }

    /// Whether a connection carries the session.
    #[must_use]
    pub fn is_up(&self) -> bool {
        lock(&self.state).session.is_up()
    }

    /// Says goodbye behind what is queued.
    pub fn leave(&self, reason: &str) {
        self.is_leaving.store(true, SeqCst);
        let mut state = lock(&self.state);
        state.session.leave(reason);
        state.pump(Instant::now());
    }

    /// Whether this side has said goodbye.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.is_leaving.load(SeqCst)
    }

    /// The host counts as dead: what is queued is dropped; with a reason, the peer is told if it still listens.
    pub fn die(&self, reason: Option<&str>) {
        self.is_dead.store(true, SeqCst);
        let mut state = lock(&self.state);
        if let (Some(transport), Some(reason)) = (&mut state.transport, reason) {
            transport.write(&super::session::bye(reason));
            transport.finish();
        }
        state.transport = None;
        state.session.suspend();
        state.session.forget();
    }

    /// Whether `die` was called.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.is_dead.load(SeqCst)
    }

    /// Whether all that was queued has been acknowledged.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.is_dead() || lock(&self.state).session.is_flushed()
    }
}

impl State {
    fn pump(&mut self, now: Instant) {
        let Some(transport) = &mut self.transport else { return };
        let mut portion = Vec::new();
        while transport.backlog() < BACKLOG_BYTES && transport.end.is_none() {
            portion.clear();
            self.session.output(PORTION_BYTES, now, &mut portion);
            if portion.is_empty() {
                break;
            }
            transport.write(&portion);
        }
        transport.flush();
    }

    fn broken(&mut self) -> Option<TransportError> {
        self.transport.as_mut().and_then(|transport| transport.end.take())
    }
}
