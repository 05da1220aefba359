//! What arrives: to mailboxes, to calls, to the broker of links, to the register of deaths.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::Node;
use crate::id::{ProcId, SYSTEM_BOX};
use crate::link::{LinkError, Ready};
use crate::lock;
use crate::mailbox::{Call, Closed, request_of};
use crate::message::{Message, Part, Parts};
use crate::region::{ReleaseSink, View};
use crate::wire::{CREATES, Entry, Header, Kind, SHARED, Status, URGENT};

/// A message for a mailbox that nobody has opened waits this long: a reference to an actor can overtake
/// the actor's own creation.
const LIMBO: Duration = Duration::from_secs(10);

impl Node {
    pub(super) fn handle(&self, events: &[Ready]) {
        for event in events {
            if event.writable {
                let link = lock(&self.links).get(&event.key).cloned();
                if let Some(link) = link {
                    link.flush();
                } else {
                    self.host_ready(event.key, event.readable, true);
                    continue;
                }
            }
            if event.readable {
                self.read(event.key);
            }
        }
    }

    pub(super) fn read(&self, key: u64) {
        let Some(link) = lock(&self.links).get(&key).cloned() else {
            if let Some((_, bell)) = lock(&self.loops).get(&key) {
                bell.ring_outside();
                return;
            }
            self.host_ready(key, true, false);
            return;
        };
        let end = {
            let _order = lock(&link.delivering);
            let mut messages = Vec::new();
            let end = link.receive(&mut messages);
            for message in messages {
                self.dispatch(link.peer, message);
            }
            end
        };
        if let Err(error) = end {
            lock(&self.links).remove(&key);
            link.close();
            if self.peer(link.peer).lose(&link, &error) {
                self.lost(link.peer, &error);
            }
        }
    }

    /// Without its link to the agent a process is on its own; other links wait for the obituary.
    fn lost(&self, peer: ProcId, why: &LinkError) {
        if self.agent == Some(peer) {
            let obituary = Arc::from(format!("lost:the host agent has died ({why})").as_bytes());
            let peers: Vec<_> = lock(&self.peers).keys().copied().filter(|id| *id != self.me).collect();
            for id in peers {
                self.bury(id, &obituary);
            }
        } else if self.agent.is_none() {
            // The agent's own Python reaps its children and publishes the obituary.
            let header = Header { kind: Kind::Obituary, src: peer, ..Header::default() };
            self.to_system(Message::of(header, &[format!("closed:{why}").as_bytes()]));
        } else if matches!(why, LinkError::Wire(_) | LinkError::Region) {
            // It lives, perhaps, but nothing that it says can be understood any more.
            self.bury(peer, &Arc::from(format!("lost:{why}").as_bytes()));
        }
    }

    pub(super) fn dispatch(&self, from: ProcId, message: Message) {
        let message = match self.agent {
            Some(agent) if agent == from && message.header.src != from => self.note_origin(agent, message),
            None if message.header.dest != self.me => match self.forward(message) {
                Some(message) => message,
                None => return,
            },
            _ => message,
        };
        match message.header.kind {
            Kind::Cast | Kind::Call | Kind::Cancel => {
                self.deliver(message);
            }
            Kind::Reply => self.answer(message),
            Kind::Connect => self.connect(from, &message),
            Kind::Link => {
                if let (true, Some(socket)) = (self.agent == Some(from), message.fd) {
                    let _ = self.adopt(message.header.src, socket);
                }
            }
            Kind::Obituary => {
                if self.agent == Some(from) {
                    self.bury(message.header.src, &Arc::from(message.part(0)));
                }
            }
            Kind::Taken => self.peer(message.header.src).taken(message.header.arg, &self.poller),
            Kind::Slab | Kind::Release | Kind::SlabGone | Kind::Route => {}
        }
    }

    /// Brings a message to its mailbox; false when that is closed.
    fn deliver(&self, message: Message) -> bool {
        let header = message.header;
        if header.kind == Kind::Cancel {
            let known = lock(&self.boxes).open.get(&header.dest_box).cloned();
            if let Some(mailbox) = known {
                mailbox.cancel(&request_of(&message));
            }
            return true;
        }
        if header.flags & CREATES != 0 {
            self.open_box(header.arg);
        }
        let closed = {
            let mut boxes = lock(&self.boxes);
            if let Some(mailbox) = boxes.open.get(&header.dest_box).cloned() {
                // Under the lock, so that opening a mailbox cannot let a later message pass an early one.
                mailbox.push(message).err()
            } else if let Some(closed) = boxes.closed.get(&header.dest_box).cloned() {
                Some((Box::new(message), closed))
            } else if header.dest_box & 1 == 1 {
                // A port exists before its address does, so this one is closed.
                Some((Box::new(message), unknown()))
            } else {
                let limbo = boxes.limbo.entry(header.dest_box);
                limbo.or_insert_with(|| (Instant::now(), Vec::new())).1.push(message);
                None
            }
        };
        match closed {
            Some((message, closed)) => {
                self.bounce(&message, &closed);
                false
            }
            None => true,
        }
    }

    /// A message that cannot be taken: its caller is told, or it is counted.
    pub(super) fn bounce(&self, message: &Message, closed: &Closed) {
        if message.header.kind == Kind::Call {
            self.refuse(&request_of(message), closed);
        } else {
            let count = self.undelivered.fetch_add(1, Relaxed) + 1;
            // The runtime hears of the first, and then ever more rarely.
            if message.header.dest_box & 1 == 1 && count.is_power_of_two() {
                let header = Header { kind: Kind::Cast, src: message.header.src, ..Header::default() };
                self.to_system(Message::of(header, &[b"dropped", count.to_string().as_bytes()]));
            }
        }
    }

    fn answer(&self, message: Message) {
        let header = message.header;
        let call = {
            let mut calls = lock(&self.calls);
            let call = calls.get(&header.call).and_then(std::sync::Weak::upgrade);
            if call.is_none() {
                calls.remove(&header.call);
            }
            call
        };
        let Some(call) = call else {
            if header.status == Status::Raised && lock(&self.forgotten).ids.contains(&header.call) {
                self.to_system(message);
            }
            return;
        };
        if call.answer(header.index, header.status, message) {
            self.graces.add(&call);
        }
    }

    /// Delivers a frame of this process to itself; false when its mailbox is closed.
    pub(super) fn deliver_here(&self, header: &Header, placed: &Parts<'_>) -> bool {
        let mut payload = Vec::with_capacity(placed.inline_bytes());
        let mut inline = placed.inline.iter();
        let mut blocks = placed.blocks.iter();
        let mut parts = Vec::with_capacity(placed.entries.len());
        for entry in &placed.entries {
            match *entry {
                Entry::Inline(_) => {
                    let start = payload.len();
                    payload.extend_from_slice(inline.next().copied().unwrap_or(&[]));
                    parts.push(Part::Inline(start..payload.len()));
                }
                Entry::Block { slab, offset, len } => {
                    let Some(block) = blocks.next() else { continue };
                    let sink: Arc<dyn ReleaseSink> = self.pool.clone();
                    let shared = header.flags & SHARED != 0;
                    match View::new(Arc::clone(&block.map), (slab, offset, len), shared, sink) {
                        Ok(view) => parts.push(Part::View(view)),
                        Err(_) => {
                            let start = payload.len();
                            parts.push(Part::Inline(start..start));
                        }
                    }
                }
            }
        }
        let message =
            Message { header: *header, payload: payload.into_boxed_slice(), parts, fd: None, credit: None };
        if matches!(header.kind, Kind::Cast) {
            return self.deliver(message);
        }
        self.dispatch(self.me, message);
        true
    }

    /// Makes a link between two processes of this host.
    pub(super) fn broker(&self, one: ProcId, other: ProcId) {
        if self.agent.is_some() {
            return;
        }
        let none = Parts::place(&[], &self.pool, 0);
        let (first, second) = (self.peer(one), self.peer(other));
        if self.broker_afar(&first, &second) {
            return;
        }
        let (Some(to_one), Some(to_other)) = (first.link(), second.link()) else {
            match second.obituary() {
                Some(obituary) => self.tell_of_death(one, other, &obituary),
                // A process that its host is about to start: settled when it is there.
                None => lock(&self.parked).push((Instant::now() + LIMBO, one, other)),
            }
            return;
        };
        if !lock(&self.brokered).entry(one).or_default().insert(other) {
            return;
        }
        lock(&self.brokered).entry(other).or_default().insert(one);
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        if let Ok((left, right)) = pair {
            for (link, peer, socket) in [(to_one, other, left), (to_other, one, right)] {
                let header = Header { kind: Kind::Link, src: peer, ..Header::default() };
                link.send(&header, &none, Some(socket));
            }
        }
    }

    pub(super) fn tell_of_death(&self, reader: ProcId, dead: ProcId, obituary: &[u8]) {
        let header = Header { kind: Kind::Obituary, src: dead, dest: reader, ..Header::default() };
        let parts = Parts::place(&[obituary], &self.pool, 0);
        let peer = self.peer(reader);
        if reader != self.me && (peer.link().is_some() || peer.way().is_some()) {
            let _ = peer.send(&header, &parts);
        }
    }

    /// Makes the links that were asked for before `arrived` was there.
    pub(super) fn settle_parked(&self, arrived: ProcId) {
        let ready: Vec<_> = {
            let mut parked = lock(&self.parked);
            let (ready, rest) = parked.drain(..).partition(|(_, _, other)| *other == arrived);
            *parked = rest;
            ready
        };
        for (_, one, other) in ready {
            self.broker(one, other);
        }
    }

    /// Links two processes before either asks (the owner of a new process and the process).
    pub fn introduce(&self, one: ProcId, other: ProcId) {
        self.broker(one, other);
    }

    /// The agent says that a process has ended, to all that were linked with it and to `owner`.
    pub fn publish_obituary(&self, dead: ProcId, owner: ProcId, obituary: &[u8]) {
        self.drain(dead);
        let mut readers = lock(&self.brokered).remove(&dead).unwrap_or_default();
        readers.insert(owner);
        let asking: Vec<_> = {
            let mut parked = lock(&self.parked);
            let (asking, rest) = parked.drain(..).partition(|(_, _, other)| *other == dead);
            *parked = rest;
            asking
        };
        readers.extend(asking.into_iter().map(|(_, one, _)| one));
        for reader in readers {
            if let Some(others) = lock(&self.brokered).get_mut(&reader) {
                others.remove(&dead);
            }
            self.tell_of_death(reader, dead, obituary);
        }
        self.bury(dead, &Arc::from(obituary));
    }

    /// A process is gone: what it had sent before still counts, what waits for it ends.
    pub(super) fn bury(&self, dead: ProcId, obituary: &Arc<[u8]>) {
        self.drain(dead);
        let (waiting, news) = self.peer(dead).bury(obituary);
        if !news {
            return;
        }
        for (_, blocks) in waiting {
            for block in blocks {
                self.pool.give_back(block.slab, block.offset, 1);
            }
        }
        let calls: Vec<_> = lock(&self.calls).values().filter_map(std::sync::Weak::upgrade).collect();
        for call in calls {
            for (index, proc) in call.target.procs.iter().enumerate() {
                if *proc == dead && call.is_open(index) {
                    self.mourn(&call, index as u32, obituary);
                }
            }
        }
        let header = Header {
            kind: Kind::Obituary,
            flags: URGENT,
            src: dead,
            dest_box: SYSTEM_BOX,
            ..Header::default()
        };
        self.to_system(Message::of(header, &[obituary]));
    }

    /// Takes what a process that has ended had still sent: that comes before the news of its end.
    fn drain(&self, dead: ProcId) {
        let Some(link) = self.peer(dead).link() else { return };
        let _order = lock(&link.delivering);
        let mut messages = Vec::new();
        while link.receive(&mut messages).is_ok() && !messages.is_empty() {
            for message in messages.drain(..) {
                self.dispatch(dead, message);
            }
        }
        for message in messages {
            self.dispatch(dead, message);
        }
    }

    pub(super) fn mourn(&self, call: &Arc<Call>, index: u32, obituary: &[u8]) {
        let header = Header { kind: Kind::Reply, status: Status::Dead, index, ..Header::default() };
        if call.answer(index, Status::Dead, Message::of(header, &[obituary])) {
            self.graces.add(call);
        }
    }

    pub(super) fn to_system(&self, message: Message) {
        let system = lock(&self.boxes).open.get(&SYSTEM_BOX).cloned();
        if let Some(system) = system {
            let _ = system.push(message);
        }
    }

    pub(super) fn expire(&self, now: Instant) {
        let overdue: Vec<(ProcId, String)> = {
            let peers = lock(&self.peers);
            let lost = peers.values().filter_map(|peer| Some((peer.id, peer.overdue()?)));
            lost.filter(|(_, (due, _))| *due <= now).map(|(id, (_, why))| (id, why)).collect()
        };
        if self.agent.is_some() {
            for (id, why) in overdue {
                let obituary = format!("lost:{why}, and the host agent did not say why");
                self.bury(id, &Arc::from(obituary.as_bytes()));
            }
        }
        let strangers: Vec<_> = {
            let mut parked = lock(&self.parked);
            let (late, rest) = parked.drain(..).partition(|(until, _, _)| *until <= now);
            *parked = rest;
            late
        };
        for (_, one, other) in strangers {
            self.tell_of_death(one, other, b"unknown:");
        }
        let expired: Vec<Message> = {
            let mut boxes = lock(&self.boxes);
            let late: Vec<_> = boxes
                .limbo
                .iter()
                .filter(|(_, (since, _))| now.duration_since(*since) >= LIMBO)
                .map(|(id, _)| *id)
                .collect();
            late.iter().filter_map(|id| boxes.limbo.remove(id)).flat_map(|(_, all)| all).collect()
        };
        let closed = unknown();
        for message in &expired {
            self.bounce(message, &closed);
        }
    }
}

fn unknown() -> Closed {
    Closed { status: Status::Unknown, reason: Arc::from(&b""[..]) }
}
