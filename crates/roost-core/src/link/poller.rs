//! The one epoll of a process, and who runs it.
//!
//! Waking a thread on another core costs more than all the rest of a call, so whoever waits polls: a thread
//! that waits for an answer or for its next message leads the poller itself, and no hand-over lies between
//! the socket and the code that wants the bytes. A backup thread leads when nobody has for a few
//! milliseconds (everybody is busy in user code), and hands back to the next thread that waits.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Result;

use crate::lock;
use crate::park::{Parker, timespec};

/// Key of the poller's own descriptor.
const KICK: u64 = 0;
/// How long the poller may be left alone before the backup thread takes it.
const ALONE: Duration = Duration::from_millis(3);

const NOBODY: u8 = 0;
const WAITER: u8 = 1;
const BACKUP: u8 = 2;

/// What happened at one descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// The key that the descriptor was registered with.
    pub key: u64,
    /// There is something to read, or the peer is gone.
    pub readable: bool,
    /// There is room to write.
    pub writable: bool,
}

/// An epoll with a leader.
pub struct Poller {
    epoll: OwnedFd,
    kick: OwnedFd,
    leader: AtomicU8,
    departures: AtomicU64,
    backup: Arc<Parker>,
    backup_dozes: AtomicBool,
    wanted: Mutex<Vec<Arc<Parker>>>,
    is_wanted: AtomicBool,
    stopped: AtomicBool,
}

impl Poller {
    /// A poller with nothing to watch.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn new() -> Result<Self> {
        let poller = Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            kick: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            leader: AtomicU8::new(NOBODY),
            departures: AtomicU64::new(0),
            backup: Arc::default(),
            backup_dozes: AtomicBool::new(false),
            wanted: Mutex::default(),
            is_wanted: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
        };
        epoll::add(&poller.epoll, &poller.kick, epoll::EventData::new_u64(KICK), epoll::EventFlags::IN)?;
        Ok(poller)
    }

    /// The epoll itself, for a foreign event loop to watch.
    #[must_use]
    pub fn fd(&self) -> &OwnedFd {
        &self.epoll
    }

    fn flags(write: bool) -> epoll::EventFlags {
        if write { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::IN }
    }

    /// Watches a descriptor under a key above 0.
    ///
    /// # Errors
    /// Out of memory, or watched already.
    pub fn watch(&self, fd: &OwnedFd, key: u64) -> Result<()> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(key), Self::flags(false))
    }

    /// Watches the epoll of an event loop: one event each time that it becomes ready.
    ///
    /// # Errors
    /// Out of memory, watched already, or a loop of epolls.
    pub fn watch_loop(&self, fd: &OwnedFd, key: u64) -> Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(key), flags)
    }

    /// Also (or no longer) watches for room to write.
    pub fn watch_write(&self, fd: &OwnedFd, key: u64, write: bool) {
        let _ = epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(key), Self::flags(write));
    }

    /// Forgets a descriptor.
    pub fn forget(&self, fd: &OwnedFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Wakes a thread wherever it sleeps.
    pub fn wake(&self, parker: &Parker) {
        if parker.unpark() {
            self.kick();
        }
    }

    /// Makes the leader look up.
    pub fn kick(&self) {
        let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
    }

    /// Waits for events as the leader.
    ///
    /// # Errors
    /// `EINTR` when a signal arrived.
    pub fn poll(&self, timeout: Option<Duration>, ready: &mut Vec<Ready>) -> Result<()> {
        let mut events = Vec::with_capacity(64);
        let timeout = timeout.map(timespec);
        epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref())?;
        for event in events {
            let (key, flags) = (event.data.u64(), event.flags);
            if key == KICK {
                let _ = rustix::io::read(&self.kick, &mut [0u8; 8]);
                continue;
            }
            let gone = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
            ready.push(Ready {
                key,
                readable: flags.intersects(epoll::EventFlags::IN | gone),
                writable: flags.intersects(epoll::EventFlags::OUT | gone),
            });
        }
        Ok(())
    }

    /// Becomes the leader if there is none.
    #[must_use]
    pub fn try_lead(&self) -> bool {
        self.leader.compare_exchange(NOBODY, WAITER, SeqCst, SeqCst).is_ok()
    }

    /// Stops leading. The backup thread sees to it that the poller is not alone for long.
    pub fn leave(&self) {
        self.departures.fetch_add(1, SeqCst);
        self.leader.store(NOBODY, SeqCst);
        if self.backup_dozes.load(SeqCst) {
            let _ = self.backup.unpark();
        }
    }

    /// Asks the backup thread, if it leads, to hand over after its next event.
    pub fn want(&self, parker: &Arc<Parker>) {
        if self.leader.load(SeqCst) == BACKUP {
            lock(&self.wanted).push(Arc::clone(parker));
            self.is_wanted.store(true, SeqCst);
        }
    }

    fn hand_over(&self) {
        self.is_wanted.store(false, SeqCst);
        self.departures.fetch_add(1, SeqCst);
        self.leader.store(NOBODY, SeqCst);
        for parker in std::mem::take(&mut *lock(&self.wanted)) {
            let _ = parker.unpark();
        }
    }

    /// The backup thread's life; `turn` polls once and handles what is ready.
    pub fn run_backup(&self, mut turn: impl FnMut()) {
        let mut seen = self.departures.load(SeqCst);
        while !self.stopped.load(SeqCst) {
            let now = self.departures.load(SeqCst);
            let quiet = now == seen;
            seen = now;
            if !quiet {
                self.backup.park_on(ALONE);
            } else if self.leader.compare_exchange(NOBODY, BACKUP, SeqCst, SeqCst).is_ok() {
                while !self.stopped.load(SeqCst) && !self.is_wanted.load(SeqCst) {
                    turn();
                }
                self.hand_over();
            } else {
                self.backup_dozes.store(true, SeqCst);
                if self.leader.load(SeqCst) != NOBODY && !self.stopped.load(SeqCst) {
                    self.backup.park_on(Duration::from_secs(3600));
                }
                self.backup_dozes.store(false, SeqCst);
                seen = self.departures.load(SeqCst).wrapping_sub(1);
            }
        }
    }

    /// Ends the backup thread.
    pub fn stop(&self) {
        self.stopped.store(true, SeqCst);
        let _ = self.backup.unpark();
        self.kick();
    }

    /// Whether `stop` was called.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::time::Instant;

    fn until(what: &str, mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !condition() {
            assert!(Instant::now() < deadline, "never: {what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_backup_leads_when_nobody_does_and_hands_over_when_asked() {
        let poller = Arc::new(Poller::new().expect("descriptors"));
        let turns = Arc::new(AtomicUsize::new(0));
        let thread = {
            let (poller, turns) = (poller.clone(), turns.clone());
            std::thread::spawn(move || {
                poller.clone().run_backup(|| {
                    turns.fetch_add(1, SeqCst);
                    let _ = poller.poll(Some(Duration::from_millis(1)), &mut Vec::new());
                });
            })
        };
        until("the backup leads", || turns.load(SeqCst) > 0);
        let me = Parker::current();
        until("the waiter leads", || {
            poller.want(&me);
            poller.try_lead()
        });
        poller.leave();
        let before = turns.load(SeqCst);
        until("the backup leads again", || turns.load(SeqCst) > before);
        poller.stop();
        thread.join().expect("joined");
    }
}
