//! Checked arithmetic and half-open intervals.
//!
//! NIXL checks no sum for overflow: a span that wraps 2^64 is accepted and then moves bytes outside the registration. So every
//! product and sum of the core goes through these helpers, which name the term that did not fit.

use std::fmt;

use crate::error::{Error, Result};

/// `a + b`, or [`Error::Overflow`] naming `term`.
pub(crate) fn add(a: u64, b: u64, term: &str) -> Result<u64> {
    a.checked_add(b).ok_or_else(|| Error::overflow(term))
}

/// `a - b`, or [`Error::Overflow`] naming `term`.
pub(crate) fn sub(a: u64, b: u64, term: &str) -> Result<u64> {
    a.checked_sub(b).ok_or_else(|| Error::overflow(term))
}

/// `a * b`, or [`Error::Overflow`] naming `term`.
pub(crate) fn mul(a: u64, b: u64, term: &str) -> Result<u64> {
    a.checked_mul(b).ok_or_else(|| Error::overflow(term))
}

/// `a / b`, or [`Error::Overflow`] naming `term` when `b` is zero.
pub(crate) fn div(a: u64, b: u64, term: &str) -> Result<u64> {
    a.checked_div(b).ok_or_else(|| Error::overflow(term))
}

/// `a % b`, or [`Error::Overflow`] naming `term` when `b` is zero.
pub(crate) fn rem(a: u64, b: u64, term: &str) -> Result<u64> {
    a.checked_rem(b).ok_or_else(|| Error::overflow(term))
}

/// `a / b` rounded up, or [`Error::Overflow`] naming `term` when `b` is zero.
pub(crate) fn div_ceil(a: u64, b: u64, term: &str) -> Result<u64> {
    let quotient = div(a, b, term)?;
    if rem(a, b, term)? == 0 { Ok(quotient) } else { add(quotient, 1, term) }
}

/// The greatest common divisor; `gcd(0, b)` is `b`.
pub(crate) fn gcd(mut a: u64, mut b: u64) -> u64 {
    while let Some(rest) = a.checked_rem(b) {
        (a, b) = (b, rest);
    }
    a
}

/// The least common multiple of two positive numbers, or [`Error::Overflow`] naming `term`.
pub(crate) fn lcm(a: u64, b: u64, term: &str) -> Result<u64> {
    mul(div(a, gcd(a, b), term)?, b, term)
}

/// `value` as `u64`; `usize` is at most 64 bits on every platform that Rust supports, so the fallback is never taken.
pub(crate) fn wide(value: usize) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

/// `value` as an index of this platform, or [`Error::Overflow`] naming `term`.
pub(crate) fn index(value: u64, term: &str) -> Result<usize> {
    usize::try_from(value).map_err(|_| Error::overflow(term))
}

/// A half-open interval `[start, end)` of heads, channels, tokens or bytes. Never reversed; it may be empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Interval {
    start: u64,
    end: u64,
}

impl Interval {
    /// `[start, end)`, or `None` when `end < start`.
    pub const fn new(start: u64, end: u64) -> Option<Self> {
        if end < start { None } else { Some(Self { start, end }) }
    }

    /// `[0, len)`.
    pub const fn from_zero(len: u64) -> Self {
        Self { start: 0, end: len }
    }

    /// The first member.
    pub const fn start(self) -> u64 {
        self.start
    }

    /// One past the last member.
    pub const fn end(self) -> u64 {
        self.end
    }

    /// How many members.
    pub const fn len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether nothing is in it.
    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// What both hold, if anything.
    pub fn intersect(self, other: Self) -> Option<Self> {
        let common = Self::new(self.start.max(other.start), self.end.min(other.end))?;
        if common.is_empty() { None } else { Some(common) }
    }

    /// Whether every member of `other` is a member.
    pub const fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {})", self.start, self.end)
    }
}
