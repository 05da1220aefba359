//! What can be wrong with a request about a shape. Every text says what exists instead.

use thiserror::Error;

/// A request that a shape cannot satisfy.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ShapeError {
    /// A dimension that the shape does not have.
    #[error("no dimension {label:?}; {}", listed(.known))]
    UnknownDimension {
        /// The label asked for.
        label: String,
        /// The labels that exist, in order.
        known: Vec<String>,
    },
    /// A full set of coordinates was needed and one is absent.
    #[error("no index for dimension {label:?}; {}", listed(.known))]
    MissingCoordinate {
        /// The label without an index.
        label: String,
        /// All labels of the shape.
        known: Vec<String>,
    },
    /// An index outside a dimension. Negative indices are never wrapped around.
    #[error("index {index} is out of range for dimension {label:?}, which has size {size}")]
    IndexOutOfRange {
        /// The dimension.
        label: String,
        /// The index asked for.
        index: i64,
        /// The dimension's size.
        size: usize,
    },
    /// A position outside an unnamed sequence of ranks.
    #[error("position {index} is out of range for size {size}")]
    PositionOutOfRange {
        /// The position asked for.
        index: i64,
        /// The number of positions.
        size: usize,
    },
    /// A rank outside an extent.
    #[error("rank {rank} is out of range for {extent}, which has {count} ranks")]
    RankOutOfRange {
        /// The rank asked for.
        rank: i64,
        /// The extent, printed.
        extent: String,
        /// How many ranks the extent has.
        count: usize,
    },
    /// A rank that a strided set does not hold.
    #[error("rank {rank} is not in {slice}")]
    NotInSlice {
        /// The rank asked for.
        rank: i64,
        /// The set, printed.
        slice: String,
    },
    /// A range that selects no index.
    #[error("slice {steps} of dimension {label:?}, which has size {size}, selects nothing")]
    EmptySelection {
        /// The dimension.
        label: String,
        /// The range, printed.
        steps: String,
        /// The dimension's size.
        size: usize,
    },
    /// A step of zero or less.
    #[error("slice {steps} of dimension {label:?}: the step must be positive")]
    StepNotPositive {
        /// The dimension.
        label: String,
        /// The range, printed.
        steps: String,
    },
    /// Two dimensions of one name.
    #[error("dimension {label:?} appears twice in {labels:?}")]
    DuplicateDimension {
        /// The repeated label.
        label: String,
        /// All labels as given.
        labels: Vec<String>,
    },
    /// Lists that must be of one length are not.
    #[error("{left} has {left_len} entries and {right} has {right_len}")]
    LengthMismatch {
        /// What the first list is.
        left: &'static str,
        /// Its length.
        left_len: usize,
        /// What the second list is.
        right: &'static str,
        /// Its length.
        right_len: usize,
    },
    /// The number of ranks, or the largest rank, does not fit a machine word.
    #[error("sizes {sizes:?} describe more ranks than a machine word counts")]
    TooLarge {
        /// The sizes as given.
        sizes: Vec<usize>,
    },
    /// Ranks with gaps cannot become one dimension.
    #[error("cannot flatten {slice} into {label:?}: it is sparse, its ranks are not consecutive")]
    Sparse {
        /// The name of the dimension to be.
        label: String,
        /// The set, printed.
        slice: String,
    },
    /// The sizes of a split do not multiply to the size of what is split.
    #[error("cannot split dimension {label:?} of size {size} into {parts}")]
    NotDivisible {
        /// The dimension to split.
        label: String,
        /// Its size.
        size: usize,
        /// The wanted dimensions, printed.
        parts: String,
    },
    /// More than one size of a split is left to infer.
    #[error("cannot infer the sizes of {unsized_labels:?} in the split of {label:?}: give all but one")]
    AmbiguousSplit {
        /// The dimension to split.
        label: String,
        /// The new dimensions without a size.
        unsized_labels: Vec<String>,
    },
    /// A size was given for a dimension that the split does not make.
    #[error("size given for {label:?}, which is not among the new dimensions {made:?}")]
    UnusedSize {
        /// The label whose size is of no use.
        label: String,
        /// The dimensions that the split makes.
        made: Vec<String>,
    },
}

/// The second half of an error about labels: those that would have worked.
fn listed(known: &[String]) -> String {
    match known {
        [] => "there are no dimensions".to_owned(),
        _ => format!("the dimensions are {}", known.join(", ")),
    }
}
