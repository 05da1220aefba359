//! A named view of the ranks of a mesh: labels joined to a strided set.

use std::fmt;
use std::sync::Arc;

use super::extent::{check_distinct, unknown_dimension};
use super::{Extent, Pick, Result, ShapeError, Slice};

/// Ranks of a base mesh under named dimensions. There is one distinct label for each dimension of
/// the slice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    labels: Arc<[String]>,
    slice: Slice,
}

impl Region {
    /// A region with one label for each dimension of the slice.
    pub fn new(labels: impl Into<Arc<[String]>>, slice: Slice) -> Result<Self> {
        let labels = labels.into();
        if labels.len() != slice.sizes().len() {
            return Err(ShapeError::LengthMismatch {
                left: "labels",
                left_len: labels.len(),
                right: "sizes",
                right_len: slice.sizes().len(),
            });
        }
        check_distinct(&labels)?;
        Ok(Self { labels, slice })
    }

    /// All ranks of an extent.
    pub fn whole(extent: &Extent) -> Result<Self> {
        Ok(Self { labels: extent.shared_labels(), slice: Slice::row_major(extent.sizes())? })
    }

    /// The dimensions' names, outermost first.
    #[must_use]
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// The base ranks.
    #[must_use]
    pub fn slice(&self) -> &Slice {
        &self.slice
    }

    /// The dimensions without the base ranks.
    pub fn extent(&self) -> Result<Extent> {
        Extent::new(Arc::clone(&self.labels), self.slice.sizes())
    }

    /// The row-major position in this region of a rank of the base.
    pub fn position(&self, base_rank: i64) -> Result<usize> {
        usize::try_from(base_rank)
            .ok()
            .and_then(|rank| self.slice.position(rank))
            .ok_or_else(|| self.without(base_rank))
    }

    /// The index along every dimension of a rank of the base.
    pub fn coordinates(&self, base_rank: i64) -> Result<Vec<usize>> {
        usize::try_from(base_rank)
            .ok()
            .and_then(|rank| self.slice.coordinates(rank))
            .ok_or_else(|| self.without(base_rank))
    }

    /// The part of this region that the picks take; dimensions not named stay whole.
    pub fn pick(&self, picks: &[(String, Pick)]) -> Result<Self> {
        if let Some((label, _)) = picks.iter().find(|(label, _)| !self.labels.contains(label)) {
            return Err(unknown_dimension(label, &self.labels));
        }
        let (mut labels, mut sizes, mut strides) = (Vec::new(), Vec::new(), Vec::new());
        let mut offset = self.slice.offset();
        for (dim, label) in self.labels.iter().enumerate() {
            let (size, stride) = (self.slice.sizes()[dim], self.slice.strides()[dim]);
            let Some((_, pick)) = picks.iter().find(|(given, _)| given == label) else {
                labels.push(label.clone());
                sizes.push(size);
                strides.push(stride);
                continue;
            };
            let (taken, stays) = pick.take(label, size)?;
            offset += taken.first * stride;
            if stays {
                labels.push(label.clone());
                sizes.push(taken.count);
                // A step past the end reaches no second rank, and its stride may not fit a word.
                strides.push(if taken.count > 1 { stride * taken.step } else { stride });
            }
        }
        Self::new(labels, Slice::new(offset, sizes, strides)?)
    }

    fn without(&self, rank: i64) -> ShapeError {
        ShapeError::NotInSlice { rank, slice: self.slice.to_string() }
    }
}

impl fmt::Display for Region {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Region({:?}, {})", self.labels, self.slice)
    }
}
