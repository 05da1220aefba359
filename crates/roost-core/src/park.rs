//! Putting a thread to sleep and waking it, whether it sleeps on its own or inside the poller.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::io::Errno;
use rustix::thread::futex;

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// Somebody called `unpark`.
    Unparked,
    /// The time is over.
    TimedOut,
    /// A signal arrived.
    Signal,
}

/// One thread's place to sleep. A wake-up that comes before the sleep is not lost.
#[derive(Debug, Default)]
pub struct Parker {
    notified: AtomicU32,
    polling: AtomicBool,
}

/// Value of `notified` while the thread sleeps on it; 1 is a pending wake-up, 0 neither.
const ASLEEP: u32 = 2;

std::thread_local! {
    static MINE: Arc<Parker> = Arc::default();
}

/// The duration as the kernel takes it.
#[must_use]
pub fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

impl Parker {
    /// The calling thread's parker.
    #[must_use]
    pub fn current() -> Arc<Self> {
        MINE.with(Arc::clone)
    }

    /// Takes the pending wake-up, if there is one.
    pub fn take(&self) -> bool {
        self.notified.swap(0, SeqCst) == 1
    }

    /// Marks the thread as asleep in the poller (or not); true when a wake-up is already pending.
    pub fn set_polling(&self, polling: bool) -> bool {
        self.polling.store(polling, SeqCst);
        self.notified.load(SeqCst) == 1
    }

    /// Sleeps until woken.
    pub fn park(&self, timeout: Option<Duration>) -> Woken {
        if self.take() {
            return Woken::Unparked;
        }
        let timeout = timeout.map(timespec);
        if self.notified.compare_exchange(0, ASLEEP, SeqCst, SeqCst).is_err() {
            self.take();
            return Woken::Unparked;
        }
        let end = futex::wait(&self.notified, futex::Flags::PRIVATE, ASLEEP, timeout.as_ref());
        if self.take() {
            return Woken::Unparked;
        }
        match end {
            Err(Errno::TIMEDOUT) => Woken::TimedOut,
            Err(Errno::INTR) => Woken::Signal,
            _ => Woken::Unparked,
        }
    }

    /// Sleeps at most this long, whatever ends it.
    pub fn park_on(&self, timeout: Duration) {
        let _ = self.park(Some(timeout));
    }

    /// Wakes the thread. Returns true when it sleeps in the poller, which then has to be kicked.
    #[must_use]
    pub fn unpark(&self) -> bool {
        match self.notified.swap(1, SeqCst) {
            1 => false,
            ASLEEP => {
                let _ = futex::wake(&self.notified, futex::Flags::PRIVATE, 1);
                false
            }
            _ => self.polling.load(SeqCst),
        }
    }
}
