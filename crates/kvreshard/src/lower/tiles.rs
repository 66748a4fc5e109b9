//! Tiles: what a kernel moves between pages and a staging buffer.
//!
//! Where runs are short, fewer and longer transfers are cheaper, and a kernel rearranges:
//!
//! ```text
//! packed    source pages --gather--> staging ==one run a chunk==> staging --scatter--> destination pages
//! landed    source pages ==whole spans of pages=================> landing --scatter--> destination pages
//! ```
//!
//! A tile is a strided copy between one page and its place in the buffer. All lanes of one shape have the same tiles; they differ
//! in where their pages lie. Both sides work from the same plan, made from the side of the destination, so that they agree on
//! every byte of the buffer without exchanging it.

use std::sync::Arc;

use crate::error::{Error, Result, Side};
use crate::plan::lane::{Lane, Track};
use crate::plan::{Copy, Plan};
use crate::units::{add, mul, sub};

use super::pairing::{CellPages, Pairing};

/// A repetition inside a tile, with its step in bytes in the page and in the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TileLoop {
    /// How often.
    pub extent: u64,
    /// Bytes from one repetition to the next in the page.
    pub page: u64,
    /// Bytes from one repetition to the next in the buffer.
    pub buffer: u64,
}

/// `run` bytes at each point of the loops, between a page and a buffer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Bytes contiguous in both.
    pub run: u64,
    /// Offset of the first run from the lane's place in the page.
    pub page: u64,
    /// Offset of the first run from the pair's place in the buffer.
    pub buffer: u64,
    /// The loops, outermost in the page first.
    pub loops: Vec<TileLoop>,
}

/// One lane: tiles of a shape, at equidistant pages, for the pairs of one cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TileLane {
    /// Index of the shape in [`Tiles::shapes`].
    pub shape: usize,
    /// Index of the region of the side's layout that the pages lie in.
    pub region: usize,
    /// Address that the tiles' page offsets count from, for page 0.
    pub address: u64,
    /// Bytes from one page to the next.
    pub stride: u64,
    /// How many pages.
    pub pages: u64,
    /// Bytes that one pair of pages takes in the buffer.
    pub unit: u64,
    pub(crate) pair: usize,
    pub(crate) cell: usize,
}

/// The tiles of one side of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tiles {
    side: Side,
    shapes: Vec<Arc<[Tile]>>,
    lanes: Vec<TileLane>,
}

/// Part of a chunk: consecutive pairs of one lane, one after the other in the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkPart {
    /// Index of the lane in [`Tiles::lanes`].
    pub lane: usize,
    /// Index of the first pair in [`Pairing::lane_pages`].
    pub first: usize,
    /// How many pairs.
    pub pairs: usize,
    /// Where the first pair begins in the chunk, in bytes.
    pub offset: u64,
}

/// What goes through the buffer at once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chunk {
    /// The parts, without a hole between them.
    pub parts: Vec<ChunkPart>,
    /// Bytes of all parts.
    pub bytes: u64,
}

impl Tiles {
    /// The side whose pages the tiles touch.
    pub const fn side(&self) -> Side {
        self.side
    }

    /// The different tile lists, each used by one lane or more.
    pub fn shapes(&self) -> &[Arc<[Tile]>] {
        &self.shapes
    }

    /// The lanes, in the same order on both sides.
    pub fn lanes(&self) -> &[TileLane] {
        &self.lanes
    }
}

impl Plan {
    /// Tiles between the pages of `side` and a packed buffer: the bytes once, each pair of pages one after the other.
    ///
    /// Both sides of a transfer ask the same plan (the destination's, [`Direction::Read`](crate::plan::Direction::Read)) for their
    /// own side; the buffer is the same.
    ///
    /// # Errors
    /// [`Error::Overflow`] when a size does not fit.
    pub fn packed_tiles(&self, side: Side) -> Result<Tiles> {
        self.tiles(
            side,
            |_| Ok((0, 0)),
            |lane| {
                let mut unit = 0;
                let mut tiles = Vec::with_capacity(lane.nests.len());
                for copy in lane.nests.iter() {
                    tiles.push(packed(copy, side, unit)?);
                    unit = add(unit, copy.bytes()?, "bytes of a pair of pages")?;
                }
                Ok((tiles, unit))
            },
        )
    }

    /// Tiles of every lane. `shape` makes them, with the bytes that a pair takes in the buffer; lanes with the same copies and the
    /// same `place` of the buffer share them.
    pub(super) fn tiles(
        &self,
        side: Side,
        place: impl Fn(&Lane) -> Result<(u64, u64)>,
        shape: impl Fn(&Lane) -> Result<(Vec<Tile>, u64)>,
    ) -> Result<Tiles> {
        struct Known<'a> {
            copies: &'a Arc<[Copy]>,
            place: (u64, u64),
            shape: usize,
            unit: u64,
        }
        let mut known: Vec<Known<'_>> = Vec::new();
        let mut shapes: Vec<Arc<[Tile]>> = Vec::new();
        let mut lanes = Vec::with_capacity(self.lanes().len());
        for lane in self.lanes() {
            let place = place(lane)?;
            let like = |known: &&Known<'_>| Arc::ptr_eq(known.copies, &lane.nests) && known.place == place;
            let (at, unit) = match known.iter().find(like) {
                Some(known) => (known.shape, known.unit),
                None => {
                    let (tiles, unit) = shape(lane)?;
                    let same = shapes.iter().position(|other| **other == *tiles);
                    let at = same.unwrap_or(shapes.len());
                    if same.is_none() {
                        shapes.push(tiles.into());
                    }
                    known.push(Known { copies: &lane.nests, place, shape: at, unit });
                    (at, unit)
                }
            };
            let track = track(lane, side);
            lanes.push(TileLane {
                shape: at,
                region: track.region,
                address: track.address,
                stride: track.stride,
                pages: track.pages,
                unit,
                pair: lane.pair,
                cell: lane.cell,
            });
        }
        Ok(Tiles { side, shapes, lanes })
    }
}

const fn track(lane: &Lane, side: Side) -> &Track {
    match side {
        Side::Local => &lane.local,
        Side::Remote => &lane.remote,
    }
}

/// A copy's runs one after the other in the buffer, the outermost loop slowest.
fn packed(copy: &Copy, side: Side, buffer: u64) -> Result<Tile> {
    let mut step = copy.run;
    let mut loops = Vec::with_capacity(copy.loops.len());
    for one in copy.loops.iter().rev() {
        let page = match side {
            Side::Local => one.local,
            Side::Remote => one.remote,
        };
        loops.push(TileLoop { extent: one.extent, page, buffer: step });
        step = mul(step, one.extent, "bytes of a tile")?;
    }
    loops.reverse();
    let page = match side {
        Side::Local => copy.local,
        Side::Remote => copy.remote,
    };
    let mut loops = continued(loops);
    // What is in pieces on the other side may be one run on this one.
    let mut run = copy.run;
    while let Some(inner) = loops.last().filter(|inner| (inner.page, inner.buffer) == (run, run)) {
        run = mul(run, inner.extent, "run of a tile")?;
        loops.pop();
    }
    Ok(Tile { run, page, buffer, loops })
}

/// Joins loops that continue one another in the page and in the buffer.
fn continued(loops: Vec<TileLoop>) -> Vec<TileLoop> {
    let mut joined: Vec<TileLoop> = Vec::with_capacity(loops.len());
    for one in loops.into_iter().rev() {
        match joined.last_mut() {
            Some(inner)
                if inner.page.checked_mul(inner.extent) == Some(one.page)
                    && inner.buffer.checked_mul(inner.extent) == Some(one.buffer) =>
            {
                inner.extent = inner.extent.saturating_mul(one.extent);
            }
            _ => joined.push(one),
        }
    }
    joined.reverse();
    joined
}

impl Pairing {
    /// The page ids of a lane's pairs on both sides; `local[i]` goes with `remote[i]`.
    ///
    /// # Errors
    /// [`Error::Request`] when the wanted tokens begin inside a row, which tiles move whole.
    pub fn lane_pages(&self, lane: &TileLane) -> Result<(&[i32], &[i32])> {
        self.whole()?;
        static NONE: CellPages = CellPages { local: Vec::new(), remote: Vec::new() };
        let pages = self.pages.get(lane.pair).and_then(|cells| cells.get(lane.cell)).unwrap_or(&NONE);
        Ok((&pages.local, &pages.remote))
    }

    /// Cuts the request into chunks of at most `chunk` bytes of buffer. Both sides get the same chunks from the same request.
    ///
    /// # Errors
    /// [`Error::Limit`] when one pair of pages alone is larger than a chunk, and as [`lane_pages`](Self::lane_pages).
    pub fn chunks(&self, tiles: &Tiles, chunk: u64) -> Result<Vec<Chunk>> {
        let mut chunks = Vec::new();
        let mut open = Chunk::default();
        for (index, lane) in tiles.lanes.iter().enumerate() {
            let (pages, _) = self.lane_pages(lane)?;
            if lane.unit > chunk && !pages.is_empty() {
                return Err(Error::limit("bytes of one pair of pages in a chunk", lane.unit, chunk));
            }
            let mut first = 0_usize;
            while first < pages.len() {
                let left = sub(chunk, open.bytes, "room of a chunk")?;
                let fit = left.checked_div(lane.unit).unwrap_or(u64::MAX);
                let rest = pages.len().saturating_sub(first);
                let pairs = usize::try_from(fit).unwrap_or(usize::MAX).min(rest);
                if pairs == 0 {
                    chunks.push(std::mem::take(&mut open));
                    continue;
                }
                open.parts.push(ChunkPart { lane: index, first, pairs, offset: open.bytes });
                let bytes = mul(lane.unit, crate::units::wide(pairs), "bytes of a chunk")?;
                open.bytes = add(open.bytes, bytes, "bytes of a chunk")?;
                first = first.saturating_add(pairs);
            }
        }
        if !open.parts.is_empty() {
            chunks.push(open);
        }
        Ok(chunks)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::plan::Loop;

    /// Runs of 4 bytes: the run, then its loops in page and buffer.
    fn tile(side: Side, loops: &[(u64, u64, u64)]) -> (u64, Vec<(u64, u64, u64)>) {
        let loops = loops.iter().map(|&(extent, local, remote)| Loop { extent, local, remote }).collect();
        let tile = packed(&Copy { run: 4, loops, local: 1, remote: 2 }, side, 7).unwrap();
        assert_eq!((tile.page, tile.buffer), (if side == Side::Local { 1 } else { 2 }, 7));
        (tile.run, tile.loops.iter().map(|one| (one.extent, one.page, one.buffer)).collect())
    }

    #[test]
    fn what_goes_on_in_the_page_and_in_the_buffer_is_one_loop() {
        // Three runs 10 bytes apart, twice: 30 bytes apart on the local side, elsewhere on the remote one.
        let nested = [(2, 30, 500), (3, 10, 20)];
        assert_eq!(tile(Side::Local, &nested), (4, vec![(6, 10, 4)]));
        assert_eq!(tile(Side::Remote, &nested), (4, vec![(2, 500, 12), (3, 20, 4)]));
        // In the page the one goes on from the other; in the buffer a third lies between.
        assert_eq!(tile(Side::Local, &[(2, 30, 1), (5, 7, 1), (3, 10, 1)]).1, [(2, 30, 60), (5, 7, 12), (3, 10, 4)]);
    }

    #[test]
    fn what_is_dense_in_the_page_is_one_run() {
        assert_eq!(tile(Side::Local, &[(3, 4, 20)]), (12, vec![]));
        assert_eq!(tile(Side::Remote, &[(3, 4, 20)]), (4, vec![(3, 20, 4)]));
        assert_eq!(tile(Side::Local, &[(2, 50, 1), (3, 4, 20)]), (12, vec![(2, 50, 12)]));
    }
}
