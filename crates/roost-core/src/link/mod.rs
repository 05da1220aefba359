//! Links between processes of one host: a socket pair made by the host agent, so that no address exists
//! that a stranger could connect to. A sender writes from its own thread; what the socket does not take
//! waits in a queue that the poller empties. Payload blocks travel by reference (see `region`).

pub mod address;
pub mod lanes;
mod poller;
pub mod session;
mod socket;
pub mod tls;
pub mod trunk;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};

use rustc_hash::{FxHashMap, FxHashSet};
use rustix::io::Errno;

pub use poller::{Poller, Ready};

use crate::id::ProcId;
use crate::lock;
use crate::message::{Credit, Message, Part, Parts};
use crate::park::Parker;
use crate::region::{Pool, ReleaseSink, SlabMap, View};
use crate::wire::{Decoded, Entry, Header, Kind, Progress, SHARED, WireError, decode, encode};

/// A sender waits while more than this is queued for a peer.
pub const HIGH_WATER_BYTES: usize = 16 << 20;
/// A sender also waits while the peer has more than this in mailboxes that nobody has taken yet.
pub const WINDOW_BYTES: u64 = 64 << 20;
/// What a message costs of the window beside its bytes.
pub(crate) const MESSAGE_BYTES: u64 = 256;
/// Taken bytes are reported in portions of this.
pub(crate) const REPORT_BYTES: u64 = 256 << 10;
/// Inline payloads up to this size are copied behind their header and sent by one plain write.
const COPY_BYTES: usize = 16 << 10;
/// First size of a receive buffer.
const BUFFER_BYTES: usize = 64 << 10;
/// Most bytes read from one link before others get their turn.
const TURN_BYTES: usize = 4 << 20;

struct Chunk {
    bytes: Vec<u8>,
    sent: usize,
    fds: Vec<OwnedFd>,
}

#[derive(Default)]
struct Out {
    queue: VecDeque<Chunk>,
    announced: FxHashSet<u64>,
    armed: bool,
    scratch: Vec<u8>,
    waiting: Vec<Arc<Parker>>,
}

#[derive(Default)]
struct Input {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    fds: VecDeque<OwnedFd>,
    slabs: FxHashMap<u64, Arc<SlabMap>>,
}

/// Why a link ended.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The peer closed, or died.
    #[error("the peer closed the connection")]
    Closed,
    /// The kernel refused.
    #[error("the connection failed: {0}")]
    Io(#[from] Errno),
    /// The peer sent nonsense.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// A frame refers to memory that was never handed over.
    #[error("the peer refers to shared memory that it has not handed over")]
    Region,
}

/// One end of a connection.
pub struct Link {
    /// The process at the other end.
    pub peer: ProcId,
    key: u64,
    socket: OwnedFd,
    poller: Arc<Poller>,
    pool: Arc<Pool>,
    out: Mutex<Out>,
    input: Mutex<Input>,
    /// Held from taking messages off the socket until they are delivered: two threads may find the link
    /// readable at once, and what the first has taken must not be overtaken.
    pub(crate) delivering: Mutex<()>,
    queued_bytes: AtomicUsize,
    /// Bytes of messages that the peer has, or will have, in its mailboxes.
    waiting_bytes: AtomicU64,
    /// Bytes that were taken here and not reported yet.
    taken_bytes: AtomicU64,
    /// How much more than usual may wait, since senders have run out of patience.
    allowance: AtomicU64,
    broken: AtomicBool,
    holds: Mutex<FxHashMap<(u64, u64), u32>>,
    myself: Weak<Link>,
}

impl Link {
    /// A link over a connected socket, watched by the poller under `key`.
    ///
    /// # Errors
    /// Whatever the kernel says.
    pub fn new(
        peer: ProcId,
        key: u64,
        socket: OwnedFd,
        poller: Arc<Poller>,
        pool: Arc<Pool>,
    ) -> Result<Arc<Self>, Errno> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        poller.watch(&socket, key)?;
        Ok(Arc::new_cyclic(|myself| Self {
            peer,
            key,
            socket,
            poller,
            pool,
            out: Mutex::default(),
            input: Mutex::default(),
            delivering: Mutex::default(),
            queued_bytes: AtomicUsize::new(0),
            waiting_bytes: AtomicU64::new(0),
            taken_bytes: AtomicU64::new(0),
            allowance: AtomicU64::new(0),
            broken: AtomicBool::new(false),
            holds: Mutex::default(),
            myself: myself.clone(),
        }))
    }

    /// Whether the peer can no longer be reached.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.broken.load(SeqCst)
    }

    /// Whether a sender should wait before it queues more.
    #[must_use]
    pub fn is_congested(&self) -> bool {
        let allowance = self.allowance.load(SeqCst);
        let queued = self.queued_bytes.load(SeqCst) as u64 > HIGH_WATER_BYTES as u64 + allowance;
        let waiting = self.waiting_bytes.load(SeqCst) > WINDOW_BYTES + allowance;
        (queued || waiting) && !self.is_broken()
    }

    /// A sender has waited in vain: one window more may wait until the peer has taken what it has. Senders
    /// to a peer that takes nothing are slowed down, and memory grows slowly; they do not stop at each message.
    pub fn allow_more(&self) {
        self.allowance.fetch_add(WINDOW_BYTES, SeqCst);
    }

    fn is_relieved(&self) -> bool {
        self.queued_bytes.load(SeqCst) <= HIGH_WATER_BYTES / 2
            && self.waiting_bytes.load(SeqCst) <= WINDOW_BYTES
    }

    /// Wakes `parker` when the queue has gone down.
    pub fn wake_when_drained(&self, parker: &Arc<Parker>) {
        lock(&self.out).waiting.push(Arc::clone(parker));
    }

    /// Sends a frame, or queues it; false when the link is broken, and then the peer has not received it.
    pub fn send(&self, header: &Header, parts: &Parts<'_>, fd: Option<OwnedFd>) -> bool {
        let mut out = lock(&self.out);
        if self.is_broken() {
            return false;
        }
        for block in &parts.blocks {
            if out.announced.insert(block.slab) {
                let Ok(copy) = rustix::io::fcntl_dupfd_cloexec(block.map.fd(), 0) else {
                    out.announced.remove(&block.slab);
                    return false;
                };
                let slab = Header { kind: Kind::Slab, arg: block.slab, ..Header::default() };
                self.push(&mut out, &slab, &[], &[], Some(copy));
            }
            *lock(&self.holds).entry((block.slab, block.offset)).or_insert(0) += 1;
        }
        if matches!(header.kind, Kind::Cast | Kind::Call) {
            self.waiting_bytes.fetch_add(parts.inline_bytes() as u64 + MESSAGE_BYTES, SeqCst);
        }
        self.push(&mut out, header, &parts.entries, &parts.inline, fd);
        true
    }

    /// A message of the peer's has left its mailbox.
    pub(crate) fn consumed(&self, bytes: u64) {
        if self.taken_bytes.fetch_add(bytes, SeqCst) + bytes < REPORT_BYTES {
            return;
        }
        let taken = self.taken_bytes.swap(0, SeqCst);
        let mut out = lock(&self.out);
        if taken > 0 && !self.is_broken() {
            let header = Header { kind: Kind::Taken, arg: taken, ..Header::default() };
            self.push(&mut out, &header, &[], &[], None);
        }
    }

    /// The peer has taken messages from its mailboxes.
    fn taken(&self, bytes: u64) {
        // What a peer reports is not trusted to be what it was sent.
        let _ =
            self.waiting_bytes.fetch_update(SeqCst, SeqCst, |waiting| Some(waiting.saturating_sub(bytes)));
        if self.is_relieved() {
            self.allowance.store(0, SeqCst);
        }
        for parker in lock(&self.out).waiting.drain(..) {
            self.poller.wake(&parker);
        }
    }

    fn push(&self, out: &mut Out, header: &Header, entries: &[Entry], inline: &[&[u8]], fd: Option<OwnedFd>) {
        let mut head = std::mem::take(&mut out.scratch);
        head.clear();
        encode(&mut head, header, entries);
        let inline_bytes: usize = inline.iter().map(|part| part.len()).sum();
        let mut rest: &[&[u8]] = inline;
        if inline_bytes <= COPY_BYTES {
            for part in inline {
                head.extend_from_slice(part);
            }
            rest = &[];
        }
        let total = head.len() + rest.iter().map(|part| part.len()).sum::<usize>();
        let mut fds: Vec<OwnedFd> = fd.into_iter().collect();
        let mut sent = 0;
        if out.queue.is_empty() {
            match socket::send(&self.socket, &head, rest, &fds) {
                Ok(count) => {
                    sent = count;
                    if sent > 0 {
                        fds.clear();
                    }
                }
                Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::TOOMANYREFS) => {}
                Err(_) => {
                    // The reader sees the end of the stream and reports it.
                    self.broken.store(true, SeqCst);
                    out.scratch = head;
                    return;
                }
            }
        }
        if sent < total {
            self.enqueue(out, &head, rest, sent, fds);
        }
        out.scratch = head;
    }

    fn enqueue(&self, out: &mut Out, head: &[u8], rest: &[&[u8]], sent: usize, fds: Vec<OwnedFd>) {
        let mut bytes = Vec::with_capacity(head.len());
        let mut skip = sent;
        for part in std::iter::once(&head).chain(rest) {
            let from = skip.min(part.len());
            bytes.extend_from_slice(&part[from..]);
            skip -= from;
        }
        self.queued_bytes.fetch_add(bytes.len(), SeqCst);
        match out.queue.back_mut() {
            Some(last) if fds.is_empty() && last.bytes.len() < BUFFER_BYTES => {
                last.bytes.extend_from_slice(&bytes);
            }
            _ => out.queue.push_back(Chunk { bytes, sent: 0, fds }),
        }
        if !out.armed {
            out.armed = true;
            self.poller.watch_write(&self.socket, self.key, true);
        }
    }

    /// Writes what is queued, as far as the socket takes it.
    pub fn flush(&self) {
        let mut out = lock(&self.out);
        while let Some(chunk) = out.queue.front_mut() {
            match socket::send(&self.socket, &chunk.bytes[chunk.sent..], &[], &chunk.fds) {
                Ok(count) => {
                    chunk.fds.clear();
                    chunk.sent += count;
                    self.queued_bytes.fetch_sub(count, SeqCst);
                    if chunk.sent == chunk.bytes.len() {
                        out.queue.pop_front();
                    }
                }
                Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::TOOMANYREFS) => break,
                Err(_) => {
                    self.broken.store(true, SeqCst);
                    out.queue.clear();
                }
            }
        }
        if out.queue.is_empty() && out.armed {
            out.armed = false;
            self.poller.watch_write(&self.socket, self.key, false);
        }
        if self.queued_bytes.load(SeqCst) <= HIGH_WATER_BYTES / 2 || self.is_broken() {
            for parker in out.waiting.drain(..) {
                self.poller.wake(&parker);
            }
        }
    }

    /// Reads what is there and appends the messages to `into`.
    ///
    /// # Errors
    /// The link is at its end; messages before the end have been appended.
    pub fn receive(&self, into: &mut Vec<Message>) -> Result<(), LinkError> {
        let mut input = lock(&self.input);
        let input = &mut *input;
        let mut turn = 0;
        loop {
            if input.buffer.len() - input.end < BUFFER_BYTES / 4 {
                input.make_room(BUFFER_BYTES);
            }
            let room = input.buffer.len() - input.end;
            let count = match socket::receive(&self.socket, &mut input.buffer[input.end..], &mut input.fds) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(count) => count,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            input.end += count;
            turn += count;
            self.parse(input, into)?;
            if count < room || turn >= TURN_BYTES {
                return Ok(());
            }
        }
    }

    fn parse(&self, input: &mut Input, into: &mut Vec<Message>) -> Result<(), LinkError> {
        loop {
            match decode(&input.buffer[input.start..input.end])? {
                Progress::Need(bytes) => {
                    if input.start + bytes > input.buffer.len() {
                        input.make_room(bytes - (input.end - input.start));
                    }
                    return Ok(());
                }
                Progress::Frame(frame) => {
                    let end = input.start + frame.end;
                    if let Some(message) = self.accept(input, frame)? {
                        into.push(message);
                    }
                    input.start = end;
                    if input.start == input.end {
                        (input.start, input.end) = (0, 0);
                        if input.buffer.len() > 16 * BUFFER_BYTES {
                            input.buffer = vec![0; BUFFER_BYTES];
                        }
                        return Ok(());
                    }
                }
            }
        }
    }

    fn accept(&self, input: &mut Input, frame: Decoded) -> Result<Option<Message>, LinkError> {
        let header = frame.header;
        let fd = match header.kind {
            Kind::Slab => {
                let fd = input.fds.pop_front().ok_or(LinkError::Region)?;
                input.slabs.insert(header.arg, Arc::new(SlabMap::open(fd)?));
                return Ok(None);
            }
            Kind::SlabGone => {
                input.slabs.remove(&header.arg);
                return Ok(None);
            }
            Kind::Release => {
                self.returned(header.arg, header.call);
                return Ok(None);
            }
            // With a receiver it goes on to a process of another host.
            Kind::Taken if header.dest == ProcId::default() => {
                self.taken(header.arg);
                return Ok(None);
            }
            Kind::Link => Some(input.fds.pop_front().ok_or(LinkError::Region)?),
            _ => None,
        };
        let bytes = &input.buffer[input.start + frame.body..input.start + frame.end];
        let mut at = 0;
        let mut parts = Vec::with_capacity(frame.entries.len());
        for entry in frame.entries {
            parts.push(match entry {
                Entry::Inline(len) => {
                    let start = at;
                    at += len as usize;
                    Part::Inline(start..at)
                }
                Entry::Block { slab, offset, len } => {
                    let map = input.slabs.get(&slab).cloned().ok_or(LinkError::Region)?;
                    let sink: Arc<dyn ReleaseSink> = self.myself.upgrade().ok_or(LinkError::Closed)?;
                    let shared = header.flags & SHARED != 0;
                    Part::View(View::new(map, (slab, offset, len), shared, sink)?)
                }
            });
        }
        let credit = match header.kind {
            Kind::Cast | Kind::Call => {
                Some(Credit::new(self.myself.clone(), bytes.len() as u64 + MESSAGE_BYTES))
            }
            _ => None,
        };
        Ok(Some(Message { header, payload: bytes.into(), parts, fd, credit }))
    }

    /// A receiver has given a block back; peers cannot give back what they do not hold.
    fn returned(&self, slab: u64, offset: u64) {
        let mut holds = lock(&self.holds);
        if let Some(count) = holds.get_mut(&(slab, offset)) {
            *count -= 1;
            if *count == 0 {
                holds.remove(&(slab, offset));
            }
            self.pool.give_back(slab, offset, 1);
        }
    }

    /// Tells the peer that slabs are closed.
    pub fn forget_slabs(&self, slabs: &[u64]) {
        let mut out = lock(&self.out);
        for slab in slabs {
            if out.announced.remove(slab) && !self.is_broken() {
                let header = Header { kind: Kind::SlabGone, arg: *slab, ..Header::default() };
                self.push(&mut out, &header, &[], &[], None);
            }
        }
    }

    /// Ends the link: nothing more is sent, and what the peer held comes back.
    pub fn close(&self) {
        self.broken.store(true, SeqCst);
        self.poller.forget(&self.socket);
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        {
            let mut out = lock(&self.out);
            out.queue.clear();
            for parker in out.waiting.drain(..) {
                self.poller.wake(&parker);
            }
        }
        for ((slab, offset), count) in lock(&self.holds).drain() {
            self.pool.give_back(slab, offset, count);
        }
    }

    /// Whether all that was queued has been written.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.is_broken() || lock(&self.out).queue.is_empty()
    }
}

impl Input {
    /// Makes room behind `end` for at least `more` bytes, growing no faster than bytes arrive.
    fn make_room(&mut self, more: usize) {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let wanted = (self.end + more).min((2 * self.end).max(BUFFER_BYTES));
        if wanted > self.buffer.len() {
            self.buffer.resize(wanted, 0);
        }
    }
}

impl ReleaseSink for Link {
    fn release(&self, slab: u64, offset: u64) {
        let mut out = lock(&self.out);
        if !self.is_broken() {
            let header = Header { kind: Kind::Release, arg: slab, call: offset, ..Header::default() };
            self.push(&mut out, &header, &[], &[], None);
        }
    }
}
