//! A chunk's moves as a kernel on a device reads them: one flat table.
//!
//! ```text
//! rows     | address  page stride  unit  offset  first  count |  ...     64-bit, a row a part, parts of a shape together
//! pages    |  7  3  9  4  ...  | up to 16 bytes of nothing               32-bit
//! places   |  0  1  2  3  ...                                            32-bit
//! ```
//!
//! Each of the three begins at a multiple of 16 bytes, which kernels are specialised for.

use crate::error::{Error, Result};
use crate::units::{add, index, mul, wide};

use super::moves::{Moves, Part};
use super::tiles::{TileLane, Tiles};

/// Bytes of a row.
const ROW: usize = 48;

/// What divides the beginnings of pages and places.
const ALIGN: u64 = 16;

/// Parts of one shape that one launch covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// Index of the shape in [`Tiles::shapes`].
    pub shape: usize,
    /// The first row.
    pub row: usize,
    /// How many rows.
    pub parts: usize,
    /// Pages of the row that has most.
    pub pages: usize,
}

/// Where what is in a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// What to launch.
    pub batches: Vec<Batch>,
    /// Byte that the page ids begin at; the rows begin at 0.
    pub pages: u64,
    /// Byte that the places begin at.
    pub places: u64,
    /// All units and offsets of the buffer, their bits joined: a power of two that divides this divides each of them.
    pub bits: u64,
}

impl Moves {
    /// Bytes of the table.
    ///
    /// # Errors
    /// [`Error::Overflow`] when there is no such number.
    pub fn table_bytes(&self) -> Result<u64> {
        let (_, places) = self.starts()?;
        add(places, mul(wide(self.places.len()), 4, "bytes of places")?, "bytes of a table")
    }

    /// Writes the table to the beginning of `out`, in the order of this machine's bytes. A launch covers at most `most` parts.
    ///
    /// # Errors
    /// [`Error::Limit`] when `out` is shorter than [`table_bytes`](Self::table_bytes), or the moves are of other tiles.
    pub fn table(&self, tiles: &Tiles, most: usize, out: &mut [u8]) -> Result<Table> {
        let (pages, places) = self.starts()?;
        let (needed, found) = (self.table_bytes()?, wide(out.len()));
        let small = || Error::limit("bytes of a chunk's table", needed, found);
        let out = out.get_mut(..index(needed, "bytes of a table")?).ok_or_else(small)?;
        let (rows, rest) = out.split_at_mut_checked(index(pages, "bytes of a table")?).ok_or_else(small)?;
        let between = index(places.saturating_sub(pages), "bytes of a table")?;
        let (page_bytes, place_bytes) = rest.split_at_mut_checked(between).ok_or_else(small)?;

        let parts = self.by_shape(tiles)?;
        let mut bits = 0;
        for (row, (part, lane)) in rows.chunks_exact_mut(ROW).zip(&parts) {
            bits |= lane.unit | part.offset;
            let numbers = [lane.address, lane.stride, lane.unit, part.offset, wide(part.first), wide(part.count)];
            for (to, number) in row.chunks_exact_mut(8).zip(numbers) {
                to.copy_from_slice(&number.to_ne_bytes());
            }
        }
        for (to, numbers) in [(page_bytes, &self.pages), (place_bytes, &self.places)] {
            for (to, number) in to.chunks_exact_mut(4).zip(numbers) {
                to.copy_from_slice(&number.to_ne_bytes());
            }
        }
        Ok(Table { batches: batches(&parts, most.max(1)), pages, places, bits })
    }

    /// Where pages and places begin.
    fn starts(&self) -> Result<(u64, u64)> {
        let pages = mul(wide(self.parts.len()), wide(ROW), "bytes of rows")?;
        let bytes = mul(wide(self.pages.len()), 4, "bytes of pages")?;
        let padded = bytes.checked_next_multiple_of(ALIGN).ok_or_else(|| Error::overflow("bytes of pages"))?;
        Ok((pages, add(pages, padded, "bytes of a table")?))
    }

    fn by_shape<'a>(&'a self, tiles: &'a Tiles) -> Result<Vec<(&'a Part, &'a TileLane)>> {
        let lanes = tiles.lanes();
        let beyond = |part: &Part| Error::limit("lane of a chunk", wide(part.lane), wide(lanes.len()));
        let found = self.parts.iter().map(|part| Ok((part, lanes.get(part.lane).ok_or_else(|| beyond(part))?)));
        let mut parts = found.collect::<Result<Vec<_>>>()?;
        // Stable: parts of a shape stay in the order of the buffer.
        parts.sort_by_key(|(_, lane)| lane.shape);
        Ok(parts)
    }
}

fn batches(parts: &[(&Part, &TileLane)], most: usize) -> Vec<Batch> {
    let mut row = 0_usize;
    let mut made = Vec::new();
    for alike in parts.chunk_by(|(_, one), (_, other)| one.shape == other.shape) {
        for some in alike.chunks(most) {
            let shape = some.first().map_or(0, |(_, lane)| lane.shape);
            let pages = some.iter().map(|(part, _)| part.count).max().unwrap_or(0);
            made.push(Batch { shape, row, parts: some.len(), pages });
            row = row.saturating_add(some.len());
        }
    }
    made
}
