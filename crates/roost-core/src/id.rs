//! Names of things: processes and mailboxes.

/// A process: its mesh's random identity and its rank in it. The name is a function of the mesh, so
/// that a reference to a mesh of any size is a few bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcId {
    /// Random identity of the process mesh.
    pub mesh: u64,
    /// Rank of the process in its mesh.
    pub rank: u32,
}

impl std::fmt::Display for ProcId {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{:016x}[{}]", self.mesh, self.rank)
    }
}

/// A queue inside a process. Actor meshes use one random number for the queues of all their ranks.
pub type BoxId = u64;

/// The mailbox that every process has for its runtime.
pub const SYSTEM_BOX: BoxId = 0;
