//! Processes of other hosts. A process sends through the agent of its host; the agents pass frames on over the
//! session between them, and learn from the frames that pass where a process lives, as a bridge does between
//! networks. Which of its processes are in touch with whom an agent knows for the sake of obituaries.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::Node;
use super::peer::{Peer, Way};
use crate::id::ProcId;
use crate::link::lanes::{Arrival, Outgoing};
use crate::link::trunk::Trunk;
use crate::lock;
use crate::message::{Message, Parts};
use crate::wire::{Header, Kind};

/// A process of this host that another host asks for may take this long to be started: its agent may have to
/// import what it needs first.
const FAR_LIMBO: Duration = Duration::from_secs(120);

/// Where processes live, as far as Python has said so: the agent of the host, and how to dial it.
#[derive(Default)]
pub(super) struct Homes {
    meshes: FxHashMap<u64, MeshHome>,
    procs: FxHashMap<ProcId, (u64, Arc<str>)>,
}

struct MeshHome {
    per_host: u32,
    hosts: Vec<(u64, Arc<str>)>,
}

impl Homes {
    /// The agent of a process's host and its address; 0 when it is this host, or unknown.
    pub fn find(&self, proc: ProcId) -> (u64, Arc<str>) {
        let of_mesh = || {
            let mesh = self.meshes.get(&proc.mesh)?;
            mesh.hosts.get((proc.rank / mesh.per_host) as usize).cloned()
        };
        self.procs.get(&proc).cloned().or_else(of_mesh).unwrap_or_else(|| (0, Arc::from("")))
    }
}

impl Way {
    fn is(&self, other: &Trunk) -> bool {
        matches!(self, Self::Trunk(trunk, _) if std::ptr::eq(Arc::as_ptr(trunk), other))
    }
}

/// The process that an agent is.
pub(super) fn agent_proc(agent: u64) -> ProcId {
    ProcId { mesh: agent, rank: 0 }
}

impl Node {
    /// The ranks of a mesh live on these hosts (agent, address), `per_host` on each, in order.
    pub fn learn(&self, mesh: u64, per_host: u32, hosts: &[(u64, String)]) {
        if per_host > 0 {
            let hosts = hosts.iter().map(|(agent, address)| (*agent, Arc::from(address.as_str()))).collect();
            lock(&self.homes).meshes.insert(mesh, MeshHome { per_host, hosts });
        }
    }

    /// A process lives on the host of this agent.
    pub fn learn_proc(&self, proc: ProcId, agent: u64, address: &str) {
        if Some(agent_proc(agent)) == self.agent || agent == self.me.mesh {
            return;
        }
        lock(&self.homes).procs.insert(proc, (agent, Arc::from(address)));
        if proc == agent_proc(agent) {
            self.peer(proc).revive();
        }
    }

    /// A frame that the agent of this host has passed on: its source is reached that way.
    pub(super) fn note_origin(&self, agent: ProcId, mut message: Message) -> Message {
        let header = &message.header;
        if !matches!(
            header.kind,
            Kind::Cast | Kind::Call | Kind::Reply | Kind::Cancel | Kind::Taken | Kind::Route
        ) {
            return message;
        }
        let source = header.src;
        if let Some(link) = self.peer(agent).link() {
            self.peer(source).found(&Way::Agent(link));
        }
        let bytes = (0..message.parts.len()).map(|part| message.part(part).len() as u64).sum::<u64>();
        if let Some(credit) = &mut message.credit {
            credit.came_from(self.myself.clone(), source, bytes + crate::link::MESSAGE_BYTES);
        }
        message
    }

    /// A message from another host was taken from its mailbox.
    pub(crate) fn consumed(&self, source: ProcId, bytes: u64) {
        let peer = self.peer(source);
        if let Some(taken) = peer.consumed(bytes) {
            let header =
                Header { kind: Kind::Taken, src: self.me, dest: source, arg: taken, ..Header::default() };
            let _ = self.post(&peer, &header, &Parts::place(&[], &self.pool, 0));
        }
    }

    /// The agent passes on what is for others; gives back what is for itself.
    pub(super) fn forward(&self, message: Message) -> Option<Message> {
        let header = message.header;
        if !matches!(header.kind, Kind::Cast | Kind::Call | Kind::Reply | Kind::Cancel | Kind::Taken) {
            return Some(message);
        }
        let peer = self.peer(header.dest);
        if let Some(Way::Trunk(trunk, pool)) = peer.way() {
            self.in_touch(header.src, header.dest, &trunk);
            trunk.send(Outgoing::of_message(message, pool));
        } else {
            match peer.obituary() {
                Some(obituary) => self.tell_of_death(header.src, header.dest, &obituary),
                None => _ = self.undelivered.fetch_add(1, Relaxed),
            }
        }
        None
    }

    /// A process of this host and one of the host behind the session will want each other's obituary.
    fn in_touch(&self, near: ProcId, far: ProcId, trunk: &Trunk) {
        let agent = agent_proc(trunk.agent.load(SeqCst));
        let mut brokered = lock(&self.brokered);
        brokered.entry(near).or_default().insert(agent);
        brokered.entry(far).or_default().insert(near);
    }

    /// A process of this host asks for the way to another process.
    pub(super) fn connect(&self, from: ProcId, message: &Message) {
        let (wanted, home) = (message.header.dest, message.header.arg);
        let peer = self.peer(wanted);
        if home != 0 && home != self.me.mesh && peer.link().is_none() && peer.way().is_none() {
            let address = String::from_utf8_lossy(message.part(0));
            match self.trunk_to(home, &address) {
                Ok(trunk) => {
                    peer.found(&Way::Trunk(trunk, Arc::clone(&self.pool)));
                }
                Err(why) => {
                    let obituary = super::hosts::obituary_of(&address, &why);
                    self.tell_of_death(from, wanted, obituary.as_bytes());
                    return;
                }
            }
        }
        self.broker(from, wanted);
    }

    /// Brings two processes together of which one is on another host; false when none is.
    pub(super) fn broker_afar(&self, one: &Peer, other: &Peer) -> bool {
        let none = Parts::place(&[], &self.pool, 0);
        if let Some(Way::Trunk(trunk, pool)) = other.way() {
            self.in_touch(one.id, other.id, &trunk);
            let ask = Header {
                kind: Kind::Connect,
                src: self.me,
                dest: other.id,
                arg: trunk.agent.load(SeqCst),
                ..Header::default()
            };
            trunk.send(Outgoing::of_parts(&ask, &none, pool));
            if let Some(link) = one.link() {
                let route = Header { kind: Kind::Route, src: other.id, dest: one.id, ..Header::default() };
                link.send(&route, &none, None);
            }
            true
        } else if let Some(Way::Trunk(trunk, pool)) = one.way() {
            self.in_touch(other.id, one.id, &trunk);
            let ask = Header { kind: Kind::Connect, src: self.me, dest: one.id, ..Header::default() };
            trunk.send(Outgoing::of_parts(&ask, &none, pool));
            true
        } else {
            false
        }
    }

    /// A frame has come from another host.
    pub(super) fn arrive(&self, trunk: &Arc<Trunk>, mut arrival: Arrival) {
        let header = arrival.header;
        let agent = agent_proc(trunk.agent.load(SeqCst));
        match header.kind {
            Kind::Connect => self.asked_from_afar(agent, header.dest),
            Kind::Obituary => {
                let source = self.peer(header.src);
                // Each host speaks for its own processes only.
                if source.way().is_some_and(|way| way.is(trunk)) {
                    let owner = if header.dest == agent { self.me } else { header.dest };
                    self.publish_obituary(header.src, owner, arrival.first());
                } else if source.link().is_none() && source.obituary().is_none() {
                    self.tell_of_death(header.dest, header.src, arrival.first());
                }
            }
            Kind::Cast | Kind::Call | Kind::Reply | Kind::Cancel | Kind::Taken => {
                self.peer(header.src).found(&Way::Trunk(Arc::clone(trunk), Arc::clone(&self.pool)));
                if header.dest == self.me {
                    self.dispatch(agent, arrival.into_message());
                    return;
                }
                self.in_touch(header.dest, header.src, trunk);
                let peer = self.peer(header.dest);
                if peer.link().is_none() {
                    self.expect(agent, &peer);
                }
                if peer.obituary().is_none() && peer.way().is_none() {
                    let parts = arrival.parts();
                    if peer.send(&header, &parts).is_err() {
                        for block in &parts.blocks {
                            self.pool.give_back(block.slab, block.offset, 1);
                        }
                    }
                }
            }
            Kind::Link | Kind::Slab | Kind::Release | Kind::SlabGone | Kind::Route => {}
        }
    }

    /// Another host wants to hear of the end of a process of this one.
    fn asked_from_afar(&self, agent: ProcId, wanted: ProcId) {
        if wanted == self.me {
            return;
        }
        let peer = self.peer(wanted);
        lock(&self.brokered).entry(wanted).or_default().insert(agent);
        if peer.link().is_none() {
            self.expect(agent, &peer);
        }
    }

    /// A process that is not here: it is dead, or about to be started.
    fn expect(&self, agent: ProcId, peer: &Peer) {
        if let Some(obituary) = peer.obituary() {
            self.tell_of_death(agent, peer.id, &obituary);
            return;
        }
        let mut parked = lock(&self.parked);
        if !parked.iter().any(|(_, asks, wanted)| (*asks, *wanted) == (agent, peer.id)) {
            parked.push((Instant::now() + FAR_LIMBO, agent, peer.id));
        }
    }

    /// The host behind a session is dead, and with it all of its processes.
    pub(super) fn host_died(&self, trunk: &Arc<Trunk>, why: &str) {
        let obituary = super::hosts::obituary_of(&trunk.name(), why);
        let lost: Vec<ProcId> = {
            let peers = lock(&self.peers);
            let theirs = peers.values().filter(|peer| peer.way().is_some_and(|way| way.is(trunk)));
            theirs.map(|peer| peer.id).collect()
        };
        for proc in lost {
            self.publish_obituary(proc, self.me, obituary.as_bytes());
        }
    }
}
