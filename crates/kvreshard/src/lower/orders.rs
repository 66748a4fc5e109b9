//! Pairs of pages in the order in which they are landed.

use crate::error::Result;

use super::pairing::Pairing;
use super::tiles::TileLane;

/// Pairs of pages, remote and local, by the cell that lanes have them from; ascending.
#[derive(Default)]
pub(super) struct Orders {
    known: Vec<((usize, usize), Vec<(i32, i32)>)>,
}

impl Orders {
    /// Those of a lane. Lanes of a cell, such as the layers of a group, share them.
    pub(super) fn of(&mut self, pairing: &Pairing, lane: &TileLane) -> Result<&[(i32, i32)]> {
        let key = (lane.pair, lane.cell);
        let at = match self.known.iter().position(|(known, _)| *known == key) {
            Some(at) => at,
            None => {
                let (local, remote) = pairing.lane_pages(lane)?;
                let mut pairs: Vec<(i32, i32)> = remote.iter().copied().zip(local.iter().copied()).collect();
                pairs.sort_unstable();
                self.known.push((key, pairs));
                self.known.len().saturating_sub(1)
            }
        };
        Ok(self.known.get(at).map_or(&[], |(_, pairs)| pairs.as_slice()))
    }
}
