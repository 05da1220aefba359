//! The engine of roost: it moves messages and bytes between processes and notices deaths.
//!
//! Layers, each importing only from those before it: `shape`, `wire`, `region`, `link`, `mailbox`, `route`.

pub mod id;
pub mod link;
pub mod mailbox;
pub mod message;
pub mod park;
pub mod proc;
pub mod region;
pub mod route;
pub mod shape;
pub mod wire;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also after a panic elsewhere: each critical section here leaves its data whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
