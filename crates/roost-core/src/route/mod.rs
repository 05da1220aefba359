//! The node: one per process. It finds the link for each destination, delivers what arrives, and ends
//! every wait whose other side is gone.

mod dispatch;
mod far;
mod hosts;
mod peer;
mod wait;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use rustc_hash::{FxHashMap, FxHashSet};
use rustix::io::Errno;

pub use hosts::HostsError;
pub use peer::Target;
pub use wait::WaitEnd;

use crate::id::{BoxId, ProcId, SYSTEM_BOX};
use crate::link::{Link, Poller};
use crate::lock;
use crate::mailbox::{Bell, Call, Closed, Mailbox, Mode, Request};
use crate::message::{Message, Parts};
use crate::region::Pool;
use crate::wire::{Header, Kind, SHARED, Status};

use crate::mailbox::Graces;
use peer::Peer;

/// Everything a process knows of others.
pub struct Node {
    /// This process.
    pub me: ProcId,
    agent: Option<ProcId>,
    poller: Arc<Poller>,
    pool: Arc<Pool>,
    peers: Mutex<FxHashMap<ProcId, Arc<Peer>>>,
    links: Mutex<FxHashMap<u64, Arc<Link>>>,
    loops: Mutex<FxHashMap<u64, (OwnedFd, Arc<Bell>)>>,
    boxes: Mutex<Boxes>,
    calls: Mutex<FxHashMap<u64, Weak<Call>>>,
    loads: Mutex<FxHashMap<(ProcId, BoxId), Weak<AtomicUsize>>>,
    forgotten: Mutex<Forgotten>,
    graces: Graces,
    brokered: Mutex<FxHashMap<ProcId, FxHashSet<ProcId>>>,
    /// Until when, who asks, and for whom.
    parked: Mutex<Vec<(Instant, ProcId, ProcId)>>,
    next_id: AtomicU64,
    last_tick: Mutex<Instant>,
    undelivered: AtomicU64,
    homes: Mutex<far::Homes>,
    hosts: Mutex<hosts::Hosts>,
    has_hosts: AtomicBool,
    myself: Weak<Self>,
}

#[derive(Default)]
struct Boxes {
    open: FxHashMap<BoxId, Arc<Mailbox>>,
    closed: FxHashMap<BoxId, Closed>,
    closed_order: VecDeque<BoxId>,
    limbo: FxHashMap<BoxId, (Instant, Vec<Message>)>,
}

/// Most closed mailboxes of which the reason is kept, and most forgotten calls; older ones are just unknown.
const REMEMBERED: usize = 4096;
/// Counts of calls under way are looked through for unused ones when there are more than this.
const LOADS_KEPT: usize = 4096;

impl Boxes {
    fn remember(&mut self, id: BoxId, closed: Closed) {
        if self.closed.insert(id, closed).is_none() {
            self.closed_order.push_back(id);
        }
        while self.closed_order.len() > REMEMBERED {
            if let Some(oldest) = self.closed_order.pop_front() {
                self.closed.remove(&oldest);
            }
        }
    }
}

/// Calls whose owner has gone before the answer. A set, oldest first out.
#[derive(Default)]
struct Forgotten {
    ids: FxHashSet<u64>,
    order: VecDeque<u64>,
}

impl Forgotten {
    fn add(&mut self, id: u64) {
        if self.ids.insert(id) {
            self.order.push_back(id);
        }
        while self.order.len() > REMEMBERED {
            if let Some(oldest) = self.order.pop_front() {
                self.ids.remove(&oldest);
            }
        }
    }
}

/// Counters and sizes, for tests and dashboards.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeStats {
    /// Live links.
    pub links: usize,
    /// Calls that wait for answers.
    pub calls: usize,
    /// Open mailboxes.
    pub mailboxes: usize,
    /// Messages dropped because nobody was there to take them.
    pub undelivered: u64,
    /// Bytes of shared memory reserved for payloads.
    pub pool_bytes: usize,
    /// Blocks of it that receivers still use.
    pub pool_blocks: usize,
}

impl Node {
    /// A node named `me`. With an `agent`, links to unknown processes are asked for there; without one
    /// this node is the agent and makes them.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn new(me: ProcId, agent: Option<ProcId>, pool_limit_bytes: usize) -> Result<Arc<Self>, Errno> {
        let poller = Arc::new(Poller::new()?);
        let node = Arc::new_cyclic(|myself| Self {
            me,
            agent,
            poller,
            pool: Arc::new(Pool::new(pool_limit_bytes)),
            peers: Mutex::default(),
            links: Mutex::default(),
            loops: Mutex::default(),
            boxes: Mutex::default(),
            calls: Mutex::default(),
            loads: Mutex::default(),
            forgotten: Mutex::default(),
            graces: Graces::default(),
            brokered: Mutex::default(),
            parked: Mutex::default(),
            next_id: AtomicU64::new(1),
            last_tick: Mutex::new(Instant::now()),
            undelivered: AtomicU64::new(0),
            homes: Mutex::default(),
            hosts: Mutex::default(),
            has_hosts: AtomicBool::new(false),
            myself: Weak::clone(myself),
        });
        node.open_box(SYSTEM_BOX);
        Ok(node)
    }

    /// The poller, for foreign event loops.
    #[must_use]
    pub fn poller(&self) -> &Arc<Poller> {
        &self.poller
    }

    fn fresh(&self) -> u64 {
        self.next_id.fetch_add(1, Relaxed)
    }

    /// Takes a connected socket as the link with `peer`; what waited for it is sent.
    ///
    /// # Errors
    /// Whatever the kernel says.
    pub fn adopt(&self, peer: ProcId, socket: OwnedFd) -> Result<(), Errno> {
        let key = self.fresh();
        let link = Link::new(peer, key, socket, Arc::clone(&self.poller), Arc::clone(&self.pool))?;
        lock(&self.links).insert(key, Arc::clone(&link));
        self.peer(peer).connect(link);
        // The socket may have become readable before the link could be found.
        self.read(key);
        self.settle_parked(peer);
        Ok(())
    }

    /// Addresses mailbox `box_id` on each of `procs`.
    #[must_use]
    pub fn target(&self, box_id: BoxId, procs: Vec<ProcId>) -> Arc<Target> {
        let peers = procs.iter().map(|proc| self.peer(*proc)).collect();
        let mut known = lock(&self.loads);
        if known.len() > LOADS_KEPT && known.len() == known.capacity() {
            known.retain(|_, load| load.strong_count() > 0);
        }
        let loads = procs
            .iter()
            .map(|proc| {
                let entry = known.entry((*proc, box_id)).or_default();
                entry.upgrade().unwrap_or_else(|| {
                    let fresh = Arc::new(AtomicUsize::new(0));
                    *entry = Arc::downgrade(&fresh);
                    fresh
                })
            })
            .collect();
        drop(known);
        Arc::new(Target { box_id, procs, loads, peers })
    }

    /// Opens a mailbox, with what has come for it already.
    pub fn open_box(&self, id: BoxId) -> Arc<Mailbox> {
        let mut boxes = lock(&self.boxes);
        if let Some(known) = boxes.open.get(&id) {
            return Arc::clone(known);
        }
        let mailbox = Arc::new(Mailbox::new(id, Arc::clone(&self.poller)));
        boxes.open.insert(id, Arc::clone(&mailbox));
        let early = boxes.limbo.remove(&id).map(|(_, messages)| messages).unwrap_or_default();
        for message in early {
            let _ = mailbox.push(message);
        }
        mailbox
    }

    /// A mailbox under a name that nobody has.
    pub fn open_fresh_box(&self) -> Arc<Mailbox> {
        self.open_box((self.fresh() << 1) | 1)
    }

    /// Closes a mailbox for good: what waits, what is being handled and what comes later gets `closed`.
    pub fn close_box(&self, mailbox: &Mailbox, closed: &Closed) {
        {
            let mut boxes = lock(&self.boxes);
            boxes.open.remove(&mailbox.id);
            if mailbox.id & 1 == 0 {
                boxes.remember(mailbox.id, closed.clone());
            }
        }
        let (waiting, open) = mailbox.close(closed.clone());
        for request in open {
            self.refuse(&request, closed);
        }
        for message in waiting {
            self.bounce(&message, closed);
        }
    }

    /// Sends to all ranks of the target; nobody answers. False when a rank, or its mailbox, is known to be gone.
    pub fn cast(&self, target: &Target, header: Header, parts: &[&[u8]]) -> bool {
        let header = Header { kind: Kind::Cast, ..header };
        let placed = self.place(target, parts);
        let mut reached = true;
        for index in 0..target.procs.len() {
            reached &= self.send_to(target, index, header, &placed).unwrap_or(false);
        }
        reached
    }

    /// Calls all ranks of the target.
    pub fn call(&self, target: &Arc<Target>, header: Header, parts: &[&[u8]], mode: Mode) -> Arc<Call> {
        let id = self.fresh();
        let call = Arc::new(Call::new(id, Arc::clone(target), mode, Arc::clone(&self.poller)));
        lock(&self.calls).insert(id, Arc::downgrade(&call));
        let header = Header { kind: Kind::Call, call: id, ..header };
        let placed = self.place(target, parts);
        for index in 0..target.procs.len() {
            if let Err(obituary) = self.send_to(target, index, header, &placed) {
                self.mourn(&call, index as u32, &obituary);
            }
        }
        call
    }

    fn place<'a>(&self, target: &Target, parts: &[&'a [u8]]) -> Parts<'a> {
        Parts::place(parts, &self.pool, target.procs.len() as u32)
    }

    fn send_to(
        &self,
        target: &Target,
        index: usize,
        mut header: Header,
        placed: &Parts<'_>,
    ) -> Result<bool, Arc<[u8]>> {
        header.src = self.me;
        header.dest = target.procs[index];
        header.dest_box = target.box_id;
        header.index = index as u32;
        if target.procs.len() > 1 {
            header.flags |= SHARED;
        }
        let sent = self.post(&target.peers[index], &header, placed);
        if sent.is_err() {
            for block in &placed.blocks {
                self.pool.give_back(block.slab, block.offset, 1);
            }
        }
        sent
    }

    /// Sends one frame to one process, or says why that process is gone. False when its mailbox is known to
    /// be closed.
    fn post(&self, peer: &Peer, header: &Header, placed: &Parts<'_>) -> Result<bool, Arc<[u8]>> {
        if peer.id == self.me {
            return Ok(self.deliver_here(header, placed));
        }
        if peer.send(header, placed)? {
            self.ask_for_link(peer.id);
        }
        Ok(true)
    }

    fn ask_for_link(&self, with: ProcId) {
        match self.agent {
            Some(agent) if agent != with => {
                let (home, address) = lock(&self.homes).find(with);
                let header =
                    Header { kind: Kind::Connect, src: self.me, dest: with, arg: home, ..Header::default() };
                let parts = Parts::place(&[address.as_bytes()], &self.pool, 0);
                if let Err(obituary) = self.post(&self.peer(agent), &header, &parts) {
                    self.bury(with, &obituary);
                }
            }
            _ => {}
        }
    }

    /// Answers a request, once; later answers are dropped.
    pub fn reply(&self, mailbox: &Mailbox, request: &Request, status: Status, parts: &[&[u8]]) {
        if mailbox.settle(request) {
            self.send_reply(request, status, parts);
        }
    }

    fn send_reply(&self, request: &Request, status: Status, parts: &[&[u8]]) {
        let header = Header {
            kind: Kind::Reply,
            status,
            src: self.me,
            dest: request.caller,
            call: request.call,
            index: request.index,
            ..Header::default()
        };
        let placed = Parts::place(parts, &self.pool, 1);
        if self.post(&self.peer(request.caller), &header, &placed).is_err() {
            for block in &placed.blocks {
                self.pool.give_back(block.slab, block.offset, 1);
            }
        }
    }

    fn refuse(&self, request: &Request, closed: &Closed) {
        self.send_reply(request, closed.status, &[&closed.reason]);
    }

    /// The caller no longer wants the answers that have not come.
    pub fn cancel(&self, call: &Call) {
        lock(&self.calls).remove(&call.id);
        let none = Parts::place(&[], &self.pool, 0);
        for index in call.missing() {
            let header = Header { kind: Kind::Cancel, call: call.id, ..Header::default() };
            let _ = self.send_to(&call.target, index as usize, header, &none);
        }
    }

    /// The call's owner is gone. An exception that still comes for it is handed to the runtime, so that it
    /// is not lost.
    pub fn forget_call(&self, call: &Call) {
        if lock(&self.calls).remove(&call.id).is_some() && !call.is_done() {
            lock(&self.forgotten).add(call.id);
        }
    }

    /// Whether a send to this target should wait for queues to drain.
    #[must_use]
    pub fn is_congested(&self, target: &Target) -> bool {
        target.peers.iter().any(|peer| peer.is_congested())
    }

    /// Wakes the calling thread when the queues of this target have gone down.
    pub fn wake_when_drained(&self, target: &Target) {
        let parker = crate::park::Parker::current();
        for peer in target.peers.iter().filter(|peer| peer.is_congested()) {
            peer.wake_when_drained(&parker);
        }
    }

    /// A sender to this target has waited in vain: more may wait from now on.
    pub fn allow_more(&self, target: &Target) {
        for peer in target.peers.iter().filter(|peer| peer.is_congested()) {
            peer.allow_more();
        }
    }

    fn peer(&self, id: ProcId) -> Arc<Peer> {
        Arc::clone(lock(&self.peers).entry(id).or_insert_with(|| Arc::new(Peer::new(id))))
    }

    /// Links whose queues are not empty keep the process from ending; true when all is written.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        lock(&self.links).values().all(|link| link.is_flushed())
    }

    /// Closes everything: waits end, peers see the end of their links.
    pub fn shutdown(&self) {
        self.poller.stop();
        let links: Vec<_> = lock(&self.links).drain().map(|(_, link)| link).collect();
        for link in links {
            link.close();
        }
    }

    /// Counters and sizes.
    #[must_use]
    pub fn stats(&self) -> NodeStats {
        let pool = self.pool.stats();
        NodeStats {
            links: lock(&self.links).len(),
            calls: lock(&self.calls).len(),
            mailboxes: lock(&self.boxes).open.len(),
            undelivered: self.undelivered.load(Relaxed),
            pool_bytes: pool.reserved_bytes,
            pool_blocks: pool.used_blocks,
        }
    }

    /// Gives idle shared memory back at once.
    pub fn trim(&self) {
        let gone = self.pool.trim_all();
        self.announce_gone(&gone);
    }

    fn announce_gone(&self, slabs: &[u64]) {
        if !slabs.is_empty() {
            let links: Vec<_> = lock(&self.links).values().cloned().collect();
            for link in links {
                link.forget_slabs(slabs);
            }
        }
    }
}
