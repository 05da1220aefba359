//! Frames: a fixed header, a table of parts, and the bytes of the parts that travel inline.
//!
//! Everything here is a pure function of bytes. The decoder trusts nothing: each length is checked
//! against a limit and against the others before anything is allocated, and memory grows only with the
//! bytes that have really arrived.

use crate::id::{BoxId, ProcId};

/// First byte of each frame; another value means that the peer speaks something else.
pub const MAGIC: u8 = 0xB7;
/// Bytes of the fixed header.
pub const HEADER_BYTES: usize = 96;
/// Bytes of one entry of the table of parts.
pub const ENTRY_BYTES: usize = 24;
/// Most parts one frame may have (a state dict of a large model has some thousands).
pub const MAX_PARTS: usize = 1 << 20;
/// Most inline bytes one frame may have; larger payloads travel in segments.
pub const MAX_INLINE_BYTES: u64 = 1 << 30;

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Kind {
    /// A message that nobody waits for.
    #[default]
    Cast = 1,
    /// A message whose sender waits for an answer.
    Call = 2,
    /// The answer to a call.
    Reply = 3,
    /// The caller no longer wants the answer.
    Cancel = 4,
    /// A request to the host agent for a link with another process.
    Connect = 5,
    /// A new link (one descriptor) with the process in `src`.
    Link = 6,
    /// The process in `src` has ended; the parts say why.
    Obituary = 7,
    /// A shared-memory slab (one descriptor) that later parts refer to.
    Slab = 8,
    /// The receiver no longer uses a block of a slab.
    Release = 9,
    /// The sender has closed a slab.
    SlabGone = 10,
    /// So many bytes of messages were taken from their mailboxes.
    Taken = 11,
    /// The process in `src` is on another host: frames for it go to the agent.
    Route = 12,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Cast,
            2 => Self::Call,
            3 => Self::Reply,
            4 => Self::Cancel,
            5 => Self::Connect,
            6 => Self::Link,
            7 => Self::Obituary,
            8 => Self::Slab,
            9 => Self::Release,
            10 => Self::SlabGone,
            11 => Self::Taken,
            12 => Self::Route,
            _ => return None,
        })
    }
}

/// How a call ended for one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Status {
    /// The parts hold the value.
    #[default]
    Ok = 0,
    /// The parts hold the exception that the endpoint raised.
    Raised = 1,
    /// The mailbox is closed; the parts say by whom and why.
    Closed = 2,
    /// The process has ended; the parts are its obituary.
    Dead = 3,
    /// No mailbox of that name appeared in time.
    Unknown = 4,
}

impl Status {
    /// The status for a number off the wire.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Ok,
            1 => Self::Raised,
            2 => Self::Closed,
            3 => Self::Dead,
            4 => Self::Unknown,
            _ => return None,
        })
    }
}

/// The message goes before others in the mailbox and interrupts a wait of its owner.
pub const URGENT: u8 = 1;
/// The frame makes the mailbox named in `arg` if it is not there, so that messages which follow queue.
pub const CREATES: u8 = 2;
/// Several receivers share the blocks of this frame: map them copy-on-write.
pub const SHARED: u8 = 4;

/// The fixed part of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// What the frame is for.
    pub kind: Kind,
    /// `URGENT`, `CREATES`, `SHARED`.
    pub flags: u8,
    /// Outcome, in a reply.
    pub status: Status,
    /// Receiving process.
    pub dest: ProcId,
    /// Sending process.
    pub src: ProcId,
    /// Receiving mailbox.
    pub dest_box: BoxId,
    /// Mailbox of the sending actor.
    pub src_box: BoxId,
    /// Identity of the call in the caller's process.
    pub call: u64,
    /// Rank of the receiver in the call.
    pub index: u32,
    /// Trace that the message belongs to.
    pub trace: u64,
    /// Depends on the kind.
    pub arg: u64,
}

/// Where the bytes of one part are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// In the frame, this many bytes.
    Inline(u64),
    /// In a slab that the sender has announced.
    Block {
        /// Slab of the sender.
        slab: u64,
        /// Byte offset in the slab.
        offset: u64,
        /// Bytes.
        len: u64,
    },
}

/// Why a frame cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Not a frame of this protocol.
    #[error("the peer sent {0:#04x} where a frame starts; it does not speak roost's protocol")]
    Magic(u8),
    /// A kind or status that does not exist.
    #[error("the peer sent a frame of unknown kind {0}")]
    Kind(u8),
    /// More parts than allowed.
    #[error("the peer sent a frame of {0} parts; at most {MAX_PARTS} are allowed")]
    Parts(u64),
    /// Too long, or lengths that contradict each other.
    #[error(
        "the peer sent a frame of {0} inline bytes; the table says {1}, at most {MAX_INLINE_BYTES} are allowed"
    )]
    Length(u64, u64),
}

/// A decoded frame: header, table, and where its inline bytes lie in the input.
#[derive(Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The fixed part.
    pub header: Header,
    /// One entry a part.
    pub entries: Vec<Entry>,
    /// Start of the inline bytes in the input.
    pub body: usize,
    /// End of the frame in the input.
    pub end: usize,
}

/// What the start of a buffer holds.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    /// At least this many bytes are needed before another try.
    Need(usize),
    /// A whole frame.
    Frame(Decoded),
}

fn put<const N: usize>(out: &mut [u8], at: usize, bytes: [u8; N]) {
    out[at..at + N].copy_from_slice(&bytes);
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut raw = [0; 4];
    raw.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(raw)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(raw)
}

/// Appends header and table to `out`; the inline bytes have to follow in order.
pub fn encode(out: &mut Vec<u8>, header: &Header, entries: &[Entry]) {
    let inline: u64 = entries
        .iter()
        .map(|entry| match entry {
            Entry::Inline(len) => *len,
            Entry::Block { .. } => 0,
        })
        .sum();
    let start = out.len();
    out.resize(start + HEADER_BYTES + entries.len() * ENTRY_BYTES, 0);
    let head = &mut out[start..];
    head[0] = MAGIC;
    head[1] = header.kind as u8;
    head[2] = header.flags;
    head[3] = header.status as u8;
    put(head, 4, (entries.len() as u32).to_le_bytes());
    put(head, 8, inline.to_le_bytes());
    put(head, 16, header.dest.mesh.to_le_bytes());
    put(head, 24, header.src.mesh.to_le_bytes());
    put(head, 32, header.dest.rank.to_le_bytes());
    put(head, 36, header.src.rank.to_le_bytes());
    put(head, 40, header.dest_box.to_le_bytes());
    put(head, 48, header.src_box.to_le_bytes());
    put(head, 56, header.call.to_le_bytes());
    put(head, 64, header.index.to_le_bytes());
    put(head, 72, header.trace.to_le_bytes());
    put(head, 80, header.arg.to_le_bytes());
    for (number, entry) in entries.iter().enumerate() {
        let at = HEADER_BYTES + number * ENTRY_BYTES;
        let (len, slab, offset) = match *entry {
            Entry::Inline(len) => (len, 0, 0),
            Entry::Block { slab, offset, len } => (len, slab, offset),
        };
        put(head, at, len.to_le_bytes());
        put(head, at + 8, slab.to_le_bytes());
        put(head, at + 16, offset.to_le_bytes());
    }
}

/// Reads the frame at the start of `bytes`, if it is all there. Slab 0 means inline, so slabs count from 1.
///
/// # Errors
/// Any violation of the format; the link has to be closed, since the next frame cannot be found.
pub fn decode(bytes: &[u8]) -> Result<Progress, WireError> {
    match bytes.first() {
        Some(&MAGIC) => {}
        Some(&other) => return Err(WireError::Magic(other)),
        None => return Ok(Progress::Need(HEADER_BYTES)),
    }
    if bytes.len() < HEADER_BYTES {
        return Ok(Progress::Need(HEADER_BYTES));
    }
    let kind = Kind::from_byte(bytes[1]).ok_or(WireError::Kind(bytes[1]))?;
    let status = Status::from_byte(bytes[3]).ok_or(WireError::Kind(bytes[3]))?;
    let parts = u32_at(bytes, 4) as usize;
    let inline = u64_at(bytes, 8);
    if parts > MAX_PARTS {
        return Err(WireError::Parts(parts as u64));
    }
    if inline > MAX_INLINE_BYTES {
        return Err(WireError::Length(inline, 0));
    }
    let body = HEADER_BYTES + parts * ENTRY_BYTES;
    let end = body + inline as usize;
    if bytes.len() < body {
        return Ok(Progress::Need(body));
    }
    let mut entries = Vec::with_capacity(parts);
    let mut sum: u64 = 0;
    for number in 0..parts {
        let at = HEADER_BYTES + number * ENTRY_BYTES;
        let (len, slab, offset) = (u64_at(bytes, at), u64_at(bytes, at + 8), u64_at(bytes, at + 16));
        if slab == 0 {
            sum = sum.saturating_add(len);
            entries.push(Entry::Inline(len));
        } else {
            entries.push(Entry::Block { slab, offset, len });
        }
    }
    if sum != inline {
        return Err(WireError::Length(inline, sum));
    }
    if bytes.len() < end {
        return Ok(Progress::Need(end));
    }
    let header = Header {
        kind,
        flags: bytes[2],
        status,
        dest: ProcId { mesh: u64_at(bytes, 16), rank: u32_at(bytes, 32) },
        src: ProcId { mesh: u64_at(bytes, 24), rank: u32_at(bytes, 36) },
        dest_box: u64_at(bytes, 40),
        src_box: u64_at(bytes, 48),
        call: u64_at(bytes, 56),
        index: u32_at(bytes, 64),
        trace: u64_at(bytes, 72),
        arg: u64_at(bytes, 80),
    };
    Ok(Progress::Frame(Decoded { header, entries, body, end }))
}

#[cfg(test)]
mod tests;
