//! The engine of roost: it moves messages and bytes between processes and notices deaths.
//!
//! Layers, each importing only from those before it: `shape`.

pub mod shape;
