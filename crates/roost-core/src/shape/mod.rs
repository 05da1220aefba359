//! Extents, regions and strided rank sets: the arithmetic of meshes.
//!
//! A mesh is a set of ranks with named dimensions. An [`Extent`] names the dimensions and their
//! sizes; a [`Slice`] is a strided set of ranks without names; a [`Region`] joins the two and says
//! which ranks of a larger mesh a view holds. Views are made by arithmetic alone, so that a slice of
//! a mesh of any size costs a few words. Everything here is a value: immutable, comparable, checked
//! when made, so that what exists is in range.

mod error;
mod extent;
mod pick;
mod region;
mod reshape;
mod slice;
#[cfg(test)]
mod tests;

pub use error::ShapeError;
pub use extent::Extent;
pub use pick::{Pick, Steps};
pub use region::Region;
pub use reshape::Group;
pub use slice::{Ranks, Slice};

/// What the operations of this module return.
pub type Result<T> = std::result::Result<T, ShapeError>;
