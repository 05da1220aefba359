//! Frames of many senders on one stream between hosts. Each pair of a sender and a receiver has a lane, and
//! lanes take turns in chunks: a huge frame holds up what belongs behind it, and nothing else.
//!
//! Big parts come off the stream straight into blocks of the receiving pool, so that they reach their process
//! in shared memory, as if they had been sent on that host. Memory grows only with bytes that have arrived.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::id::ProcId;
use crate::message::{Message, Part, Parts};
use crate::region::{BLOCK_MIN_BYTES, Block, Pool};
use crate::wire::{Entry, Header, Progress, SHARED, WireError, decode, encode};

/// Most payload bytes of one chunk.
pub const CHUNK_BYTES: usize = 64 << 10;
/// Most bytes that one frame may announce to have in blocks.
pub const MAX_BLOCK_BYTES: u64 = 1 << 38;
/// Most frames that may be on their way at once.
const MAX_LANES: usize = 1 << 16;

enum Body {
    /// A part of a message that came from a process of this host; it keeps the message.
    Part(usize),
    /// A block of our own pool.
    Block(Block),
}

/// A frame on its way out.
pub struct Outgoing {
    lane: (ProcId, ProcId),
    head: Vec<u8>,
    bodies: Vec<Body>,
    message: Option<Message>,
    pool: Arc<Pool>,
    /// Which of head (0) and bodies (from 1) comes next, and how much of it is cut already.
    next: usize,
    offset: usize,
}

impl Outgoing {
    /// A frame that came from a process of this host; what it holds is given back when it is on its way.
    #[must_use]
    pub fn of_message(message: Message, pool: Arc<Pool>) -> Self {
        let mut entries = Vec::with_capacity(message.parts.len());
        let mut bodies = Vec::new();
        for number in 0..message.parts.len() {
            let len = message.part(number).len();
            entries.push(if len < BLOCK_MIN_BYTES {
                Entry::Inline(len as u64)
            } else {
                bodies.push(Body::Part(number));
                Entry::Block { slab: 1, offset: 0, len: len as u64 }
            });
        }
        let mut head = Vec::new();
        encode(&mut head, &message.header, &entries);
        for number in 0..message.parts.len() {
            let part = message.part(number);
            if part.len() < BLOCK_MIN_BYTES {
                head.extend_from_slice(part);
            }
        }
        let lane = (message.header.src, message.header.dest);
        let message = (!bodies.is_empty() || message.credit.is_some()).then_some(message);
        Self { lane, head, bodies, message, pool, next: 0, offset: 0 }
    }

    /// A frame of this process.
    #[must_use]
    pub fn of_parts(header: &Header, parts: &Parts<'_>, pool: Arc<Pool>) -> Self {
        let mut head = Vec::new();
        let mut entries = Vec::with_capacity(parts.entries.len());
        for entry in &parts.entries {
            entries.push(match *entry {
                Entry::Block { len, .. } => Entry::Block { slab: 1, offset: 0, len },
                inline => inline,
            });
        }
        encode(&mut head, header, &entries);
        for part in &parts.inline {
            head.extend_from_slice(part);
        }
        let bodies = parts.blocks.iter().cloned().map(Body::Block).collect();
        Self { lane: (header.src, header.dest), head, bodies, message: None, pool, next: 0, offset: 0 }
    }

    /// Moves up to `most` bytes to `into`; true when nothing is left.
    fn cut(&mut self, into: &mut Vec<u8>, mut most: usize) -> bool {
        while self.next <= self.bodies.len() {
            let bytes = match self.next.checked_sub(1) {
                None => &self.head[..],
                Some(number) => match (&self.bodies[number], &self.message) {
                    (Body::Part(part), Some(message)) => message.part(*part),
                    (Body::Block(block), _) => block.bytes(),
                    (Body::Part(_), None) => &[],
                },
            };
            let rest = &bytes[self.offset..];
            let count = rest.len().min(most);
            into.extend_from_slice(&rest[..count]);
            most -= count;
            if count < rest.len() {
                self.offset += count;
                return false;
            }
            (self.next, self.offset) = (self.next + 1, 0);
        }
        true
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        for body in &self.bodies {
            if let Body::Block(block) = body {
                self.pool.give_back(block.slab, block.offset, 1);
            }
        }
    }
}

/// The sending side.
#[derive(Default)]
pub struct LanesOut {
    lanes: FxHashMap<(ProcId, ProcId), (u32, VecDeque<Outgoing>)>,
    turns: VecDeque<(ProcId, ProcId)>,
    next: u32,
}

impl LanesOut {
    /// Queues a frame behind the others of its lane.
    pub fn push(&mut self, frame: Outgoing) {
        let key = frame.lane;
        let entry = self.lanes.entry(key).or_insert_with(|| {
            self.next = self.next.wrapping_add(1);
            self.turns.push_back(key);
            (self.next, VecDeque::new())
        });
        entry.1.push_back(frame);
    }

    /// Whether there is nothing to cut.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Cuts the next chunk to the end of `into`: number of its lane, and whether it ends a frame.
    pub fn cut(&mut self, into: &mut Vec<u8>) -> Option<(u32, bool)> {
        let key = self.turns.pop_front()?;
        let (number, frames) = self.lanes.get_mut(&key)?;
        let number = *number;
        let ends = match frames.front_mut() {
            Some(frame) => frame.cut(into, CHUNK_BYTES),
            None => true,
        };
        if ends {
            frames.pop_front();
        }
        if frames.is_empty() {
            self.lanes.remove(&key);
        } else {
            self.turns.push_back(key);
        }
        Some((number, ends))
    }
}

/// A frame that has arrived from another host.
pub struct Arrival {
    /// The fixed part.
    pub header: Header,
    entries: Vec<Entry>,
    payload: Vec<u8>,
    start: usize,
    blocks: Vec<Block>,
    pool: Arc<Pool>,
    taken: bool,
}

impl Arrival {
    /// The parts, as something to send on; each block has one receiver, who gives it back.
    pub fn parts(&mut self) -> Parts<'_> {
        self.taken = true;
        let inline = if self.payload.len() > self.start { vec![&self.payload[self.start..]] } else { vec![] };
        Parts { entries: self.entries.clone(), inline, blocks: self.blocks.clone() }
    }

    /// The bytes of part 0, when they came inline.
    #[must_use]
    pub fn first(&self) -> &[u8] {
        match self.entries.first() {
            Some(Entry::Inline(len)) => {
                self.payload.get(self.start..self.start + *len as usize).unwrap_or(&[])
            }
            _ => &[],
        }
    }

    /// As a message of this process.
    #[must_use]
    pub fn into_message(mut self) -> Message {
        self.taken = true;
        let mut parts = Vec::with_capacity(self.entries.len());
        let mut at = self.start;
        let mut blocks = self.blocks.drain(..);
        for entry in &self.entries {
            parts.push(match *entry {
                Entry::Inline(len) => {
                    at += len as usize;
                    Part::Inline(at - len as usize..at)
                }
                Entry::Block { slab, offset, len } => {
                    let map = blocks.next().map(|block| block.map);
                    let sink = Arc::clone(&self.pool) as Arc<dyn crate::region::ReleaseSink>;
                    let view = map.map(|map| crate::region::View::new(map, (slab, offset, len), false, sink));
                    match view {
                        Some(Ok(view)) => Part::View(view),
                        _ => Part::Inline(0..0),
                    }
                }
            });
        }
        drop(blocks);
        let payload = std::mem::take(&mut self.payload).into_boxed_slice();
        Message { header: self.header, payload, parts, fd: None, credit: None }
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        if !self.taken {
            for block in &self.blocks {
                self.pool.give_back(block.slab, block.offset, 1);
            }
        }
    }
}

/// Why what arrives cannot be a frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaneError {
    /// Not a frame.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// Larger than allowed.
    #[error("the peer announced a frame of {0} bytes; at most {MAX_BLOCK_BYTES} are allowed")]
    Large(u64),
    /// More or fewer bytes than announced.
    #[error("a frame of the peer has not the length that it announced")]
    Length,
    /// Too many at once.
    #[error("the peer has more than {MAX_LANES} frames on their way at once")]
    Lanes,
    /// This host has no memory for it.
    #[error("there is no memory for a frame of the peer")]
    Memory,
}

/// A frame of which not all has come.
#[derive(Default)]
struct Partial {
    head: Vec<u8>,
    /// The head says nothing new before it is this long.
    wanted: usize,
    arrival: Option<Arrival>,
    /// Block that is being filled, and how far.
    number: usize,
    filled: usize,
}

/// The receiving side.
pub struct LanesIn {
    pool: Arc<Pool>,
    lanes: FxHashMap<u32, Partial>,
}

impl LanesIn {
    /// Without any frame on its way.
    #[must_use]
    pub fn new(pool: Arc<Pool>) -> Self {
        Self { pool, lanes: FxHashMap::default() }
    }

    /// Takes a chunk, and gives the frame that it ends.
    ///
    /// # Errors
    /// Any violation of the format; the session has to end.
    pub fn take(&mut self, lane: u32, bytes: &[u8], ends: bool) -> Result<Option<Arrival>, LaneError> {
        if !self.lanes.contains_key(&lane) && self.lanes.len() >= MAX_LANES {
            return Err(LaneError::Lanes);
        }
        let mut partial = self.lanes.remove(&lane).unwrap_or_default();
        partial.take(bytes, &self.pool)?;
        if !ends {
            self.lanes.insert(lane, partial);
            return Ok(None);
        }
        match partial.arrival {
            Some(arrival) if partial.number == arrival.wanted() => Ok(Some(arrival)),
            _ => Err(LaneError::Length),
        }
    }
}

impl Arrival {
    fn wanted(&self) -> usize {
        self.entries.iter().filter(|entry| matches!(entry, Entry::Block { .. })).count()
    }

    /// The length of block `number`, and its entry.
    fn entry(&mut self, number: usize) -> Option<(&mut u64, &mut u64, u64)> {
        let mut blocks = self.entries.iter_mut().filter_map(|entry| match entry {
            Entry::Block { slab, offset, len } => Some((slab, offset, *len)),
            Entry::Inline(_) => None,
        });
        blocks.nth(number)
    }
}

impl Partial {
    fn take(&mut self, mut bytes: &[u8], pool: &Arc<Pool>) -> Result<(), LaneError> {
        if self.arrival.is_none() {
            bytes = self.take_head(bytes, pool)?;
        }
        let Some(arrival) = &mut self.arrival else { return Ok(()) };
        loop {
            if arrival.blocks.len() == self.number {
                let Some((slab, offset, len)) = arrival.entry(self.number) else { break };
                let block = pool.take(len as usize, 1, true).ok_or(LaneError::Memory)?;
                (*slab, *offset) = (block.slab, block.offset);
                arrival.blocks.push(block);
            }
            let block = &arrival.blocks[self.number];
            let count = bytes.len().min(block.len as usize - self.filled);
            block.write(self.filled, &bytes[..count]);
            self.filled += count;
            bytes = &bytes[count..];
            if self.filled < block.len as usize {
                return Ok(());
            }
            (self.number, self.filled) = (self.number + 1, 0);
        }
        if bytes.is_empty() { Ok(()) } else { Err(LaneError::Length) }
    }

    /// Takes header, table and inline bytes; gives back what follows them.
    fn take_head<'a>(&mut self, mut bytes: &'a [u8], pool: &Arc<Pool>) -> Result<&'a [u8], LaneError> {
        loop {
            let count = bytes.len().min(self.wanted.saturating_sub(self.head.len()));
            self.head.extend_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            if self.head.len() < self.wanted {
                return Ok(bytes);
            }
            match decode(&self.head)? {
                Progress::Need(wanted) => self.wanted = wanted,
                Progress::Frame(frame) => {
                    let mut sum: u64 = 0;
                    for entry in &frame.entries {
                        if let Entry::Block { len, .. } = entry {
                            sum = sum.saturating_add(*len);
                        }
                    }
                    if sum > MAX_BLOCK_BYTES {
                        return Err(LaneError::Large(sum));
                    }
                    let mut header = frame.header;
                    header.flags &= !SHARED;
                    self.arrival = Some(Arrival {
                        header,
                        entries: frame.entries,
                        payload: std::mem::take(&mut self.head),
                        start: frame.body,
                        blocks: Vec::new(),
                        pool: Arc::clone(pool),
                        taken: false,
                    });
                    return Ok(bytes);
                }
            }
        }
    }
}
