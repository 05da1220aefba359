//! The session between two hosts: an ordered stream of frames that survives its connections.
//!
//! A pure state machine: bytes, frames and the time go in, bytes and frames come out. It owns no socket and
//! looks at no clock, so that a test can cut, delay and heal connections as it likes, on a time of its own.
//!
//! Chunks of frames are numbered. What the peer has not acknowledged stays in a bounded buffer, and is sent
//! again when a broken connection is replaced; when the buffer is full no more chunks are cut, and frames wait
//! where they are. Each connection begins with a hello of both sides, which says what has been received.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::link::lanes::{Arrival, CHUNK_BYTES, LaneError, LanesIn, LanesOut, Outgoing};
use crate::region::Pool;

/// Version of the protocol between hosts.
pub const VERSION: u16 = 1;
/// Bytes of the fixed start of a record.
pub const RECORD_BYTES: usize = 32;
/// Most bytes of the rest of a record.
const MAX_RECORD_BYTES: usize = CHUNK_BYTES + 16;
/// Most bytes of chunks that the peer has not acknowledged.
pub const RESEND_BYTES: usize = 8 << 20;
/// Received bytes are acknowledged in portions of this at least.
const ACK_BYTES: usize = 512 << 10;
/// First bytes of the first record on a connection.
const GREETING: &[u8; 6] = b"roost\n";
/// Bytes of a hello before the name.
const FIXED_BYTES: usize = 28;
/// Most bytes of a host's own name in its hello.
const MAX_NAME_BYTES: usize = 256;

const HELLO: u8 = 1;
const CHUNK: u8 = 2;
const BEAT: u8 = 3;
const BYE: u8 = 4;

/// Patience with a peer.
#[derive(Clone, Copy, Debug)]
pub struct Pulse {
    /// Something is said at least this often.
    pub beat: Duration,
    /// A peer that was not heard of for so long is dead.
    pub dead: Duration,
}

impl Default for Pulse {
    fn default() -> Self {
        Self { beat: Duration::from_millis(1500), dead: Duration::from_secs(5) }
    }
}

/// What both sides say first on each connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// The agent that speaks.
    pub agent: u64,
    /// Name of the session, chosen by whoever dialled first.
    pub session: u64,
    /// Number of this connection in the session; an older one than the last is a stray.
    pub epoch: u64,
    /// Number of the last chunk that was received.
    pub received: u64,
    /// The session exists, and goes on.
    pub resumes: bool,
    /// After how many milliseconds of silence the speaker will count its peer as dead.
    pub dead_ms: u32,
    /// The host's own name, for people.
    pub name: String,
}

/// Why a session, or one connection of it, has ended.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SessionError {
    /// Not this protocol at all.
    #[error("the peer does not speak roost's protocol between hosts")]
    Greeting,
    /// Another version.
    #[error("the peer speaks version {0} of the protocol, this host version {VERSION}")]
    Version(u16),
    /// Unknown kind of record.
    #[error("the peer sent a record of unknown kind {0}")]
    Kind(u8),
    /// A record that is too long.
    #[error("the peer announced a record of {0} bytes; at most {MAX_RECORD_BYTES} are allowed")]
    Oversized(usize),
    /// A number that does not follow the last.
    #[error("the peer sent chunk {0} where {1} was due")]
    Sequence(u64, u64),
    /// Acknowledged what was never sent.
    #[error("the peer acknowledged chunk {0}, which was never sent")]
    Ack(u64),
    /// A frame that makes no sense.
    #[error(transparent)]
    Lane(#[from] LaneError),
    /// The peer ended the session.
    #[error("{0}")]
    Bye(String),
    /// The peer was not heard of.
    #[error("has not been heard of for {0:.1} s")]
    Silent(f64),
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(raw)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut raw = [0; 4];
    raw.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(raw)
}

fn record(into: &mut Vec<u8>, kind: u8, flag: bool, lane: u32, numbers: (u64, u64), len: usize) {
    into.extend_from_slice(&[kind, u8::from(flag), 0, 0]);
    into.extend_from_slice(&(len as u32).to_le_bytes());
    into.extend_from_slice(&lane.to_le_bytes());
    into.extend_from_slice(&[0; 4]);
    into.extend_from_slice(&numbers.0.to_le_bytes());
    into.extend_from_slice(&numbers.1.to_le_bytes());
}

struct Record<'a> {
    kind: u8,
    flag: bool,
    lane: u32,
    number: u64,
    ack: u64,
    rest: &'a [u8],
}

/// The record at the start of `bytes`, when it is all there. Nothing is kept of one that is too long.
fn parse(bytes: &[u8]) -> Result<Option<Record<'_>>, SessionError> {
    let Some(head) = bytes.get(..RECORD_BYTES) else { return Ok(None) };
    let kind = head[0];
    if !(HELLO..=BYE).contains(&kind) {
        return Err(SessionError::Kind(kind));
    }
    let len = u32_at(head, 4) as usize;
    if len > MAX_RECORD_BYTES {
        return Err(SessionError::Oversized(len));
    }
    let (lane, number, ack) = (u32_at(head, 8), u64_at(head, 16), u64_at(head, 24));
    Ok(bytes.get(RECORD_BYTES..RECORD_BYTES + len).map(|rest| Record {
        kind,
        flag: head[1] != 0,
        lane,
        number,
        ack,
        rest,
    }))
}

impl Hello {
    /// Appends the record.
    pub fn encode(&self, into: &mut Vec<u8>) {
        let mut rest = Vec::with_capacity(64);
        rest.extend_from_slice(GREETING);
        rest.extend_from_slice(&VERSION.to_le_bytes());
        rest.extend_from_slice(&self.agent.to_le_bytes());
        rest.extend_from_slice(&self.session.to_le_bytes());
        rest.extend_from_slice(&self.dead_ms.to_le_bytes());
        let mut name = self.name.as_bytes().to_vec();
        name.truncate(MAX_NAME_BYTES);
        rest.extend_from_slice(&name);
        record(into, HELLO, self.resumes, 0, (self.epoch, self.received), rest.len());
        into.extend_from_slice(&rest);
    }

    /// The hello at the start of a connection and its length, when it is all there.
    ///
    /// # Errors
    /// Whatever else it may be.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, SessionError> {
        match bytes.first() {
            None => return Ok(None),
            Some(&HELLO) => {}
            Some(&BYE) => {
                return Ok(match parse(bytes)? {
                    Some(bye) => return Err(SessionError::Bye(text(bye.rest))),
                    None => None,
                });
            }
            Some(_) => return Err(SessionError::Greeting),
        }
        let Some(found) = parse(bytes)? else {
            // The length is checked before more is waited for.
            return Ok(None);
        };
        if found.rest.len() < FIXED_BYTES || !found.rest.starts_with(GREETING) {
            return Err(SessionError::Greeting);
        }
        if found.rest.len() > FIXED_BYTES + MAX_NAME_BYTES {
            return Err(SessionError::Oversized(found.rest.len()));
        }
        let version = u16::from_le_bytes([found.rest[6], found.rest[7]]);
        if version != VERSION {
            return Err(SessionError::Version(version));
        }
        let hello = Self {
            agent: u64_at(found.rest, 8),
            session: u64_at(found.rest, 16),
            dead_ms: u32_at(found.rest, 24),
            epoch: found.number,
            received: found.ack,
            resumes: found.flag,
            name: text(&found.rest[FIXED_BYTES..]),
        };
        Ok(Some((hello, RECORD_BYTES + found.rest.len())))
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A farewell for a connection that has no session.
#[must_use]
pub fn bye(reason: &str) -> Vec<u8> {
    let mut reason = reason.as_bytes().to_vec();
    reason.truncate(MAX_NAME_BYTES * 2);
    let mut bytes = Vec::new();
    record(&mut bytes, BYE, false, 0, (0, 0), reason.len());
    bytes.extend_from_slice(&reason);
    bytes
}

struct Chunk {
    lane: u32,
    ends: bool,
    bytes: Vec<u8>,
}

/// One side of a session.
pub struct Session {
    pulse: Pulse,
    lanes_out: LanesOut,
    lanes_in: LanesIn,
    /// Chunks that the peer has not acknowledged; the first has the number `first`.
    sent: VecDeque<Chunk>,
    sent_bytes: usize,
    first: u64,
    /// How many of `sent` have been written to the present connection.
    written: usize,
    received: u64,
    acked: u64,
    unacked_bytes: usize,
    input: Vec<u8>,
    is_up: bool,
    last_heard: Instant,
    last_said: Instant,
    farewell: Option<String>,
}

impl Session {
    /// A session without a connection.
    #[must_use]
    pub fn new(pulse: Pulse, pool: Arc<Pool>, now: Instant) -> Self {
        Self {
            pulse,
            lanes_out: LanesOut::default(),
            lanes_in: LanesIn::new(pool),
            sent: VecDeque::new(),
            sent_bytes: 0,
            first: 1,
            written: 0,
            received: 0,
            acked: 0,
            unacked_bytes: 0,
            input: Vec::new(),
            is_up: false,
            last_heard: now,
            last_said: now,
            farewell: None,
        }
    }

    /// Queues a frame.
    pub fn send(&mut self, frame: Outgoing) {
        self.lanes_out.push(frame);
    }

    /// What this side has to say in its hello of itself: what it has received, and its patience.
    #[must_use]
    pub fn state(&self) -> (u64, u32) {
        (self.received, u32::try_from(self.pulse.dead.as_millis()).unwrap_or(u32::MAX))
    }

    /// Whether a connection carries the session.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.is_up
    }

    /// Whether nothing waits to be sent or acknowledged.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.lanes_out.is_empty() && self.sent.is_empty() && self.farewell.is_none()
    }

    /// Both have said hello on a new connection: goes on behind what the peer has received.
    ///
    /// # Errors
    /// The peer claims to have received what was never sent, or lacks what it had acknowledged.
    pub fn resume(&mut self, peer: &Hello, now: Instant) -> Result<(), SessionError> {
        if peer.received.saturating_add(1) < self.first {
            return Err(SessionError::Sequence(self.first, peer.received.saturating_add(1)));
        }
        self.acknowledge(peer.received)?;
        // Whoever has less patience is told more often.
        let wanted = Duration::from_millis(u64::from(peer.dead_ms) / 3).max(Duration::from_millis(1));
        self.pulse.beat = self.pulse.beat.min(wanted);
        self.written = 0;
        self.acked = self.received;
        self.unacked_bytes = 0;
        self.input.clear();
        self.is_up = true;
        self.last_heard = now;
        Ok(())
    }

    /// The connection has broken.
    pub fn suspend(&mut self) {
        self.is_up = false;
        self.input = Vec::new();
    }

    /// Nothing more is said after what is queued, but this.
    pub fn leave(&mut self, reason: &str) {
        self.farewell.get_or_insert_with(|| reason.to_owned());
    }

    /// The peer is dead: nothing that waits will be sent.
    pub fn forget(&mut self) {
        self.lanes_out = LanesOut::default();
        self.sent.clear();
        self.sent_bytes = 0;
        self.farewell = None;
    }

    fn acknowledge(&mut self, number: u64) -> Result<(), SessionError> {
        if number >= self.first + self.sent.len() as u64 {
            return Err(SessionError::Ack(number));
        }
        while self.first <= number {
            if let Some(chunk) = self.sent.pop_front() {
                self.sent_bytes -= chunk.bytes.len();
            }
            self.first += 1;
            self.written = self.written.saturating_sub(1);
        }
        Ok(())
    }

    /// Takes what has come over the connection; frames that are whole are appended to `into`.
    ///
    /// # Errors
    /// The session has ended: the peer has said goodbye, or nonsense.
    pub fn input(&mut self, bytes: &[u8], now: Instant, into: &mut Vec<Arrival>) -> Result<(), SessionError> {
        if !bytes.is_empty() {
            self.last_heard = now;
        }
        // What is whole is taken from where it is; only a broken record is kept.
        if self.input.is_empty() {
            let used = self.take(bytes, into)?;
            self.input.extend_from_slice(&bytes[used..]);
        } else {
            let mut held = std::mem::take(&mut self.input);
            held.extend_from_slice(bytes);
            let used = self.take(&held, into)?;
            held.drain(..used);
            self.input = held;
        }
        Ok(())
    }

    fn take(&mut self, bytes: &[u8], into: &mut Vec<Arrival>) -> Result<usize, SessionError> {
        let mut at = 0;
        while let Some(found) = parse(&bytes[at..])? {
            at += RECORD_BYTES + found.rest.len();
            match found.kind {
                CHUNK => {
                    if found.number != self.received + 1 {
                        return Err(SessionError::Sequence(found.number, self.received + 1));
                    }
                    self.received = found.number;
                    self.unacked_bytes += found.rest.len() + RECORD_BYTES;
                    self.acknowledge(found.ack)?;
                    into.extend(self.lanes_in.take(found.lane, found.rest, found.flag)?);
                }
                BEAT => self.acknowledge(found.ack)?,
                BYE => return Err(SessionError::Bye(text(found.rest))),
                other => return Err(SessionError::Kind(other)),
            }
        }
        Ok(at)
    }

    /// Appends up to about `room` bytes for the connection.
    pub fn output(&mut self, room: usize, now: Instant, into: &mut Vec<u8>) {
        if !self.is_up {
            return;
        }
        let end = into.len() + room;
        let before = into.len();
        while into.len() < end {
            if self.written == self.sent.len() && !self.cut() {
                break;
            }
            let chunk = &self.sent[self.written];
            let number = self.first + self.written as u64;
            record(into, CHUNK, chunk.ends, chunk.lane, (number, self.received), chunk.bytes.len());
            into.extend_from_slice(&chunk.bytes);
            self.written += 1;
            (self.acked, self.unacked_bytes) = (self.received, 0);
        }
        let owes = self.unacked_bytes >= ACK_BYTES;
        let late = now.saturating_duration_since(self.last_said) >= self.pulse.beat;
        let idle_ack = self.acked != self.received && late;
        if owes || idle_ack || (late && into.len() == before) {
            record(into, BEAT, false, 0, (0, self.received), 0);
            (self.acked, self.unacked_bytes) = (self.received, 0);
        }
        if self.lanes_out.is_empty()
            && self.written == self.sent.len()
            && let Some(reason) = self.farewell.take()
        {
            into.extend_from_slice(&bye(&reason));
        }
        if into.len() > before {
            self.last_said = now;
        }
    }

    fn cut(&mut self) -> bool {
        if self.sent_bytes >= RESEND_BYTES {
            return false;
        }
        let mut bytes = Vec::new();
        let Some((lane, ends)) = self.lanes_out.cut(&mut bytes) else { return false };
        self.sent_bytes += bytes.len();
        self.sent.push_back(Chunk { lane, ends, bytes });
        true
    }

    /// Looks at the time.
    ///
    /// # Errors
    /// The peer has not been heard of for too long.
    pub fn check(&self, now: Instant) -> Result<(), SessionError> {
        let silent = now.saturating_duration_since(self.last_heard);
        if silent >= self.pulse.dead {
            return Err(SessionError::Silent(silent.as_secs_f64()));
        }
        Ok(())
    }

    /// When `check` and `output` want to be called at the latest.
    #[must_use]
    pub fn next_timer(&self) -> Instant {
        let dead = self.last_heard + self.pulse.dead;
        if self.is_up { dead.min(self.last_said + self.pulse.beat) } else { dead }
    }
}

#[cfg(test)]
mod tests;
