//! What a kernel does for one chunk: which pages, and where in the buffer the bytes of each lie.
//!
//! Packed and landed chunks come out alike. Lanes of one group mostly share their pages, so each list is kept once, and parts name
//! stretches of it:
//!
//! ```text
//! pages    |  7  3  9  4  |  1  2  |        parts: layer 0 at 0..4, layer 1 at 0..4, layer 2 at 4..6
//! places   |  0  1  2  3  |  0  1  |
//! ```

use crate::error::{Error, Result};
use crate::units::wide;

use super::landing::LandedChunk;
use super::pairing::Pairing;
use super::tiles::{Chunk, Tiles};

/// One lane's pages of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Index of the lane in [`Tiles::lanes`].
    pub lane: usize,
    /// Index of the first page in [`Moves::pages`].
    pub first: usize,
    /// How many pages.
    pub count: usize,
    /// Where place 0 begins in the chunk, in bytes.
    pub offset: u64,
}

/// Pages of a chunk, with the place of each in units of its lane.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Moves {
    /// What each lane does.
    pub parts: Vec<Part>,
    /// Page ids of the side whose tiles they are.
    pub pages: Vec<i32>,
    /// For each page the place of its bytes in the buffer, in units of the lane.
    pub places: Vec<i32>,
}

impl Moves {
    /// Where a stretch of pages and places lies that has just been appended at `first`; an equal one is used again.
    fn settled(&mut self, first: usize, known: &mut Vec<(usize, usize)>) -> (usize, usize) {
        let count = self.pages.len().saturating_sub(first);
        let (pages, places) = (self.pages.get(first..), self.places.get(first..));
        let alike = |&&(start, length): &&(usize, usize)| {
            let end = start.saturating_add(length);
            length == count && self.pages.get(start..end) == pages && self.places.get(start..end) == places
        };
        match known.iter().find(alike) {
            Some(&found) => {
                self.pages.truncate(first);
                self.places.truncate(first);
                found
            }
            None => {
                known.push((first, count));
                (first, count)
            }
        }
    }
}

impl Pairing {
    /// What the kernels of `tiles` do for a packed chunk.
    ///
    /// # Errors
    /// [`Error::Limit`] when the chunk is of another request or other tiles; otherwise as
    /// [`lane_pages`](Self::lane_pages).
    pub fn moves(&self, tiles: &Tiles, chunk: &Chunk) -> Result<Moves> {
        let mut moves = Moves::default();
        let mut known = Vec::new();
        for part in &chunk.parts {
            let lanes = tiles.lanes();
            let lane = lanes.get(part.lane).ok_or_else(|| beyond("lane of a chunk", part.lane, lanes.len()))?;
            let (local, remote) = self.lane_pages(lane)?;
            let pages = match tiles.side() {
                crate::Side::Local => local,
                crate::Side::Remote => remote,
            };
            let end = part.first.saturating_add(part.pairs);
            let wanted = pages.get(part.first..end).ok_or_else(|| beyond("pairs of a chunk", end, pages.len()))?;
            let first = moves.pages.len();
            moves.pages.extend_from_slice(wanted);
            let count = i32::try_from(part.pairs).map_err(|_| Error::overflow("place in a chunk"))?;
            moves.places.extend(0..count);
            let (first, count) = moves.settled(first, &mut known);
            moves.parts.push(Part { lane: part.lane, first, count, offset: part.offset });
        }
        Ok(moves)
    }
}

impl LandedChunk {
    /// What the kernels do for a landed chunk.
    pub fn moves(&self) -> Moves {
        let mut moves = Moves::default();
        let mut known = Vec::new();
        for part in &self.parts {
            let first = moves.pages.len();
            moves.pages.extend_from_slice(&part.pages);
            moves.places.extend_from_slice(&part.places);
            let (first, count) = moves.settled(first, &mut known);
            moves.parts.push(Part { lane: part.lane, first, count, offset: part.offset });
        }
        moves
    }
}

fn beyond(what: &str, found: usize, limit: usize) -> Error {
    Error::limit(what, wide(found), wide(limit))
}
