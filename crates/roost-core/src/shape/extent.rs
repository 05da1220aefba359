//! Named dimensions and their sizes, with row-major ranks.

use std::fmt;
use std::sync::Arc;

use super::{Result, ShapeError};

/// An ordered list of named dimensions. Labels are distinct and the number of ranks fits a word.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// Shared, because every view of a mesh has the labels of its parent or nearly so.
    labels: Arc<[String]>,
    sizes: Box<[usize]>,
    count: usize,
}

impl Extent {
    /// An extent with one size for each label.
    pub fn new(labels: impl Into<Arc<[String]>>, sizes: impl Into<Box<[usize]>>) -> Result<Self> {
        let (labels, sizes) = (labels.into(), sizes.into());
        if labels.len() != sizes.len() {
            return Err(ShapeError::LengthMismatch {
                left: "labels",
                left_len: labels.len(),
                right: "sizes",
                right_len: sizes.len(),
            });
        }
        check_distinct(&labels)?;
        let count = count_ranks(&sizes)?;
        Ok(Self { labels, sizes, count })
    }

    /// The dimensions' names, outermost first.
    #[must_use]
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// The dimensions' names, to be shared with another shape.
    #[must_use]
    pub fn shared_labels(&self) -> Arc<[String]> {
        Arc::clone(&self.labels)
    }

    /// The dimensions' sizes, outermost first.
    #[must_use]
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// The number of ranks: the product of the sizes, 1 without dimensions.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Where a label stands among the dimensions.
    #[must_use]
    pub fn position(&self, label: &str) -> Option<usize> {
        self.labels.iter().position(|known| known == label)
    }

    /// The size of a dimension.
    pub fn size(&self, label: &str) -> Result<usize> {
        self.position(label).map(|dim| self.sizes[dim]).ok_or_else(|| unknown_dimension(label, &self.labels))
    }

    /// Checks that a number is a rank of this extent.
    pub fn check_rank(&self, rank: i64) -> Result<usize> {
        usize::try_from(rank)
            .ok()
            .filter(|rank| *rank < self.count)
            .ok_or_else(|| ShapeError::RankOutOfRange { rank, extent: self.to_string(), count: self.count })
    }

    /// The index along the dimension at `position` of a rank that [`Extent::check_rank`] accepted.
    ///
    /// # Panics
    /// When `position` is not that of a dimension.
    #[must_use]
    pub fn coordinate(&self, rank: usize, position: usize) -> usize {
        let inner: usize = self.sizes[position + 1..].iter().product();
        // A size or an inner product of zero means that there are no ranks, hence none to ask about.
        (rank / inner.max(1)) % self.sizes[position].max(1)
    }

    /// The index along the dimension `label` of a rank that [`Extent::check_rank`] accepted.
    pub fn index_at(&self, rank: usize, label: &str) -> Result<usize> {
        self.position(label)
            .map(|dim| self.coordinate(rank, dim))
            .ok_or_else(|| unknown_dimension(label, &self.labels))
    }

    /// The row-major rank of a full set of coordinates, given in any order.
    pub fn rank(&self, coordinates: &[(String, i64)]) -> Result<usize> {
        if let Some((label, _)) = coordinates.iter().find(|(label, _)| self.position(label).is_none()) {
            return Err(unknown_dimension(label, &self.labels));
        }
        self.labels.iter().zip(&self.sizes).try_fold(0, |rank, (label, &size)| {
            let index =
                coordinates.iter().find_map(|(given, index)| (given == label).then_some(*index)).ok_or_else(
                    || ShapeError::MissingCoordinate { label: label.clone(), known: self.labels.to_vec() },
                )?;
            Ok(rank * size + check_index(label, index, size)?)
        })
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("{")?;
        for (dim, (label, size)) in self.labels.iter().zip(&self.sizes).enumerate() {
            let separator = if dim == 0 { "" } else { ", " };
            write!(out, "{separator}{label}: {size}")?;
        }
        out.write_str("}")
    }
}

/// The product of sizes, unless it does not fit a word.
pub(super) fn count_ranks(sizes: &[usize]) -> Result<usize> {
    // A zero makes the product zero wherever it stands; the others must fit without it, so that
    // partial products never overflow elsewhere.
    sizes
        .iter()
        .filter(|size| **size != 0)
        .try_fold(1_usize, |product, size| product.checked_mul(*size))
        .map(|product| if sizes.contains(&0) { 0 } else { product })
        .ok_or_else(|| ShapeError::TooLarge { sizes: sizes.to_vec() })
}

pub(super) fn check_distinct(labels: &[String]) -> Result<()> {
    let repeated = labels.iter().enumerate().find(|(dim, label)| labels[..*dim].contains(label));
    match repeated {
        None => Ok(()),
        Some((_, label)) => {
            Err(ShapeError::DuplicateDimension { label: label.clone(), labels: labels.to_vec() })
        }
    }
}

pub(super) fn check_index(label: &str, index: i64, size: usize) -> Result<usize> {
    usize::try_from(index).ok().filter(|index| *index < size).ok_or_else(|| ShapeError::IndexOutOfRange {
        label: label.to_owned(),
        index,
        size,
    })
}

pub(super) fn unknown_dimension(label: &str, known: &[String]) -> ShapeError {
    ShapeError::UnknownDimension { label: label.to_owned(), known: known.to_vec() }
}
