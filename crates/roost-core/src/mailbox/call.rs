//! The caller's side of a call to one rank or many.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::bell::Bell;
use crate::link::Poller;
use crate::lock;
use crate::message::Message;
use crate::park::Parker;
use crate::route::Target;
use crate::wire::Status;

/// How answers are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One whole: done when all ranks have answered, or soon after one has failed.
    Whole,
    /// A stream: each answer counts on its own.
    Stream,
}

/// What one rank answered.
pub struct Answer {
    /// Rank in the call.
    pub index: u32,
    /// How it ended.
    pub status: Status,
    /// The parts.
    pub message: Message,
}

enum Waker {
    Thread(Arc<Parker>),
    Loop(Arc<Bell>, u64),
}

struct State {
    answered: Vec<bool>,
    arrived: Vec<Option<Answer>>,
    failed: bool,
    done: bool,
    wakers: Vec<(usize, Waker)>,
}

/// Other ranks get this long to fail too after the first has, so that one error can tell of all;
/// after it the call ends, since they may be waiting for the one that failed.
pub const GRACE: Duration = Duration::from_millis(100);

/// A call under way.
pub struct Call {
    /// Name in this process.
    pub id: u64,
    /// Who was called.
    pub target: Arc<Target>,
    mode: Mode,
    poller: Arc<Poller>,
    state: Mutex<State>,
}

impl Call {
    pub(crate) fn new(id: u64, target: Arc<Target>, mode: Mode, poller: Arc<Poller>) -> Self {
        let size = target.procs.len();
        for load in &target.loads {
            load.fetch_add(1, Relaxed);
        }
        let state = State {
            answered: vec![false; size],
            arrived: Vec::with_capacity(size),
            failed: false,
            done: size == 0,
            wakers: Vec::new(),
        };
        Self { id, target, mode, poller, state: Mutex::new(state) }
    }

    /// Files an answer. Returns true when it is the first failure of a call that goes on.
    pub(crate) fn answer(&self, index: u32, status: Status, message: Message) -> bool {
        let mut state = lock(&self.state);
        match state.answered.get_mut(index as usize) {
            Some(answered) if !*answered => *answered = true,
            _ => return false,
        }
        self.target.loads[index as usize].fetch_sub(1, Relaxed);
        if state.done {
            return false;
        }
        state.arrived.push(Some(Answer { index, status, message }));
        let first_failure = status != Status::Ok && !std::mem::replace(&mut state.failed, true);
        if state.arrived.len() == state.answered.len() {
            state.done = true;
        }
        let ends = state.done;
        self.wake(state);
        first_failure && !ends && self.mode == Mode::Whole
    }

    fn wake(&self, mut state: std::sync::MutexGuard<'_, State>) {
        let (arrived, done) = (state.arrived.len(), state.done);
        state.wakers.retain(|(need, waker)| {
            if arrived < *need && !done {
                return true;
            }
            match waker {
                Waker::Thread(parker) => self.poller.wake(parker),
                Waker::Loop(bell, token) => bell.ring(*token),
            }
            false
        });
    }

    /// Ends the call with the answers that are there.
    pub fn finish(&self) {
        let mut state = lock(&self.state);
        state.done = true;
        self.wake(state);
    }

    /// Whether `need` answers have arrived, or no more will.
    #[must_use]
    pub fn is_ready(&self, need: usize) -> bool {
        let state = lock(&self.state);
        state.done || state.arrived.len() >= need
    }

    /// Whether no more answers will be taken.
    #[must_use]
    pub fn is_done(&self) -> bool {
        lock(&self.state).done
    }

    /// Whether rank `index` has not answered yet.
    #[must_use]
    pub fn is_open(&self, index: usize) -> bool {
        let state = lock(&self.state);
        !state.done && state.answered.get(index).is_some_and(|answered| !answered)
    }

    /// Wakes the calling thread when `need` answers are there.
    pub fn wake_thread(&self, need: usize) {
        let mut state = lock(&self.state);
        if !state.done && state.arrived.len() < need {
            let parker = Parker::current();
            let known = state
                .wakers
                .iter_mut()
                .find(|(_, waker)| matches!(waker, Waker::Thread(other) if Arc::ptr_eq(other, &parker)));
            match known {
                Some(known) => known.0 = need,
                None => state.wakers.push((need, Waker::Thread(parker))),
            }
        }
    }

    /// Rings `token` when `need` answers are there, at once if they are.
    pub fn wake_loop(&self, need: usize, bell: Arc<Bell>, token: u64) {
        let mut state = lock(&self.state);
        if state.done || state.arrived.len() >= need {
            bell.ring(token);
        } else {
            state.wakers.push((need, Waker::Loop(bell, token)));
        }
    }

    /// Takes the answers with these positions in the order of arrival.
    pub fn take(&self, range: std::ops::Range<usize>) -> Vec<Answer> {
        let mut state = lock(&self.state);
        let end = range.end.min(state.arrived.len());
        let start = range.start.min(end);
        state.arrived[start..end].iter_mut().filter_map(Option::take).collect()
    }

    /// Whether an answer that has come is not a value.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        lock(&self.state).failed
    }

    /// Ranks that have not answered.
    #[must_use]
    pub fn missing(&self) -> Vec<u32> {
        let state = lock(&self.state);
        let open = state.answered.iter().enumerate().filter(|(_, answered)| !**answered);
        open.map(|(index, _)| index as u32).collect()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        for index in self.missing() {
            self.target.loads[index as usize].fetch_sub(1, Relaxed);
        }
    }
}

/// When calls that had a failure end at the latest.
#[derive(Default)]
pub(crate) struct Graces(Mutex<Vec<(Instant, std::sync::Weak<Call>)>>);

impl Graces {
    pub(crate) fn add(&self, call: &Arc<Call>) {
        lock(&self.0).push((Instant::now() + GRACE, Arc::downgrade(call)));
    }

    pub(crate) fn expire(&self, now: Instant) {
        let due: Vec<_> = {
            let mut graces = lock(&self.0);
            let (due, rest) = graces.drain(..).partition(|(deadline, _)| *deadline <= now);
            *graces = rest;
            due
        };
        for (_, call) in due {
            if let Some(call) = call.upgrade() {
                call.finish();
            }
        }
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        lock(&self.0).iter().map(|(deadline, _)| *deadline).min()
    }
}
