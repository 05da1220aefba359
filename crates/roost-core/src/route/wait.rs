//! Waiting: whoever waits leads the poller if nobody else does.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::Node;
use crate::lock;
use crate::mailbox::Bell;
use crate::park::{Parker, Woken};

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// The condition holds.
    Ready,
    /// The time is over.
    TimedOut,
    /// A signal arrived; look at it, then wait on.
    Signal,
}

/// Timers are looked at this often at least.
const TICK: Duration = Duration::from_secs(1);

impl Node {
    /// Waits until `ready`. Whoever makes the condition true has to wake this thread's parker. With
    /// `lead`, the thread polls for the whole process meanwhile.
    pub fn wait_until(
        &self,
        deadline: Option<Instant>,
        lead: bool,
        mut ready: impl FnMut() -> bool,
    ) -> WaitEnd {
        let parker = Parker::current();
        loop {
            if ready() {
                return WaitEnd::Ready;
            }
            let left = match deadline {
                Some(deadline) => match deadline.checked_duration_since(Instant::now()) {
                    Some(left) if !left.is_zero() => Some(left),
                    _ => return WaitEnd::TimedOut,
                },
                None => None,
            };
            if lead && self.poller.try_lead() {
                let end = self.lead(&parker, deadline, &mut ready);
                self.poller.leave();
                return end;
            }
            if lead {
                self.poller.want(&parker);
            }
            if parker.park(left) == Woken::Signal {
                return WaitEnd::Signal;
            }
        }
    }

    fn lead(
        &self,
        parker: &Arc<Parker>,
        deadline: Option<Instant>,
        ready: &mut impl FnMut() -> bool,
    ) -> WaitEnd {
        loop {
            parker.take();
            if ready() {
                return WaitEnd::Ready;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return WaitEnd::TimedOut;
            }
            if !self.turn(Some(parker), left) {
                return WaitEnd::Signal;
            }
        }
    }

    /// Polls once as the leader and handles what is ready; false when a signal arrived.
    pub(super) fn turn(&self, parker: Option<&Arc<Parker>>, timeout: Option<Duration>) -> bool {
        let now = Instant::now();
        let timer = self.next_timer().map_or(TICK, |timer| timer.saturating_duration_since(now));
        let timeout = timeout.map_or(timer, |timeout| timeout.min(timer));
        let mut events = Vec::new();
        let timeout = match parker {
            Some(parker) if parker.set_polling(true) => Duration::ZERO,
            _ => timeout,
        };
        let end = self.poller.poll(Some(timeout), &mut events);
        if let Some(parker) = parker {
            parker.set_polling(false);
        }
        if end.is_err() {
            return false;
        }
        self.handle(&events);
        self.tick();
        true
    }

    /// Handles what is ready without waiting, if nobody else polls.
    pub fn poll_now(&self) {
        if self.poller.try_lead() {
            self.turn(None, Some(Duration::ZERO));
            self.poller.leave();
        }
    }

    /// The calling thread runs an event loop, which from now on waits in [`Node::wait_until`] for `bell` to be
    /// due; `epoll` holds the loop's own descriptors. Returns the key to detach it with.
    ///
    /// # Errors
    /// Whatever the kernel says.
    pub fn attach_loop(&self, bell: &Arc<Bell>, epoll: OwnedFd) -> Result<u64, Errno> {
        let key = self.fresh();
        self.poller.watch_loop(&epoll, key)?;
        bell.belongs_here(Arc::clone(&self.poller));
        lock(&self.loops).insert(key, (epoll, Arc::clone(bell)));
        Ok(key)
    }

    /// The loop is closed.
    pub fn detach_loop(&self, key: u64) {
        if let Some((epoll, _)) = lock(&self.loops).remove(&key) {
            self.poller.forget(&epoll);
        }
    }

    /// The backup thread's life.
    pub fn run_backup(&self) {
        self.poller.run_backup(|| {
            self.turn(None, None);
        });
    }

    fn tick(&self) {
        let now = Instant::now();
        {
            let mut last = lock(&self.last_tick);
            if now.duration_since(*last) < Duration::from_millis(5) {
                return;
            }
            *last = now;
        }
        self.graces.expire(now);
        self.expire(now);
        self.hosts_tick(now);
        let gone = self.pool.trim(now);
        self.announce_gone(&gone);
    }

    /// When there is something to do though nothing comes.
    pub fn next_timer(&self) -> Option<Instant> {
        let grace = self.graces.next().map(|due| due + Duration::from_millis(5));
        [grace, self.hosts_timer()].into_iter().flatten().min()
    }
}
