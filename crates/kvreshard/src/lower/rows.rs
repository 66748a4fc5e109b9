//! Rows for NIXL's prepared lists.
//!
//! A row `[address, length, device, stride, count]` stands for `count` descriptors, one a page; descriptors are numbered through
//! the rows. Both sides have the same rows in the same order, each with its own pages:
//!
//! ```text
//! row 0, run A   local ids 0 .. pages_l        remote ids 0 .. pages_r
//! row 1, run B   local ids pages_l .. 2pages_l remote ids pages_r .. 2pages_r
//! ```

use crate::error::{Error, Result, Side};
use crate::layout::{MemoryKind, RankLayout};
use crate::plan::{Plan, Run};
use crate::units::{add, index, mul, wide};

/// NIXL numbers the descriptors of a list by a signed 32-bit id and truncates larger ones silently.
pub(crate) const MAX_IDS: u64 = 1 << 31;

/// The most rows of one list: 4 million rows are 160 MB a side.
pub(crate) const MAX_ROWS: u64 = 1 << 22;

/// One row: `count` descriptors of `length` bytes, `stride` bytes apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Address of the first descriptor.
    pub address: u64,
    /// Bytes of each.
    pub length: u64,
    /// NIXL's device id.
    pub device: u64,
    /// Bytes from one to the next; at least `length`.
    pub stride: u64,
    /// How many.
    pub count: u64,
}

/// One run on both sides, for every page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strand {
    /// Strands of one lane follow one another, in ascending addresses.
    pub(crate) lane: usize,
    pub(crate) pair: usize,
    pub(crate) cell: usize,
    pub(crate) local_region: usize,
    pub(crate) remote_region: usize,
    pub(crate) local: Row,
    pub(crate) remote: Row,
    /// The id of page 0 on each side.
    pub(crate) local_start: i32,
    pub(crate) remote_start: i32,
}

impl Strand {
    /// Whether consecutive pages are one run on both sides: NIXL joins consecutive ids only then.
    pub(crate) const fn dense(&self) -> bool {
        self.local.stride == self.local.length && self.remote.stride == self.remote.length
    }
}

/// The prepared rows of one pair of memory kinds.
///
/// NIXL's lists are of one memory kind, so a plan over host and device memory makes several of these.
#[derive(Debug, Clone)]
pub struct Prepared {
    memory: (MemoryKind, MemoryKind),
    pub(crate) strands: Vec<Strand>,
    counts: (u64, u64),
}

impl Prepared {
    /// The local and the remote memory kind.
    pub const fn memory(&self) -> (MemoryKind, MemoryKind) {
        self.memory
    }

    /// How many rows, on either side.
    pub fn len(&self) -> usize {
        self.strands.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.strands.is_empty()
    }

    /// How many descriptors the rows of `side` stand for.
    pub const fn descriptors(&self, side: Side) -> u64 {
        match side {
            Side::Local => self.counts.0,
            Side::Remote => self.counts.1,
        }
    }

    /// The rows of `side`.
    pub fn rows(&self, side: Side) -> impl ExactSizeIterator<Item = Row> + '_ {
        self.strands.iter().map(move |strand| match side {
            Side::Local => strand.local,
            Side::Remote => strand.remote,
        })
    }

    /// The rows of `side` as NIXL's Nx5 table: address, length, device, stride, count, row after row.
    pub fn table(&self, side: Side) -> Vec<u64> {
        let mut table = Vec::with_capacity(self.strands.len().saturating_mul(5));
        for row in self.rows(side) {
            table.extend([row.address, row.length, row.device, row.stride, row.count]);
        }
        table
    }

    /// Every descriptor of `side` as NIXL's Nx3 table (address, length, device), for NIXL before 1.5.
    ///
    /// # Errors
    /// [`Error::Overflow`] when an address does not fit.
    pub fn flat(&self, side: Side) -> Result<Vec<u64>> {
        let mut table = vec![0; self.flat_len(side)?];
        self.write_flat(side, &mut table)?;
        Ok(table)
    }

    /// How many numbers the Nx3 table of `side` has.
    ///
    /// # Errors
    /// [`Error::Overflow`] when they are more than this platform can index.
    pub fn flat_len(&self, side: Side) -> Result<usize> {
        index(mul(self.descriptors(side), 3, "flat table")?, "flat table")
    }

    /// As [`flat`](Self::flat), into a buffer of [`flat_len`](Self::flat_len) numbers.
    ///
    /// # Errors
    /// [`Error::Limit`] when the buffer has another length, [`Error::Overflow`] when an address does not fit.
    pub fn write_flat(&self, side: Side, out: &mut [u64]) -> Result<()> {
        let expected = self.flat_len(side)?;
        if out.len() != expected {
            return Err(Error::limit("numbers of a flat table", wide(out.len()), wide(expected)));
        }
        let mut rest = out;
        for row in self.rows(side) {
            let numbers = index(mul(row.count, 3, "flat table")?, "flat table")?;
            let (front, after) = rest.split_at_mut_checked(numbers).ok_or_else(|| Error::overflow("flat table"))?;
            // The last address is checked; the loop cannot reach beyond it, so its sums may wrap without a check.
            add(
                row.address,
                mul(row.count.saturating_sub(1), row.stride, "descriptor address")?,
                "descriptor address",
            )?;
            let mut address = row.address;
            for descriptor in front.chunks_exact_mut(3) {
                descriptor.copy_from_slice(&[address, row.length, row.device]);
                address = address.wrapping_add(row.stride);
            }
            rest = after;
        }
        Ok(())
    }
}

impl Plan {
    /// The prepared rows: one list for each pair of memory kinds in the order in which the layers first need them, and another one
    /// whenever a list has as many descriptors as ids can number.
    ///
    /// # Errors
    /// [`Error::Limit`] when one row alone has more descriptors than that, or there are more rows than can be prepared.
    pub fn prepare(&self) -> Result<Vec<Prepared>> {
        let mut lists: Vec<Prepared> = Vec::new();
        let mut runs: Vec<Run> = Vec::new();
        let mut rows = 0;
        for (lane_index, lane) in self.lanes().iter().enumerate() {
            let here = region(self.local(), lane.local.region)?;
            let there = region(self.remote(), lane.remote.region)?;
            let memory = (here.memory(), there.memory());
            rows = add(rows, lane.runs()?, "rows of a plan")?;
            if rows > MAX_ROWS {
                return Err(Error::limit("rows of a prepared list", rows, MAX_ROWS));
            }
            runs.clear();
            for copy in lane.copies.iter() {
                copy.expand(&mut runs)?;
            }
            // Ascending addresses, so that the order does not depend on how loops were found.
            runs.sort_unstable();
            for run in &runs {
                let (local, remote) = (&lane.local, &lane.remote);
                let list = open_list(&mut lists, memory, (local.pages, remote.pages))?;
                list.strands.push(Strand {
                    lane: lane_index,
                    pair: lane.pair,
                    cell: lane.cell,
                    local_region: local.region,
                    remote_region: remote.region,
                    local: Row {
                        address: add(local.address, run.local, "row address")?,
                        length: run.len,
                        device: u64::from(here.device()),
                        stride: local.stride,
                        count: local.pages,
                    },
                    remote: Row {
                        address: add(remote.address, run.remote, "row address")?,
                        length: run.len,
                        device: u64::from(there.device()),
                        stride: remote.stride,
                        count: remote.pages,
                    },
                    local_start: id(list.counts.0)?,
                    remote_start: id(list.counts.1)?,
                });
                list.counts.0 = add(list.counts.0, local.pages, "descriptors of a list")?;
                list.counts.1 = add(list.counts.1, remote.pages, "descriptors of a list")?;
            }
        }
        Ok(lists)
    }
}

fn id(count: u64) -> Result<i32> {
    i32::try_from(count).map_err(|_| Error::overflow("descriptor id"))
}

/// The last list of these memory kinds that has room for a row of `pages` descriptors on each side.
fn open_list(lists: &mut Vec<Prepared>, memory: (MemoryKind, MemoryKind), pages: (u64, u64)) -> Result<&mut Prepared> {
    let most = pages.0.max(pages.1);
    if most > MAX_IDS {
        return Err(Error::limit("descriptors of one row", most, MAX_IDS));
    }
    let fits = |list: &Prepared| {
        let room = |count: u64, pages: u64| count.checked_add(pages).is_some_and(|sum| sum <= MAX_IDS);
        room(list.counts.0, pages.0) && room(list.counts.1, pages.1)
    };
    let last = lists.iter().rposition(|list| list.memory == memory).filter(|at| lists.get(*at).is_some_and(fits));
    let at = last.unwrap_or(lists.len());
    if at == lists.len() {
        lists.push(Prepared { memory, strands: Vec::new(), counts: (0, 0) });
    }
    lists.get_mut(at).ok_or_else(|| Error::overflow("prepared list"))
}

pub(crate) fn region(layout: &RankLayout, at: usize) -> Result<&crate::layout::Region> {
    layout.regions().get(at).ok_or_else(|| Error::limit("region index", wide(at), wide(layout.regions().len())))
}
