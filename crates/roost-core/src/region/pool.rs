//! The sender's side: slabs cut into blocks, reused while warm, given back when idle.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::slab::{ReleaseSink, SlabMap};
use crate::lock;

/// A block in use. It does not give itself back: the pool counts the receivers.
#[derive(Clone)]
pub struct Block {
    /// Slab that holds it.
    pub slab: u64,
    /// Byte offset in the slab.
    pub offset: u64,
    /// Bytes used.
    pub len: u64,
    /// The mapping.
    pub map: Arc<SlabMap>,
}

impl Block {
    /// The bytes of a block that nobody writes to any more.
    pub(crate) fn bytes(&self) -> &[u8] {
        let Some(start) = self.map.at(self.offset, self.len) else { return &[] };
        // SAFETY: the block lies in the mapping, which lives as long as self; it was filled before it was handed
        // on, and is not written to while it is on its way.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.len as usize) }
    }

    /// Fills a part of a block that was just taken from the pool.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        let Some(target) = self.map.at(self.offset + at as u64, bytes.len() as u64) else { return };
        // SAFETY: nobody else has the block yet, and the range was checked to lie in its slab.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target.as_ptr(), bytes.len()) };
    }
}

struct Slab {
    map: Arc<SlabMap>,
    block_bytes: usize,
    free: Vec<u32>,
    users: Vec<u32>,
    idle_since: Option<Instant>,
}

impl Slab {
    fn is_idle(&self) -> bool {
        self.free.len() == self.users.len()
    }
}

#[derive(Default)]
struct State {
    slabs: FxHashMap<u64, Slab>,
    by_class: FxHashMap<usize, Vec<u64>>,
    next: u64,
    reserved_bytes: usize,
}

/// What the pool holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Slabs.
    pub slabs: usize,
    /// Bytes of all slabs.
    pub reserved_bytes: usize,
    /// Blocks that some receiver still uses.
    pub used_blocks: usize,
}

/// All slabs of this process.
pub struct Pool {
    state: Mutex<State>,
    limit_bytes: usize,
}

/// An idle slab is closed after this time.
const IDLE: Duration = Duration::from_secs(10);
/// Small blocks share slabs of about this size, so that descriptors stay few.
const SLAB_BYTES: usize = 8 << 20;

impl Pool {
    /// A pool that never reserves more than `limit_bytes`; beyond it payloads travel inline.
    #[must_use]
    pub fn new(limit_bytes: usize) -> Self {
        Self { state: Mutex::new(State { next: 1, ..State::default() }), limit_bytes }
    }

    /// A block of at least `len` bytes with `users` receivers, or none when the pool is full. With
    /// `over_limit` the limit does not count: the payload is too large to go another way.
    pub fn take(&self, len: usize, users: u32, over_limit: bool) -> Option<Block> {
        let class = len.max(4096).checked_next_power_of_two()?;
        let mut state = lock(&self.state);
        let state = &mut *state;
        let ids = state.by_class.entry(class).or_default();
        let found = ids
            .iter()
            .rev()
            .copied()
            .find(|id| state.slabs.get(id).is_some_and(|slab| !slab.free.is_empty()));
        let id = if let Some(id) = found {
            id
        } else {
            let bytes = class.max(SLAB_BYTES);
            if state.reserved_bytes + bytes > self.limit_bytes && !over_limit {
                return None;
            }
            let map = SlabMap::create(bytes).ok()?;
            let blocks = bytes / class;
            let id = state.next;
            state.next += 1;
            state.reserved_bytes += bytes;
            state.slabs.insert(
                id,
                Slab {
                    map: Arc::new(map),
                    block_bytes: class,
                    free: (0..blocks as u32).rev().collect(),
                    users: vec![0; blocks],
                    idle_since: None,
                },
            );
            ids.push(id);
            id
        };
        let slab = state.slabs.get_mut(&id)?;
        let number = slab.free.pop()?;
        slab.users[number as usize] = users;
        slab.idle_since = None;
        Some(Block {
            slab: id,
            offset: u64::from(number) * class as u64,
            len: len as u64,
            map: Arc::clone(&slab.map),
        })
    }

    /// Takes `count` users off a block; the last one frees it.
    pub fn give_back(&self, slab_id: u64, offset: u64, count: u32) {
        let mut state = lock(&self.state);
        let Some(slab) = state.slabs.get_mut(&slab_id) else { return };
        let number = offset as usize / slab.block_bytes;
        let Some(users) = slab.users.get_mut(number) else { return };
        if *users == 0 {
            return;
        }
        *users = users.saturating_sub(count);
        if *users == 0 {
            slab.free.push(number as u32);
            if slab.is_idle() {
                slab.idle_since = Some(Instant::now());
            }
        }
    }

    /// Closes slabs that have been idle for long, and returns their names for the peers that map them.
    pub fn trim(&self, now: Instant) -> Vec<u64> {
        self.close_where(|slab| slab.idle_since.is_some_and(|since| now.duration_since(since) >= IDLE))
    }

    /// Closes all idle slabs.
    pub fn trim_all(&self) -> Vec<u64> {
        self.close_where(Slab::is_idle)
    }

    fn close_where(&self, unwanted: impl Fn(&Slab) -> bool) -> Vec<u64> {
        let mut state = lock(&self.state);
        let gone: Vec<u64> =
            state.slabs.iter().filter(|(_, slab)| unwanted(slab)).map(|(id, _)| *id).collect();
        for id in &gone {
            if let Some(slab) = state.slabs.remove(id) {
                state.reserved_bytes -= slab.map.size();
                if let Some(ids) = state.by_class.get_mut(&slab.block_bytes) {
                    ids.retain(|other| other != id);
                }
            }
        }
        gone
    }

    /// What the pool holds now.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        let state = lock(&self.state);
        PoolStats {
            slabs: state.slabs.len(),
            reserved_bytes: state.reserved_bytes,
            used_blocks: state.slabs.values().map(|slab| slab.users.len() - slab.free.len()).sum(),
        }
    }
}

impl ReleaseSink for Pool {
    fn release(&self, slab: u64, offset: u64) {
        self.give_back(slab, offset, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_reused_when_its_last_user_has_gone() {
        let pool = Pool::new(1 << 30);
        let block = pool.take(100_000, 2, false).expect("room");
        pool.give_back(block.slab, block.offset, 1);
        assert_eq!(pool.stats().used_blocks, 1);
        pool.give_back(block.slab, block.offset, 1);
        let again = pool.take(100_000, 1, false).expect("room");
        assert_eq!((again.slab, again.offset), (block.slab, block.offset));
    }

    #[test]
    fn a_full_pool_says_so_and_idle_memory_is_given_back() {
        let pool = Pool::new(64 << 20);
        let block = pool.take(64 << 20, 1, false).expect("room");
        assert!(pool.take(1 << 20, 1, false).is_none());
        let large = pool.take(1 << 20, 1, true).expect("the limit does not count");
        pool.give_back(large.slab, large.offset, 1);
        assert_eq!(pool.trim_all(), vec![large.slab]);
        pool.give_back(block.slab, block.offset, 1);
        assert!(pool.trim(Instant::now()).is_empty());
        assert_eq!(pool.trim(Instant::now() + IDLE), vec![block.slab]);
        assert_eq!(pool.stats(), PoolStats::default());
    }

    #[test]
    fn views_of_a_shared_block_do_not_see_each_others_writes() {
        let pool = Arc::new(Pool::new(64 << 20));
        let block = pool.take(8192, 2, false).expect("room");
        let view = |sink: Arc<Pool>| {
            super::super::View::new(block.map.clone(), (block.slab, block.offset, block.len), true, sink)
                .expect("mapped")
        };
        let (one, two) = (view(pool.clone()), view(pool.clone()));
        // SAFETY: the pointer is to 8192 writable bytes of this view.
        unsafe { one.pointer().write(7) };
        assert_eq!((one.bytes()[0], two.bytes()[0]), (7, 0));
        drop((one, two));
        assert_eq!(pool.stats().used_blocks, 0);
    }
}
