//! A strided run of pages in a region.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::format::PageFormat;
use crate::name::Name;
use crate::units::{Interval, add, mul, sub};

use super::region::Region;

/// Which interval of each sharded axis something holds, sorted by axis. Cheap to clone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Shares(Arc<Vec<(Name, Interval)>>);

impl Shares {
    /// From pairs in any order; a later pair replaces an earlier one of the same axis.
    pub fn new(pairs: impl IntoIterator<Item = (Name, Interval)>) -> Self {
        let mut shares = Self::default();
        for (axis, interval) in pairs {
            shares.set(axis, interval);
        }
        shares
    }

    /// The interval of `axis`, if one is given.
    pub fn get(&self, axis: &Name) -> Option<Interval> {
        self.0.iter().find(|(name, _)| name == axis).map(|(_, interval)| *interval)
    }

    /// Sets the interval of `axis`.
    pub(crate) fn set(&mut self, axis: Name, interval: Interval) {
        let pairs = Arc::make_mut(&mut self.0);
        match pairs.iter_mut().find(|(name, _)| *name == axis) {
            Some(slot) => slot.1 = interval,
            None => {
                pairs.push((axis, interval));
                pairs.sort_by(|a, b| a.0.cmp(&b.0));
            }
        }
    }

    /// The axes with their intervals, in the order of the axes' names.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, Interval)> {
        self.0.iter().map(|(axis, interval)| (axis, *interval))
    }

    /// Whether no axis is named.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A strided run of pages in a region: page `i` starts `offset + i * page_stride` bytes into it.
///
/// A layer may have several segments: K and V apart, or one plane a head. A segment whose format lacks a sharded axis is a plane
/// at the one index that its share names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    region: usize,
    format: PageFormat,
    offset: u64,
    pages: u64,
    page_stride: u64,
    shares: Shares,
}

impl Segment {
    /// A segment of `pages` pages of `format`. `region` is the index in the rank's list of regions. Axes that `shares` does not
    /// name get the tensor-parallel share of the rank.
    ///
    /// # Errors
    /// [`Error::Layout`] when there are no pages, or pages would overlap because the stride is smaller than the page;
    /// [`Error::Overflow`] when the span does not fit 64 bits.
    pub fn new(
        region: usize,
        format: PageFormat,
        offset: u64,
        pages: u64,
        page_stride: u64,
        shares: Shares,
    ) -> Result<Self> {
        if pages == 0 {
            return Err(Error::layout(None, "pages", 0, "at least 1"));
        }
        if page_stride < format.page_bytes() {
            return Err(Error::layout(
                None,
                "page_stride",
                page_stride,
                format!("at least the page's {} bytes, or pages overlap", format.page_bytes()),
            ));
        }
        let segment = Self { region, format, offset, pages, page_stride, shares };
        segment.end()?;
        Ok(segment)
    }

    /// The index of the region it lies in.
    pub const fn region(&self) -> usize {
        self.region
    }

    /// How each page is built.
    pub const fn format(&self) -> &PageFormat {
        &self.format
    }

    /// Bytes from the start of the region to page 0.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// How many pages.
    pub const fn pages(&self) -> u64 {
        self.pages
    }

    /// Bytes from one page to the next.
    pub const fn page_stride(&self) -> u64 {
        self.page_stride
    }

    /// The interval of each sharded axis that it holds.
    pub const fn shares(&self) -> &Shares {
        &self.shares
    }

    /// One past its last byte, counted from the start of the region.
    pub fn end(&self) -> Result<u64> {
        let last = mul(sub(self.pages, 1, "pages - 1")?, self.page_stride, "(pages - 1) * page_stride")?;
        let term = "offset + (pages - 1) * page_stride + page bytes";
        add(add(self.offset, last, term)?, self.format.page_bytes(), term)
    }

    pub(super) fn fill_share(&mut self, axis: &Name, interval: Interval) {
        self.shares.set(axis.clone(), interval);
    }

    /// One bad address kills the connection to a peer for all requests, so a segment must lie inside its registration.
    pub(super) fn check_inside(&self, layer: &str, region: &Region) -> Result<()> {
        let end = self.end()?;
        if end > region.bytes() {
            return Err(Error::layout(
                Some(layer),
                "segment end",
                end,
                format!("at most the region's {} bytes", region.bytes()),
            ));
        }
        Ok(())
    }
}
