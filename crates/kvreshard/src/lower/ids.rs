//! Ids of a request in prepared rows.

use crate::error::{Error, Result};
use crate::units::{add, mul, sub, wide};

use super::pairing::{CellPages, Pairing};
use super::rows::{Prepared, Strand};

impl Pairing {
    /// The strands with the pages of their cell: neighbours mostly share it, and are handed over together.
    fn by_cell<'a>(&'a self, prepared: &'a Prepared) -> impl Iterator<Item = (&'a CellPages, &'a [Strand])> {
        let together = |one: &Strand, next: &Strand| (one.pair, one.cell) == (next.pair, next.cell);
        let strands = prepared.strands.chunk_by(together);
        strands.filter_map(|strands| Some((self.cell(strands.first()?)?, strands)))
    }

    /// How many ids the request has in `prepared`.
    ///
    /// # Errors
    /// [`Error::Request`] when prepared rows cannot serve the request ([`fits_rows`](Self::fits_rows)).
    pub fn id_count(&self, prepared: &Prepared) -> Result<usize> {
        self.whole()?;
        let mut count: usize = 0;
        for (pages, strands) in self.by_cell(prepared) {
            let ids = pages.local.len().checked_mul(strands.len()).and_then(|ids| count.checked_add(ids));
            count = ids.ok_or_else(|| Error::overflow("ids of a request"))?;
        }
        Ok(count)
    }

    /// Writes the ids of both sides; `local[i]` and `remote[i]` are one descriptor pair. Both slices must have
    /// [`id_count`](Self::id_count) elements.
    ///
    /// # Errors
    /// [`Error::Limit`] when a slice has another length.
    pub fn write_ids(&self, prepared: &Prepared, local: &mut [i32], remote: &mut [i32]) -> Result<()> {
        let count = self.id_count(prepared)?;
        for given in [local.len(), remote.len()] {
            if given != count {
                return Err(Error::limit("elements of an id buffer", wide(given), wide(count)));
            }
        }
        let (mut local, mut remote) = (local, remote);
        for (pages, strands) in self.by_cell(prepared) {
            let ids = pages.local.len().saturating_mul(strands.len());
            let (Some(here), Some(there)) = (local.split_at_mut_checked(ids), remote.split_at_mut_checked(ids)) else {
                return Err(Error::overflow("ids of a request"));
            };
            fill_ids(pages, strands, here.0, there.0);
            (local, remote) = (here.1, there.1);
        }
        Ok(())
    }

    /// How many descriptors NIXL posts for the request's ids in `prepared`: it joins consecutive ids, inside a row whose
    /// descriptors are dense on both sides.
    ///
    /// # Errors
    /// As [`id_count`](Self::id_count).
    pub fn posted_by_ids(&self, prepared: &Prepared) -> Result<u64> {
        self.id_count(prepared)?;
        let mut posted = 0;
        // Most strands share their cell, so the joins of each are counted once.
        let mut known: Vec<(*const CellPages, u64)> = Vec::new();
        for (pages, strands) in self.by_cell(prepared) {
            let dense = wide(strands.iter().filter(|strand| strand.dense()).count());
            let joins = match known.iter().find(|known| std::ptr::eq(known.0, pages)) {
                _ if dense == 0 => 0,
                Some(found) => found.1,
                None => {
                    let joins = joins(pages);
                    known.push((pages, joins));
                    joins
                }
            };
            let ids = mul(wide(strands.len()), wide(pages.local.len()), "ids of a request")?;
            posted = add(posted, sub(ids, mul(dense, joins, "joined ids")?, "joined ids")?, "posted descriptors")?;
        }
        Ok(posted)
    }
}

/// Ids that are written at a time.
const BLOCK: usize = 64;

/// Pages that every strand is given before the next ones: those of both sides stay in the first-level cache meanwhile.
const TILE: usize = 2_048;

/// Longer rows than this are written whole: the ids are then more than caches hold, and long stretches of them are faster to write.
const MOST_TILED: usize = 16_384;

/// Fills a row for each strand on both sides with the strand's ids of all pages.
fn fill_ids(pages: &CellPages, strands: &[Strand], local: &mut [i32], remote: &mut [i32]) {
    let count = pages.local.len();
    let tile = if count > MOST_TILED { count } else { TILE };
    let mut start = 0;
    while start < count {
        let end = start.saturating_add(tile).min(count);
        let (Some(here), Some(there)) = (pages.local.get(start..end), pages.remote.get(start..end)) else { return };
        let rows = local.chunks_exact_mut(count).zip(remote.chunks_exact_mut(count));
        for ((local, remote), strand) in rows.zip(strands) {
            if let (Some(local), Some(remote)) = (local.get_mut(start..end), remote.get_mut(start..end)) {
                number(local, here, strand.local_start);
                number(remote, there, strand.remote_start);
            }
        }
        start = end;
    }
}

/// Fills `out` with `start + page`.
#[inline]
fn number(out: &mut [i32], pages: &[i32], start: i32) {
    // Cannot wrap: a page is below its row's count, and all counts of a list add up to at most 2^31.
    let shift = |ids: &mut [i32], pages: &[i32]| {
        ids.iter_mut().zip(pages).for_each(|(id, page)| *id = start.wrapping_add(*page));
    };
    // In blocks of a fixed size, which the compiler turns into straight vector code.
    let (mut blocks, pages) = (out.chunks_exact_mut(BLOCK), pages.chunks_exact(BLOCK));
    let last = pages.remainder();
    blocks.by_ref().zip(pages).for_each(|(ids, pages)| shift(ids, pages));
    if !last.is_empty() {
        shift(blocks.into_remainder(), last);
    }
}

/// How many neighbours advance by one on both sides.
pub(super) fn joins(pages: &CellPages) -> u64 {
    let local = pages.local.iter().zip(pages.local.iter().skip(1));
    let remote = pages.remote.iter().zip(pages.remote.iter().skip(1));
    let next = |(one, other): (&i32, &i32)| one.checked_add(1) == Some(*other);
    wide(local.zip(remote).filter(|(here, there)| next(*here) && next(*there)).count())
}
