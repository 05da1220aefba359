//! Pooled shared memory for payloads that are too big for a socket.
//!
//! The first touch of a fresh page costs several times what copying it does, so memory is kept: a sender
//! copies a payload into a block of a slab (a sealed memfd), the receiver maps the slab once and reads the
//! block in place, and the block goes back to the sender's pool when the last view of it dies.
//! A block with one receiver is that receiver's to write; a block with several is mapped copy-on-write, so
//! that nobody sees another's changes.

mod pool;
mod slab;

pub use pool::{Block, Pool, PoolStats};
pub use slab::{ReleaseSink, SlabMap, View, keep_from_children};

/// Parts of at least this many bytes travel in blocks between processes of one host.
pub const BLOCK_MIN_BYTES: usize = 64 << 10;
