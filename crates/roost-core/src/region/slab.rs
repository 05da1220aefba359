//! One slab mapped into this process, and views of its blocks.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::{Errno, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

/// A slab's descriptor and its shared mapping.
pub struct SlabMap {
    fd: OwnedFd,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone and stays until it is dropped; access to the bytes is
// handed out by block, and the pool (sender) or the view (receiver) sees to it that a block has one user.
unsafe impl Send for SlabMap {}
// SAFETY: as above.
unsafe impl Sync for SlabMap {}

/// Whether slabs stay out of processes that this one forks.
static STAYS_HERE: AtomicBool = AtomicBool::new(false);

/// Slabs that this process maps from now on are not mapped in its children, where they would keep memory from
/// being given back. For host agents, whose children start anew; what a user's process forks may go on reading.
pub fn keep_from_children() {
    STAYS_HERE.store(true, Relaxed);
}

fn map(fd: &OwnedFd, offset: u64, len: usize, flags: MapFlags) -> Result<NonNull<u8>> {
    // SAFETY: a new mapping at an address that the kernel chooses aliases nothing of this process.
    let pointer =
        unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags, fd, offset)? };
    if STAYS_HERE.load(Relaxed) {
        // SAFETY: the whole mapping that was just made; contents stay as they are.
        unsafe { madvise(pointer, len, Advice::LinuxDontFork)? };
    }
    NonNull::new(pointer.cast()).ok_or(Errno::NOMEM)
}

impl SlabMap {
    /// A new slab of `len` bytes that can never change its size, so that no receiver can be made to fault.
    ///
    /// # Errors
    /// Whatever the kernel says: out of descriptors or memory.
    pub fn create(len: usize) -> Result<Self> {
        let fd = memfd_create(c"roost", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, len as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let base = map(&fd, 0, len, MapFlags::SHARED)?;
        Ok(Self { fd, base, len })
    }

    /// The slab behind a descriptor from a peer.
    ///
    /// # Errors
    /// `EPERM` when it is not sealed against shrinking, else what the kernel says.
    pub fn open(fd: OwnedFd) -> Result<Self> {
        if !fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK) {
            return Err(Errno::PERM);
        }
        let len = usize::try_from(fstat(&fd)?.st_size).map_err(|_| Errno::INVAL)?;
        let base = map(&fd, 0, len, MapFlags::SHARED)?;
        Ok(Self { fd, base, len })
    }

    /// Bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.len
    }

    /// The descriptor, to hand to a peer.
    #[must_use]
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Start of the block at `offset`, if `len` bytes of it lie in the slab.
    #[must_use]
    pub fn at(&self, offset: u64, len: u64) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len)?;
        if end > self.len as u64 {
            return None;
        }
        // SAFETY: the offset was checked to be in the mapping.
        Some(unsafe { self.base.add(offset as usize) })
    }
}

impl Drop for SlabMap {
    fn drop(&mut self) {
        // SAFETY: views hold an Arc of this map, so none is left.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Who is told that a view has died.
pub trait ReleaseSink: Send + Sync {
    /// The block at `offset` of `slab` has one user fewer.
    fn release(&self, slab: u64, offset: u64);
}

/// Received bytes in shared memory. Dropping it gives the block back to its sender.
pub struct View {
    pointer: NonNull<u8>,
    len: usize,
    private: Option<usize>,
    slab: u64,
    offset: u64,
    sink: Arc<dyn ReleaseSink>,
    _map: Arc<SlabMap>,
}

// SAFETY: the view owns its block (or its private mapping) until it is dropped.
unsafe impl Send for View {}
// SAFETY: shared access through `&View` only reads; Python's buffer protocol hands the pointer on under
// the rules of Python's own buffers.
unsafe impl Sync for View {}

impl View {
    /// A view of a block; with `shared`, a copy-on-write mapping of its own.
    ///
    /// # Errors
    /// `EINVAL` when the block does not lie in the slab, else what the kernel says.
    pub fn new(
        map_of_slab: Arc<SlabMap>,
        (slab, offset, len): (u64, u64, u64),
        shared: bool,
        sink: Arc<dyn ReleaseSink>,
    ) -> Result<Self> {
        let inside = map_of_slab.at(offset, len).ok_or(Errno::INVAL)?;
        let len = len as usize;
        let (pointer, private) = if shared && len > 0 {
            (map(&map_of_slab.fd, offset, len, MapFlags::PRIVATE)?, Some(len))
        } else {
            (inside, None)
        };
        Ok(Self { pointer, len, private, slab, offset, sink, _map: map_of_slab })
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping lives as long as self and is at least this long.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.len) }
    }

    /// Start of the bytes, writable.
    #[must_use]
    pub fn pointer(&self) -> NonNull<u8> {
        self.pointer
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if let Some(len) = self.private {
            // SAFETY: the private mapping was made by `new` for this view alone.
            let _ = unsafe { munmap(self.pointer.as_ptr().cast(), len) };
        }
        self.sink.release(self.slab, self.offset);
    }
}
