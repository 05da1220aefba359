//! What a node knows of another process: not linked yet, linked, on another host, or gone.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::id::{BoxId, ProcId};
use crate::link::lanes::Outgoing;
use crate::link::trunk::Trunk;
use crate::link::{Link, LinkError, MESSAGE_BYTES, Poller, REPORT_BYTES, WINDOW_BYTES};
use crate::lock;
use crate::message::Parts;
use crate::park::Parker;
use crate::region::{Block, Pool};
use crate::wire::{Entry, Header, Kind};

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
    /// On another host.
    Far(Way),
    /// The link has ended; the agent has not said why.
    Lost {
        since: Instant,
        why: String,
        queue: Vec<Waiting>,
    },
    Dead(Arc<[u8]>),
}

/// How frames get to a process of another host.
#[derive(Clone)]
pub(super) enum Way {
    /// Through the agent of this host.
    Agent(Arc<Link>),
    /// This is the agent.
    Trunk(Arc<Trunk>, Arc<Pool>),
}

impl Way {
    fn send(&self, header: &Header, parts: &Parts<'_>) -> bool {
        match self {
            Self::Agent(link) => link.send(header, parts, None),
            // What a dead session does not take it gives back.
            Self::Trunk(trunk, pool) => {
                trunk.send(Outgoing::of_parts(header, parts, Arc::clone(pool)));
                true
            }
        }
    }
}

pub(super) struct Peer {
    pub id: ProcId,
    state: Mutex<State>,
    /// Of a process on another host: bytes that it has not taken yet, and bytes of its own that were taken
    /// here and not reported yet.
    waiting_bytes: AtomicU64,
    taken_bytes: AtomicU64,
    /// How much more than usual may wait, since senders have run out of patience.
    allowance: AtomicU64,
    parked: Mutex<Vec<Arc<Parker>>>,
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
        Self {
            id,
            state: Mutex::new(State::Apart { asked: false, queue: Vec::new() }),
            waiting_bytes: AtomicU64::new(0),
            taken_bytes: AtomicU64::new(0),
            allowance: AtomicU64::new(0),
            parked: Mutex::default(),
        }
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
            State::Far(way) => {
                if matches!(header.kind, Kind::Cast | Kind::Call) {
                    let blocks: u64 = parts.blocks.iter().map(|block| block.len).sum();
                    let bytes = blocks + parts.inline_bytes() as u64 + MESSAGE_BYTES;
                    self.waiting_bytes.fetch_add(bytes, SeqCst);
                }
                if !way.send(header, parts) {
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
            State::Linked(_) | State::Far(_) => {}
            State::Dead(obituary) => *state = State::Dead(obituary),
        }
    }

    pub fn link(&self) -> Option<Arc<Link>> {
        match &*lock(&self.state) {
            State::Linked(link) => Some(Arc::clone(link)),
            _ => None,
        }
    }

    /// The process is on another host: what waited goes this way. False when that was known, or it is dead.
    pub fn found(&self, way: &Way) -> bool {
        let mut state = lock(&self.state);
        let State::Apart { queue, .. } = &mut *state else { return false };
        for frame in std::mem::take(queue) {
            let parts = Parts { entries: frame.entries, inline: vec![&frame.inline], blocks: frame.blocks };
            way.send(&frame.header, &parts);
        }
        *state = State::Far(way.clone());
        true
    }

    /// The way to a process of another host.
    pub fn way(&self) -> Option<Way> {
        match &*lock(&self.state) {
            State::Far(way) => Some(way.clone()),
            _ => None,
        }
    }

    /// An agent that was lost is back.
    pub fn revive(&self) {
        let mut state = lock(&self.state);
        if matches!(&*state, State::Dead(_)) {
            *state = State::Apart { asked: false, queue: Vec::new() };
            self.waiting_bytes.store(0, SeqCst);
        }
    }

    /// The peer, on another host, has taken messages from its mailboxes.
    pub fn taken(&self, bytes: u64, poller: &Poller) {
        let before =
            self.waiting_bytes.fetch_update(SeqCst, SeqCst, |waiting| Some(waiting.saturating_sub(bytes)));
        if before.unwrap_or(0).saturating_sub(bytes) <= WINDOW_BYTES {
            self.allowance.store(0, SeqCst);
        }
        for parker in lock(&self.parked).drain(..) {
            poller.wake(&parker);
        }
    }

    /// Messages of the peer, on another host, were taken here. Returns what it has to be told.
    pub fn consumed(&self, bytes: u64) -> Option<u64> {
        if self.taken_bytes.fetch_add(bytes, SeqCst) + bytes < REPORT_BYTES {
            return None;
        }
        Some(self.taken_bytes.swap(0, SeqCst)).filter(|taken| *taken > 0)
    }

    /// Whether a sender should wait before it sends more.
    pub fn is_congested(&self) -> bool {
        match &*lock(&self.state) {
            State::Linked(link) => link.is_congested(),
            State::Far(way) => {
                let agent = matches!(way, Way::Agent(link) if link.is_congested());
                agent || self.waiting_bytes.load(SeqCst) > WINDOW_BYTES + self.allowance.load(SeqCst)
            }
            _ => false,
        }
    }

    /// A sender has waited in vain; see [`Link::allow_more`].
    pub fn allow_more(&self) {
        match &*lock(&self.state) {
            State::Linked(link) => link.allow_more(),
            State::Far(way) => {
                if let Way::Agent(link) = way
                    && link.is_congested()
                {
                    link.allow_more();
                }
                self.allowance.fetch_add(WINDOW_BYTES, SeqCst);
            }
            _ => {}
        }
    }

    /// Wakes the calling thread when it may send more.
    pub fn wake_when_drained(&self, parker: &Arc<Parker>) {
        match &*lock(&self.state) {
            State::Linked(link) => link.wake_when_drained(parker),
            State::Far(way) => {
                if let Way::Agent(link) = way {
                    link.wake_when_drained(parker);
                }
                lock(&self.parked).push(Arc::clone(parker));
            }
            _ => {}
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
