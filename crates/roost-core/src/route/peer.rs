//! What a node knows of another process: not linked yet, linked, or gone.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::id::{BoxId, ProcId};
use crate::link::{Link, LinkError};
use crate::lock;
use crate::message::Parts;
use crate::region::Block;
use crate::wire::{Entry, Header};

/// The same mailbox name on a list of processes, in the order of ranks.
pub struct Target {
    /// The mailbox.
    pub box_id: BoxId,
    /// The processes.
    pub procs: Vec<ProcId>,
    /// Calls that wait for an answer of each rank, whoever of this process has made them.
    pub(crate) loads: Vec<Arc<AtomicUsize>>,
    pub(super) peers: Vec<Arc<Peer>>,
}

impl Target {
    /// Calls of this process that wait for an answer of one of these ranks.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.loads.iter().map(|load| load.load(Relaxed)).sum()
    }
}

/// How long the host agent may take to say why a process has closed its link.
pub(super) const OBITUARY_TIME: Duration = Duration::from_secs(5);

struct Waiting {
    header: Header,
    entries: Vec<Entry>,
    inline: Vec<u8>,
    blocks: Vec<Block>,
}

enum State {
    /// Frames wait for the agent to make a link.
    Apart {
        asked: bool,
        queue: Vec<Waiting>,
    },
    Linked(Arc<Link>),
    /// The link has ended; the agent has not said why.
    Lost {
        since: Instant,
        why: String,
        queue: Vec<Waiting>,
    },
    Dead(Arc<[u8]>),
}

pub(super) struct Peer {
    pub id: ProcId,
    state: Mutex<State>,
}

fn keep(header: &Header, parts: &Parts<'_>) -> Waiting {
    Waiting {
        header: *header,
        entries: parts.entries.clone(),
        inline: parts.inline.concat(),
        blocks: parts.blocks.clone(),
    }
}

fn send_all(link: &Link, queue: Vec<Waiting>) {
    for frame in queue {
        let parts = Parts { entries: frame.entries, inline: vec![&frame.inline], blocks: frame.blocks };
        link.send(&frame.header, &parts, None);
    }
}

impl Peer {
    pub fn new(id: ProcId) -> Self {
        Self { id, state: Mutex::new(State::Apart { asked: false, queue: Vec::new() }) }
    }

    /// Sends or queues. True when the caller has to ask for a link.
    ///
    /// # Errors
    /// The obituary of a process that is gone.
    pub fn send(&self, header: &Header, parts: &Parts<'_>) -> Result<bool, Arc<[u8]>> {
        let mut state = lock(&self.state);
        match &mut *state {
            State::Apart { asked, queue } => {
                queue.push(keep(header, parts));
                Ok(!std::mem::replace(asked, true))
            }
            State::Linked(link) => {
                if !link.send(header, parts, None) {
                    // The poller has not seen the end yet; the obituary will settle this frame too.
                    let queue = vec![keep(header, parts)];
                    let why = "the connection ended".to_owned();
                    *state = State::Lost { since: Instant::now(), why, queue };
                }
                Ok(false)
            }
            State::Lost { queue, .. } => {
                queue.push(keep(header, parts));
                Ok(false)
            }
            State::Dead(obituary) => Err(Arc::clone(obituary)),
        }
    }

    pub fn connect(&self, link: Arc<Link>) {
        let mut state = lock(&self.state);
        let before = std::mem::replace(&mut *state, State::Linked(Arc::clone(&link)));
        match before {
            State::Apart { queue, .. } | State::Lost { queue, .. } => send_all(&link, queue),
            State::Linked(_) => {}
            State::Dead(obituary) => *state = State::Dead(obituary),
        }
    }

    pub fn link(&self) -> Option<Arc<Link>> {
        match &*lock(&self.state) {
            State::Linked(link) => Some(Arc::clone(link)),
            _ => None,
        }
    }

    /// The link has ended. False when the peer was known to be dead, or another link took over.
    pub fn lose(&self, link: &Arc<Link>, error: &LinkError) -> bool {
        let mut state = lock(&self.state);
        match &*state {
            State::Linked(current) if Arc::ptr_eq(current, link) => {
                *state = State::Lost { since: Instant::now(), why: error.to_string(), queue: Vec::new() };
                true
            }
            State::Lost { .. } => true,
            _ => false,
        }
    }

    /// The process is gone. Returns the frames that waited, and false when that was known.
    pub fn bury(&self, obituary: &Arc<[u8]>) -> (Vec<(Header, Vec<Block>)>, bool) {
        let mut state = lock(&self.state);
        if matches!(&*state, State::Dead(_)) {
            return (Vec::new(), false);
        }
        match std::mem::replace(&mut *state, State::Dead(Arc::clone(obituary))) {
            State::Apart { queue, .. } | State::Lost { queue, .. } => {
                (queue.into_iter().map(|frame| (frame.header, frame.blocks)).collect(), true)
            }
            _ => (Vec::new(), true),
        }
    }

    pub fn obituary(&self) -> Option<Arc<[u8]>> {
        match &*lock(&self.state) {
            State::Dead(obituary) => Some(Arc::clone(obituary)),
            _ => None,
        }
    }

    /// When a lost peer counts as dead without an obituary, and how it was lost.
    pub fn overdue(&self) -> Option<(Instant, String)> {
        match &*lock(&self.state) {
            State::Lost { since, why, .. } => Some((*since + OBITUARY_TIME, why.clone())),
            _ => None,
        }
    }
}
