//! Starting a process, as Python sees it.

use pyo3::prelude::*;
use roost_core::proc;

/// Makes a process that was just forked by `parent` its own session that dies with its parent.
#[pyfunction]
pub fn detach_process(parent: u32) -> bool {
    proc::detach(parent)
}

/// Closes all descriptors from 3 on but those in `keep`.
#[pyfunction]
pub fn close_other_fds(keep: Vec<i32>) {
    proc::close_others(&keep);
}

/// Shows a name in process lists.
#[pyfunction]
pub fn set_process_name(name: &str) {
    proc::set_name(name);
}
