//! The ordered queue of one actor or port.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use rustc_hash::FxHashSet;

use super::bell::Bell;
use crate::id::{BoxId, ProcId};
use crate::link::Poller;
use crate::lock;
use crate::message::Message;
use crate::park::Parker;
use crate::wire::{Kind, Status, URGENT};

/// Names a request to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The caller's process.
    pub caller: ProcId,
    /// The call in that process.
    pub call: u64,
    /// The rank in the call.
    pub index: u32,
}

/// Why a mailbox takes nothing more: a status, and bytes for whoever calls.
#[derive(Clone, Debug)]
pub struct Closed {
    /// What callers get.
    pub status: Status,
    /// The explanation that travels with it.
    pub reason: Arc<[u8]>,
}

enum Reader {
    Thread(Arc<Parker>),
    Loop(Arc<Bell>, u64),
}

#[derive(Default)]
struct State {
    queue: VecDeque<Message>,
    urgent: VecDeque<Message>,
    open: FxHashSet<Request>,
    reader: Option<Reader>,
    closed: Option<Closed>,
}

/// A queue with one reader.
pub struct Mailbox {
    /// Name in this process.
    pub id: BoxId,
    poller: Arc<Poller>,
    state: Mutex<State>,
}

impl Mailbox {
    /// An empty mailbox.
    #[must_use]
    pub fn new(id: BoxId, poller: Arc<Poller>) -> Self {
        Self { id, poller, state: Mutex::default() }
    }

    /// The calling thread reads this mailbox from now on.
    pub fn read_by_thread(&self) {
        lock(&self.state).reader = Some(Reader::Thread(Parker::current()));
    }

    /// The loop behind `bell` reads this mailbox; `token` is rung for what comes and what is there.
    pub fn read_by_loop(&self, bell: Arc<Bell>, token: u64) {
        let mut state = lock(&self.state);
        if !state.queue.is_empty() || !state.urgent.is_empty() {
            bell.ring(token);
        }
        state.reader = Some(Reader::Loop(bell, token));
    }

    /// Queues a message; gives it back with the reason when the mailbox is closed.
    ///
    /// # Errors
    /// The message and why it was not taken.
    pub fn push(&self, message: Message) -> Result<(), (Box<Message>, Closed)> {
        let mut state = lock(&self.state);
        if let Some(closed) = &state.closed {
            return Err((Box::new(message), closed.clone()));
        }
        if message.header.flags & URGENT != 0 {
            state.urgent.push_back(message);
        } else {
            state.queue.push_back(message);
        }
        let first = state.queue.len() + state.urgent.len() == 1;
        match &state.reader {
            Some(Reader::Thread(parker)) => self.poller.wake(parker),
            Some(Reader::Loop(bell, token)) if first => bell.ring(*token),
            _ => {}
        }
        Ok(())
    }

    /// Whether there is something to take.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let state = lock(&self.state);
        !state.queue.is_empty() || !state.urgent.is_empty() || state.closed.is_some()
    }

    /// Whether an urgent message waits.
    #[must_use]
    pub fn has_urgent(&self) -> bool {
        !lock(&self.state).urgent.is_empty()
    }

    /// Messages that wait.
    #[must_use]
    pub fn depth(&self) -> usize {
        let state = lock(&self.state);
        state.queue.len() + state.urgent.len()
    }

    /// Whether `close` was called.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        lock(&self.state).closed.is_some()
    }

    /// Takes up to `most` messages, urgent ones first; calls count as open until they are answered.
    pub fn take(&self, most: usize, only_urgent: bool) -> Vec<Message> {
        let mut state = lock(&self.state);
        let state = &mut *state;
        let mut taken: Vec<Message> = state.urgent.drain(..).collect();
        if !only_urgent {
            let count = state.queue.len().min(most.saturating_sub(taken.len()));
            taken.extend(state.queue.drain(..count));
        }
        for message in &taken {
            if message.header.kind == Kind::Call {
                state.open.insert(request_of(message));
            }
        }
        taken
    }

    /// Marks a request as answered; false when it was already.
    pub fn settle(&self, request: &Request) -> bool {
        lock(&self.state).open.remove(request)
    }

    /// Whether a request that was taken still wants its answer.
    #[must_use]
    pub fn is_open(&self, request: &Request) -> bool {
        lock(&self.state).open.contains(request)
    }

    /// Drops a call that queues, or marks it as unwanted when it was taken.
    pub fn cancel(&self, request: &Request) {
        let mut state = lock(&self.state);
        if !state.open.remove(request) {
            state
                .queue
                .retain(|message| message.header.kind != Kind::Call || request_of(message) != *request);
        }
    }

    /// Takes nothing more. Returns the messages that waited and the requests that were being handled.
    pub fn close(&self, closed: Closed) -> (Vec<Message>, Vec<Request>) {
        let mut state = lock(&self.state);
        if state.closed.is_some() {
            return (Vec::new(), Vec::new());
        }
        state.closed = Some(closed);
        match &state.reader {
            Some(Reader::Thread(parker)) => self.poller.wake(parker),
            Some(Reader::Loop(bell, token)) => bell.ring(*token),
            None => {}
        }
        let state = &mut *state;
        let waiting = state.urgent.drain(..).chain(state.queue.drain(..)).collect();
        (waiting, state.open.drain().collect())
    }
}

/// The request that a call message makes.
pub(crate) fn request_of(message: &Message) -> Request {
    let header = &message.header;
    Request { caller: header.src, call: header.call, index: header.index }
}
