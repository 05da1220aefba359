//! How an event loop learns that something is there for it: a list of tokens, and a way to wake it.
//!
//! Any loop can watch a descriptor. A loop of our own waits in the node instead, as the leader of the poller
//! where it can, so that a message goes from the socket to the loop in one thread without a system call in
//! between; its own descriptors then wake it through the poller.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use rustix::event::{EventfdFlags, eventfd};

use crate::link::Poller;
use crate::lock;
use crate::park::Parker;

/// One per event loop. However many tokens ring, the loop wakes once.
pub struct Bell {
    fd: OwnedFd,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    rung: Vec<u64>,
    /// The descriptor is readable.
    written: bool,
    /// A descriptor of the loop's own is ready.
    outside: bool,
    /// The thread of a loop that waits in the node.
    thread: Option<(Arc<Poller>, Arc<Parker>)>,
}

impl State {
    fn wake(&mut self, fd: &OwnedFd) {
        match &self.thread {
            Some((poller, parker)) => poller.wake(parker),
            None if self.written => {}
            None => self.written = rustix::io::write(fd, &1u64.to_ne_bytes()).is_ok(),
        }
    }
}

/// What a loop has to look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// Tokens have rung.
    pub rung: bool,
    /// A descriptor of the loop's own may be ready.
    pub outside: bool,
}

impl Due {
    /// Whether there is anything.
    #[must_use]
    pub fn any(self) -> bool {
        self.rung || self.outside
    }
}

impl Bell {
    /// A bell that nobody has rung.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn new() -> rustix::io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd, state: Mutex::default() })
    }

    /// The descriptor that becomes readable, for loops that do not wait in the node.
    #[must_use]
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// The calling thread runs the loop, and waits in the node.
    pub(crate) fn belongs_here(&self, poller: Arc<Poller>) {
        lock(&self.state).thread = Some((poller, Parker::current()));
    }

    /// Adds a token and wakes the loop.
    pub fn ring(&self, token: u64) {
        let mut state = lock(&self.state);
        state.rung.push(token);
        if state.rung.len() == 1 {
            state.wake(&self.fd);
        }
    }

    /// A descriptor of the loop's own is ready.
    pub(crate) fn ring_outside(&self) {
        let mut state = lock(&self.state);
        state.outside = true;
        state.wake(&self.fd);
    }

    /// What there is to look at; the tokens stay, the news of own descriptors is taken.
    #[must_use]
    pub fn take_due(&self) -> Due {
        let mut state = lock(&self.state);
        Due { rung: !state.rung.is_empty(), outside: std::mem::take(&mut state.outside) }
    }

    /// Whether there is anything to look at.
    #[must_use]
    pub fn is_due(&self) -> bool {
        let state = lock(&self.state);
        state.outside || !state.rung.is_empty()
    }

    /// Takes all tokens.
    pub fn answer(&self) -> Vec<u64> {
        let mut state = lock(&self.state);
        if std::mem::take(&mut state.written) {
            let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
        }
        std::mem::take(&mut state.rung)
    }
}
