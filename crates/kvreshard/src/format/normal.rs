//! The normal form: what is left of a notation when only the bytes count.

use std::fmt;
use std::ops::Range;

use sha2::{Digest, Sha256};

use super::dtype::ElementType;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::units::{add, div, mul, rem, wide};

/// The most elements whose offsets are listed one by one.
pub const MAX_OFFSETS: u64 = 1 << 26;

/// One digit of an axis, in a mixed radix: index `i` of the axis contributes `(i / scale) % extent * stride` bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digit {
    /// The axis; [`Name::ANONYMOUS`] for loops without a name.
    pub axis: Name,
    /// How many steps of the axis one step of this digit is. States, heads, channels; not bytes.
    pub scale: u64,
    /// How many values the digit takes; more than 1.
    pub extent: u64,
    /// Bytes between neighbouring values.
    pub stride: u64,
}

/// A component of a page: one tensor of equal elements, with the map from its indexes to bytes.
#[derive(Debug, Clone)]
pub struct Component {
    name: Name,
    dtype: ElementType,
    base: u64,
    digits: Vec<Digit>,
    axes: Vec<Axis>,
}

#[derive(Debug, Clone)]
struct Axis {
    name: Name,
    extent: u64,
    digits: Range<usize>,
}

impl Component {
    /// From the digits of the whole path, sorted or not, folded or not, and the extents of its axes.
    ///
    /// The caller has checked that the digits of every axis cover it exactly once.
    pub(super) fn new(
        name: Name,
        dtype: ElementType,
        base: u64,
        path: Vec<Digit>,
        extents: impl IntoIterator<Item = (Name, u64)>,
    ) -> Result<Self> {
        let digits = fold(path)?;
        let mut axes = Vec::new();
        for (name, extent) in extents {
            let start = digits.partition_point(|digit| digit.axis < name);
            let end = digits.partition_point(|digit| digit.axis <= name);
            axes.push(Axis { name, extent, digits: start..end });
        }
        Ok(Self { name, dtype, base, digits, axes })
    }

    /// The component's name.
    pub const fn name(&self) -> &Name {
        &self.name
    }

    /// The type and encoding of its elements.
    pub const fn dtype(&self) -> ElementType {
        self.dtype
    }

    /// Byte offset in the page of the element whose indexes are all 0.
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// Every digit of every axis, sorted by axis and then from the lowest digit up. Neighbours that continue one another are one
    /// digit; an axis of extent 1 has none.
    pub fn digits(&self) -> &[Digit] {
        &self.digits
    }

    /// How many indexes `axis` has here; `None` when no loop over it reaches this component.
    pub fn extent(&self, axis: &str) -> Option<u64> {
        self.axes.iter().find(|known| known.name == axis).map(|known| known.extent)
    }

    /// The axes in order of their names, each with its digits from the lowest up; none for an axis of extent 1.
    pub fn axes(&self) -> impl Iterator<Item = (&Name, &[Digit])> {
        self.axes.iter().map(|axis| (&axis.name, self.digits.get(axis.digits.clone()).unwrap_or_default()))
    }

    /// Byte offset in the page of one element. `index` gives every axis once, in any order.
    ///
    /// # Errors
    /// [`Error::Format`] naming the axis that is missing, unknown, given twice or out of range.
    pub fn offset(&self, index: &[(&str, u64)]) -> Result<u64> {
        let problem = |problem: String| Error::format(format!("component {}", self.name), problem);
        if let Some((unknown, _)) = index.iter().find(|(axis, _)| self.extent(axis).is_none()) {
            return Err(problem(format!("has no axis {unknown:?}")));
        }
        let mut offset = self.base;
        for axis in &self.axes {
            let mut given = index.iter().filter(|(name, _)| axis.name == *name);
            let Some((_, at)) = given.next() else {
                return Err(problem(format!("no index is given for axis {:?}", axis.name)));
            };
            if given.next().is_some() {
                return Err(problem(format!("axis {:?} is given twice", axis.name)));
            }
            if *at >= axis.extent {
                return Err(problem(format!("index {at} of axis {:?} is not below {}", axis.name, axis.extent)));
            }
            for digit in self.digits.get(axis.digits.clone()).unwrap_or_default() {
                let value = rem(div(*at, digit.scale, "a digit")?, digit.extent, "a digit")?;
                offset = add(offset, mul(value, digit.stride, "an offset in a page")?, "an offset in a page")?;
            }
        }
        Ok(offset)
    }

    /// Byte offset in the page of every element: the axes in order of their names, the last one fastest.
    ///
    /// # Errors
    /// [`Error::Limit`] when there are more than [`MAX_OFFSETS`] elements, [`Error::Overflow`] when an offset does not fit.
    pub fn offsets(&self) -> Result<Vec<i64>> {
        let term = "offset of an element";
        let count = self.axes.iter().fold(1_u64, |count, axis| count.saturating_mul(axis.extent));
        if count > MAX_OFFSETS {
            return Err(Error::limit("elements of a component", count, MAX_OFFSETS));
        }
        let mut offsets = vec![self.base];
        for axis in &self.axes {
            let digits = self.digits.get(axis.digits.clone()).unwrap_or_default();
            let mut steps = Vec::new();
            for at in 0..axis.extent {
                let step = digits.iter().try_fold(0, |sum, digit| {
                    let value = rem(div(at, digit.scale, term)?, digit.extent, term)?;
                    add(sum, mul(value, digit.stride, term)?, term)
                })?;
                steps.push(step);
            }
            let mut next = Vec::new();
            for offset in &offsets {
                for step in &steps {
                    next.push(add(*offset, *step, term)?);
                }
            }
            offsets = next;
        }
        offsets.into_iter().map(|offset| i64::try_from(offset).map_err(|_| Error::overflow(term))).collect()
    }

    /// Whether both have the same name, type and address map.
    pub(super) fn same_bytes_as(&self, other: &Self) -> bool {
        self.name == other.name && self.dtype == other.dtype && self.base == other.base && self.digits == other.digits
    }
}

/// Sorts by axis and scale, drops digits of extent 1 and joins neighbours whose strides continue.
fn fold(mut digits: Vec<Digit>) -> Result<Vec<Digit>> {
    digits.retain(|digit| digit.extent != 1);
    digits.sort_unstable();
    let mut folded: Vec<Digit> = Vec::with_capacity(digits.len());
    for digit in digits {
        match folded.last_mut() {
            Some(lower)
                if lower.axis == digit.axis
                    && lower.scale.checked_mul(lower.extent) == Some(digit.scale)
                    && lower.stride.checked_mul(lower.extent) == Some(digit.stride) =>
            {
                lower.extent = mul(lower.extent, digit.extent, "the extent of an axis")?;
            }
            _ => folded.push(digit),
        }
    }
    Ok(folded)
}

/// SHA-256 of a format's normal form: equal exactly for formats with the same bytes, on every platform and in every release.
///
/// What is hashed, all integers as 8 bytes, little-endian, and text as its length in bytes followed by those bytes:
///
/// ```text
/// text "kvreshard page format 1"
/// page bytes
/// number of components, then for each, in order of their names:
///     text name    text type    base
///     number of digits, then for each, in order of axis and scale:
///         text axis    scale    extent    stride
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    pub(super) fn of(page_bytes: u64, components: &[Component]) -> Self {
        let mut sorted: Vec<_> = components.iter().collect();
        sorted.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let mut hash = Hashed(Sha256::new());
        hash.text("kvreshard page format 1");
        hash.number(page_bytes);
        hash.number(wide(sorted.len()));
        for component in sorted {
            hash.text(component.name.as_str());
            hash.text(component.dtype.name());
            hash.number(component.base);
            hash.number(wide(component.digits.len()));
            for digit in &component.digits {
                hash.text(digit.axis.as_str());
                hash.number(digit.scale);
                hash.number(digit.extent);
                hash.number(digit.stride);
            }
        }
        Self(hash.0.finalize().into())
    }
}

struct Hashed(Sha256);

impl Hashed {
    fn number(&mut self, number: u64) {
        self.0.update(number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(wide(text.len()));
        self.0.update(text.as_bytes());
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}
