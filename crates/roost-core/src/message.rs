//! A message as it lies in a mailbox, and as it is handed to a link.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Weak;

use crate::id::ProcId;
use crate::link::Link;
use crate::region::{BLOCK_MIN_BYTES, Block, Pool, View};
use crate::route::Node;
use crate::wire::{Entry, Header, MAX_INLINE_BYTES};

/// One part of a received message.
pub enum Part {
    /// A range of the message's own bytes.
    Inline(Range<usize>),
    /// Bytes in shared memory.
    View(View),
}

/// A received message.
pub struct Message {
    /// The fixed part.
    pub header: Header,
    /// All inline bytes.
    pub payload: Box<[u8]>,
    /// The parts in order.
    pub parts: Vec<Part>,
    /// A descriptor that came along.
    pub fd: Option<OwnedFd>,
    /// Told when the message has left its mailbox.
    pub credit: Option<Credit>,
}

/// Counts a message against what its sender may have waiting here, until it is dropped.
pub struct Credit {
    link: Weak<Link>,
    bytes: u64,
    /// Where the message came from, when that is another host.
    source: Option<(Weak<Node>, ProcId, u64)>,
}

impl Credit {
    pub(crate) fn new(link: Weak<Link>, bytes: u64) -> Self {
        Self { link, bytes, source: None }
    }

    /// The message came from another host: its sender is told, too.
    pub(crate) fn came_from(&mut self, node: Weak<Node>, source: ProcId, bytes: u64) {
        self.source = Some((node, source, bytes));
    }
}

impl Drop for Credit {
    fn drop(&mut self) {
        if let Some(link) = self.link.upgrade() {
            link.consumed(self.bytes);
        }
        if let Some((node, source, bytes)) = self.source.take()
            && let Some(node) = node.upgrade()
        {
            node.consumed(source, bytes);
        }
    }
}

impl Message {
    /// A message without shared memory, of the parts given.
    #[must_use]
    pub fn of(header: Header, parts: &[&[u8]]) -> Self {
        let mut payload = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
        let parts = parts
            .iter()
            .map(|part| {
                let start = payload.len();
                payload.extend_from_slice(part);
                Part::Inline(start..payload.len())
            })
            .collect();
        Self { header, payload: payload.into_boxed_slice(), parts, fd: None, credit: None }
    }

    /// The bytes of a part; empty when there is no such part.
    #[must_use]
    pub fn part(&self, number: usize) -> &[u8] {
        match self.parts.get(number) {
            Some(Part::Inline(range)) => self.payload.get(range.clone()).unwrap_or(&[]),
            Some(Part::View(view)) => view.bytes(),
            None => &[],
        }
    }

    /// Bytes that the message keeps in this process.
    #[must_use]
    pub fn size(&self) -> usize {
        self.payload.len()
    }
}

/// Parts on their way out: big ones already lie in blocks, small ones are borrowed from the caller.
pub struct Parts<'a> {
    /// The table.
    pub entries: Vec<Entry>,
    /// Inline parts in order.
    pub inline: Vec<&'a [u8]>,
    /// Blocks that the table names.
    pub blocks: Vec<Block>,
}

/// A message has no more inline bytes than this, if it can be helped; peers refuse four times as much.
const MOST_INLINE_BYTES: usize = (MAX_INLINE_BYTES / 4) as usize;

/// Bytes copied on one thread; above it two threads share the work.
const SPLIT_COPY_BYTES: usize = 8 << 20;

fn copy_into(block: &Block, bytes: &[u8]) {
    let Some(target) = block.map.at(block.offset, bytes.len() as u64) else { return };
    // SAFETY: the block was just taken from the pool, so nobody else reads or writes it, and it is long
    // enough; source and target are different mappings.
    copy_bytes(unsafe { std::slice::from_raw_parts_mut(target.as_ptr(), bytes.len()) }, bytes);
}

/// Copies between slices of one length, with two threads where that pays.
pub fn copy_bytes(target: &mut [u8], bytes: &[u8]) {
    if bytes.len() < SPLIT_COPY_BYTES {
        target.copy_from_slice(bytes);
        return;
    }
    let half = bytes.len() / 2;
    let (low, high) = target.split_at_mut(half);
    std::thread::scope(|scope| {
        scope.spawn(|| high.copy_from_slice(&bytes[half..]));
        low.copy_from_slice(&bytes[..half]);
    });
}

impl<'a> Parts<'a> {
    /// Places the parts for `receivers` receivers, of which each will give its blocks back.
    /// A full pool leaves big parts inline, as far as a frame may hold them.
    pub fn place(parts: &[&'a [u8]], pool: &Pool, receivers: u32) -> Self {
        let mut placed = Self {
            entries: Vec::with_capacity(parts.len()),
            inline: Vec::with_capacity(parts.len()),
            blocks: Vec::new(),
        };
        let mut inline_bytes = 0;
        for part in parts {
            inline_bytes += part.len();
            if part.len() >= BLOCK_MIN_BYTES
                && receivers > 0
                && let Some(block) = pool.take(part.len(), receivers, inline_bytes > MOST_INLINE_BYTES)
            {
                inline_bytes -= part.len();
                copy_into(&block, part);
                placed.entries.push(Entry::Block { slab: block.slab, offset: block.offset, len: block.len });
                placed.blocks.push(block);
            } else {
                placed.entries.push(Entry::Inline(part.len() as u64));
                placed.inline.push(part);
            }
        }
        placed
    }

    /// Inline bytes in all.
    #[must_use]
    pub fn inline_bytes(&self) -> usize {
        self.inline.iter().map(|part| part.len()).sum()
    }
}
