//! A strided set of ranks: an offset and, for each dimension, a size and a stride.

use std::fmt;

use super::extent::count_ranks;
use super::{Result, ShapeError};

/// Ranks `offset + Σ index × stride` for every index below its size, in row-major order of the
/// indices. The count and the largest rank fit a word.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Slice {
    offset: usize,
    sizes: Box<[usize]>,
    strides: Box<[usize]>,
    count: usize,
}

impl Slice {
    /// A slice with one stride for each size.
    pub fn new(
        offset: usize,
        sizes: impl Into<Box<[usize]>>,
        strides: impl Into<Box<[usize]>>,
    ) -> Result<Self> {
        let (sizes, strides) = (sizes.into(), strides.into());
        if sizes.len() != strides.len() {
            return Err(ShapeError::LengthMismatch {
                left: "sizes",
                left_len: sizes.len(),
                right: "strides",
                right_len: strides.len(),
            });
        }
        let count = count_ranks(&sizes)?;
        sizes
            .iter()
            .zip(&strides)
            .try_fold(offset, |last, (size, stride)| {
                last.checked_add(size.saturating_sub(1).checked_mul(*stride)?)
            })
            .ok_or_else(|| ShapeError::TooLarge { sizes: sizes.to_vec() })?;
        Ok(Self { offset, sizes, strides, count })
    }

    /// All ranks of a dense array of these sizes.
    pub fn row_major(sizes: impl Into<Box<[usize]>>) -> Result<Self> {
        let sizes = sizes.into();
        count_ranks(&sizes)?;
        let mut strides = vec![1; sizes.len()];
        for dim in (1..sizes.len()).rev() {
            strides[dim - 1] = strides[dim] * sizes[dim].max(1);
        }
        Self::new(0, sizes, strides)
    }

    /// The fewest one-dimensional slices, taken greedily, that together hold exactly these ranks;
    /// in ascending order, repeated ranks held once.
    #[must_use]
    pub fn cover(mut ranks: Vec<usize>) -> Vec<Self> {
        ranks.sort_unstable();
        ranks.dedup();
        let mut slices = Vec::new();
        let mut rest = ranks.as_slice();
        while let Some(&first) = rest.first() {
            let step = rest.get(1).map_or(1, |second| second - first);
            let count = 1 + rest.windows(2).take_while(|pair| pair[1] - pair[0] == step).count();
            slices.push(Self { offset: first, sizes: [count].into(), strides: [step].into(), count });
            rest = &rest[count..];
        }
        slices
    }

    /// The rank at index zero of every dimension.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The number of indices of each dimension, outermost first.
    #[must_use]
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// The distance in ranks between neighbours along each dimension.
    #[must_use]
    pub fn strides(&self) -> &[usize] {
        &self.strides
    }

    /// The number of ranks.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether the ranks are consecutive and ascending.
    #[must_use]
    pub fn is_dense(&self) -> bool {
        let mut expected = 1;
        self.count == 0
            || self.sizes.iter().zip(&self.strides).rev().all(|(&size, &stride)| {
                let fits = size == 1 || stride == expected;
                expected *= size;
                fits
            })
    }

    /// The rank at a row-major position.
    #[must_use]
    pub fn get(&self, position: usize) -> Option<usize> {
        if position >= self.count {
            return None;
        }
        let mut rest = position;
        let dims = self.sizes.iter().zip(&self.strides).rev();
        Some(dims.fold(self.offset, |rank, (size, stride)| {
            let index = rest % size;
            rest /= size;
            rank + index * stride
        }))
    }

    /// The rank at a set of indices, one for each dimension.
    pub fn at(&self, indices: &[i64]) -> Result<usize> {
        if indices.len() != self.sizes.len() {
            return Err(ShapeError::LengthMismatch {
                left: "coordinates",
                left_len: indices.len(),
                right: "sizes",
                right_len: self.sizes.len(),
            });
        }
        let dims = self.sizes.iter().zip(&self.strides).zip(indices);
        dims.into_iter().try_fold(self.offset, |rank, ((&size, stride), &index)| {
            let checked = usize::try_from(index).ok().filter(|index| *index < size);
            let index = checked.ok_or(ShapeError::PositionOutOfRange { index, size })?;
            Ok(rank + index * stride)
        })
    }

    /// The indices at which a rank stands. Strides that overlap may reach a rank in several ways, of
    /// which one is returned; slices made by slicing never overlap.
    #[must_use]
    pub fn coordinates(&self, rank: usize) -> Option<Vec<usize>> {
        let distance = rank.checked_sub(self.offset).filter(|_| self.count > 0)?;
        let mut dims: Vec<usize> = (0..self.sizes.len()).filter(|dim| self.sizes[*dim] > 1).collect();
        dims.sort_by_key(|dim| std::cmp::Reverse(self.strides[*dim]));
        let mut indices = vec![0; self.sizes.len()];
        self.search(distance, &dims, &mut indices).then_some(indices)
    }

    /// The row-major position of a rank; the inverse of [`Slice::get`].
    #[must_use]
    pub fn position(&self, rank: usize) -> Option<usize> {
        let indices = self.coordinates(rank)?;
        Some(indices.iter().zip(&self.sizes).fold(0, |position, (index, size)| position * size + index))
    }

    /// All ranks in row-major order.
    #[must_use]
    pub fn ranks(&self) -> Ranks<'_> {
        Ranks { slice: self, next: 0 }
    }

    /// Writes `distance` as a sum of strides, widest first. `dims` holds only dimensions of two
    /// indices or more, hence fewer than a word has bits, which bounds the recursion. Where strides
    /// do not overlap, each dimension leaves one candidate.
    fn search(&self, distance: usize, dims: &[usize], indices: &mut [usize]) -> bool {
        let Some((&dim, inner)) = dims.split_first() else {
            return distance == 0;
        };
        let (size, stride) = (self.sizes[dim], self.strides[dim]);
        let reach: usize = inner.iter().map(|dim| (self.sizes[*dim] - 1) * self.strides[*dim]).sum();
        let highest = distance.checked_div(stride).map_or(0, |most| most.min(size - 1));
        (0..=highest).rev().take_while(|index| distance - index * stride <= reach).any(|index| {
            indices[dim] = index;
            self.search(distance - index * stride, inner, indices)
        })
    }
}

impl fmt::Display for Slice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offset, sizes, strides, .. } = self;
        write!(out, "Slice(offset={offset}, sizes={sizes:?}, strides={strides:?})")
    }
}

/// The ranks of a [`Slice`], in order.
#[derive(Clone, Debug)]
pub struct Ranks<'a> {
    slice: &'a Slice,
    next: usize,
}

impl Iterator for Ranks<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let rank = self.slice.get(self.next)?;
        self.next += 1;
        Some(rank)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.slice.count - self.next;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Ranks<'_> {}
