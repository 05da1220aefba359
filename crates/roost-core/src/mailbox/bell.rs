//! How a foreign event loop learns that something is there for it: a descriptor to watch and a list of
//! tokens. However many tokens ring, the loop wakes once.

use std::os::fd::OwnedFd;
use std::sync::Mutex;

use rustix::event::{EventfdFlags, eventfd};

use crate::lock;

/// One per event loop.
pub struct Bell {
    fd: OwnedFd,
    rung: Mutex<Vec<u64>>,
}

impl Bell {
    /// A bell that nobody has rung.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn new() -> rustix::io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd, rung: Mutex::default() })
    }

    /// The descriptor that becomes readable.
    #[must_use]
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Adds a token and wakes the loop.
    pub fn ring(&self, token: u64) {
        let mut rung = lock(&self.rung);
        rung.push(token);
        if rung.len() == 1 {
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Takes all tokens.
    pub fn answer(&self) -> Vec<u64> {
        let mut rung = lock(&self.rung);
        if !rung.is_empty() {
            let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
        }
        std::mem::take(&mut *rung)
    }
}
