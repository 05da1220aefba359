//! New dimensions for the same ranks: flattening, splitting, renaming.

use super::extent::unknown_dimension;
use super::{Region, Result, ShapeError, Slice};

/// One dimension that a split replaces by others, outermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The dimension that goes away.
    pub label: String,
    /// The dimensions that take its place.
    pub parts: Vec<String>,
}

impl Region {
    /// The same ranks under one dimension. Refused where they are not consecutive, because a
    /// flattened mesh is numbered as its base is.
    pub fn flatten(&self, label: &str) -> Result<Self> {
        let slice = self.slice();
        if !slice.is_dense() {
            return Err(ShapeError::Sparse { label: label.to_owned(), slice: slice.to_string() });
        }
        Self::new(vec![label.to_owned()], Slice::new(slice.offset(), [slice.count()], [1])?)
    }

    /// The same ranks with some dimensions called otherwise: pairs of old and new label.
    pub fn rename(&self, names: &[(String, String)]) -> Result<Self> {
        self.check_known(names.iter().map(|(old, _)| old))?;
        let renamed = |label: &String| {
            let new = names.iter().find_map(|(old, new)| (old == label).then_some(new));
            new.unwrap_or(label).clone()
        };
        let labels: Vec<String> = self.labels().iter().map(renamed).collect();
        Self::new(labels, self.slice().clone())
    }

    /// The same ranks with some dimensions replaced by several. `sizes` gives the sizes of new
    /// dimensions; of each group one may be left out and is inferred.
    pub fn split(&self, groups: &[Group], sizes: &[(String, usize)]) -> Result<Self> {
        self.check_known(groups.iter().map(|group| &group.label))?;
        let made: Vec<&String> = groups.iter().flat_map(|group| &group.parts).collect();
        if let Some((label, _)) = sizes.iter().find(|(label, _)| !made.contains(&label)) {
            return Err(ShapeError::UnusedSize {
                label: label.clone(),
                made: made.into_iter().cloned().collect(),
            });
        }
        let (mut labels, mut new_sizes, mut strides) = (Vec::new(), Vec::new(), Vec::new());
        for (dim, label) in self.labels().iter().enumerate() {
            let (size, stride) = (self.slice().sizes()[dim], self.slice().strides()[dim]);
            match groups.iter().find(|group| group.label == *label) {
                None => {
                    labels.push(label.clone());
                    new_sizes.push(size);
                    strides.push(stride);
                }
                Some(group) => {
                    let parts = group.resolve(size, sizes)?;
                    strides.extend(inner_strides(&parts, stride)?);
                    labels.extend_from_slice(&group.parts);
                    new_sizes.extend(parts);
                }
            }
        }
        Self::new(labels, Slice::new(self.slice().offset(), new_sizes, strides)?)
    }

    fn check_known<'a>(&self, mut labels: impl Iterator<Item = &'a String>) -> Result<()> {
        match labels.find(|label| !self.labels().contains(label)) {
            None => Ok(()),
            Some(label) => Err(unknown_dimension(label, self.labels())),
        }
    }
}

impl Group {
    /// The sizes of the parts, whose product is `size`.
    fn resolve(&self, size: usize, given: &[(String, usize)]) -> Result<Vec<usize>> {
        let size_of = |part: &String| given.iter().find_map(|(label, size)| (label == part).then_some(*size));
        let parts: Vec<Option<usize>> = self.parts.iter().map(size_of).collect();
        let missing: Vec<&String> =
            self.parts.iter().zip(&parts).filter(|(_, size)| size.is_none()).map(|(part, _)| part).collect();
        if missing.len() > 1 {
            return Err(ShapeError::AmbiguousSplit {
                label: self.label.clone(),
                unsized_labels: missing.into_iter().cloned().collect(),
            });
        }
        let known = parts.iter().flatten().try_fold(1_usize, |product, part| product.checked_mul(*part));
        let inferred = match known {
            Some(known) if missing.is_empty() => (known == size).then_some(1),
            Some(known) if known > 0 && size.is_multiple_of(known) => Some(size / known),
            _ => None,
        };
        let inferred = inferred.ok_or_else(|| self.indivisible(size, &parts))?;
        Ok(parts.into_iter().map(|part| part.unwrap_or(inferred)).collect())
    }

    fn indivisible(&self, size: usize, parts: &[Option<usize>]) -> ShapeError {
        let print = |(part, size): (&String, &Option<usize>)| match size {
            Some(size) => format!("{part}={size}"),
            None => part.clone(),
        };
        let printed: Vec<String> = self.parts.iter().zip(parts).map(print).collect();
        ShapeError::NotDivisible {
            label: self.label.clone(),
            size,
            parts: format!("({})", printed.join(", ")),
        }
    }
}

/// Row-major strides of dimensions that divide one of stride `stride`.
fn inner_strides(sizes: &[usize], stride: usize) -> Result<Vec<usize>> {
    let mut strides = vec![stride; sizes.len()];
    for dim in (1..sizes.len()).rev() {
        // Where nothing lies further out, the stride reaches no rank and may be any.
        let outer_is_unit = sizes[..dim].iter().all(|size| *size <= 1);
        strides[dim - 1] = match strides[dim].checked_mul(sizes[dim].max(1)) {
            Some(wider) => wider,
            None if outer_is_unit => strides[dim],
            None => {
                return Err(ShapeError::TooLarge { sizes: sizes.to_vec() });
            }
        };
    }
    Ok(strides)
}
