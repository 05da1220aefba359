//! What a process does to itself when it starts.

use std::os::fd::RawFd;

use rustix::process::{Signal, getppid, set_parent_process_death_signal, setsid};

/// Makes the calling process, just forked, a session of its own that dies with its parent. False when the
/// parent has died already.
#[must_use]
pub fn detach(parent: u32) -> bool {
    let _ = setsid();
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    getppid().is_some_and(|pid| pid.as_raw_nonzero().get() as u32 == parent)
}

/// Closes all descriptors from 3 on but those in `keep`.
pub fn close_others(keep: &[RawFd]) {
    let mut keep: Vec<u32> = keep.iter().filter_map(|fd| u32::try_from(*fd).ok()).collect();
    keep.sort_unstable();
    let mut from = 3;
    for fd in keep.into_iter().chain([u32::MAX]) {
        if fd > from {
            close_range(from, fd - u32::from(fd != u32::MAX));
        }
        from = from.max(fd.saturating_add(1));
    }
}

fn close_range(first: u32, last: u32) {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let open: Vec<u32> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()))
        .filter(|fd| (first..=last).contains(fd))
        .collect();
    for fd in open {
        // SAFETY: a process just forked gives up what it has inherited; nothing that it runs from now on
        // refers to these descriptors.
        unsafe { rustix::io::close(fd as RawFd) };
    }
}

/// Shows a name in process lists (15 bytes at most).
pub fn set_name(name: &str) {
    let mut short = name.as_bytes().to_vec();
    short.truncate(15);
    short.retain(|byte| *byte != 0);
    if let Ok(name) = std::ffi::CString::new(short) {
        let _ = rustix::thread::set_name(&name);
    }
}
