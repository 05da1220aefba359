//! What to take of one dimension: an index or a range, with Python's rules.

use std::fmt;

use super::extent::check_index;
use super::{Result, ShapeError};

/// A range of indices as Python writes it: `start:stop:step`, absent parts at their defaults,
/// negative bounds counted from the end, bounds beyond the end cut off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// The first index.
    pub start: Option<i64>,
    /// The index before which to stop.
    pub stop: Option<i64>,
    /// The distance between indices; must be positive, because ranks only ascend.
    pub step: Option<i64>,
}

/// A choice along one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// One index; the dimension goes away. Negative indices are errors.
    At(i64),
    /// A range; the dimension stays.
    Range(Steps),
}

/// The indices that a [`Pick`] takes: `first`, `first + step`, … , `count` of them, all in range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) first: usize,
    pub(super) step: usize,
    pub(super) count: usize,
}

impl Steps {
    /// The indices of a dimension of `size` that this range takes; possibly none. Nothing where the
    /// step is not positive.
    pub(super) fn resolve(self, size: usize) -> Option<Taken> {
        let step = usize::try_from(self.step.unwrap_or(1)).ok().filter(|step| *step > 0)?;
        let first = self.start.map_or(0, |bound| clamp(bound, size));
        let end = self.stop.map_or(size, |bound| clamp(bound, size));
        let count = end.saturating_sub(first).div_ceil(step);
        Some(Taken { first, step, count })
    }

    /// As [`Steps::resolve`], for a dimension with a name, of which something must remain.
    pub(super) fn take(self, label: &str, size: usize) -> Result<Taken> {
        match self.resolve(size) {
            Some(taken) if taken.count > 0 => Ok(taken),
            Some(_) => {
                Err(ShapeError::EmptySelection { label: label.to_owned(), steps: self.to_string(), size })
            }
            None => Err(ShapeError::StepNotPositive { label: label.to_owned(), steps: self.to_string() }),
        }
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |part: Option<i64>| part.map_or_else(String::new, |part| part.to_string());
        write!(out, "{}:{}", part(self.start), part(self.stop))?;
        match self.step {
            None => Ok(()),
            Some(step) => write!(out, ":{step}"),
        }
    }
}

impl Pick {
    /// The indices of the dimension `label` of `size`, and whether the dimension stays.
    pub(super) fn take(self, label: &str, size: usize) -> Result<(Taken, bool)> {
        match self {
            Self::At(index) => {
                let first = check_index(label, index, size)?;
                Ok((Taken { first, step: 1, count: 1 }, false))
            }
            Self::Range(steps) => Ok((steps.take(label, size)?, true)),
        }
    }
}

/// A bound of a range, between 0 and `size`.
fn clamp(bound: i64, size: usize) -> usize {
    let distance = usize::try_from(bound.unsigned_abs()).unwrap_or(usize::MAX);
    if bound < 0 { size.saturating_sub(distance) } else { distance.min(size) }
}
