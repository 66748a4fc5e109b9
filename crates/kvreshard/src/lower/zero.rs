//! Bytes of destination pages that no transfer fills.
//!
//! A page that counts as ready is read whole by some kernels, masked afterwards; a stale NaN times a mask of zero is a NaN. So the
//! connector clears these bytes before the page counts as ready.

use crate::error::{Result, Side};
use crate::layout::MemoryKind;
use crate::plan::axis::Span;
use crate::plan::copy::{Run, join, merge};
use crate::plan::lane::Track;
use crate::plan::matching::match_layers;
use crate::units::add;

use super::lists::address;
use super::pairing::Pairing;
use super::rows::{Row, region};

impl Pairing {
    /// The bytes to clear in destination memory of kind `memory`, as rows of one descriptor each, coalesced.
    ///
    /// # Errors
    /// [`Error::Overflow`](crate::Error::Overflow) when an address does not fit.
    pub fn zero(&self, memory: MemoryKind) -> Result<Vec<Row>> {
        let side = self.plan.direction().destination();
        let layout = self.plan.side(side);
        let mut runs: Vec<(u32, Run)> = Vec::new();
        for bare in &self.bare {
            let Some(groups) = self.plan.pairs().get(bare.pair) else { continue };
            let span = Span { local: bare.states.start(), remote: bare.states.start(), len: bare.states.len() };
            for layers in self.plan.layer_pairs().iter().filter(|layers| layers.pair == bare.pair) {
                let here = self.plan.local().layers().get(layers.local);
                let there = self.plan.remote().layers().get(layers.remote);
                let (Some(here), Some(there)) = (here, there) else { continue };
                for one in match_layers(here, there, layers.take.as_deref())? {
                    let (local, remote) = one.segments();
                    let segment = match side {
                        Side::Local => here.segments().get(local),
                        Side::Remote => there.segments().get(remote),
                    };
                    let Some(segment) = segment else { continue };
                    let region = region(layout, segment.region())?;
                    if region.memory() != memory {
                        continue;
                    }
                    let track = Track::new(layout, segment)?;
                    let base = address(track.address, bare.page, track.stride)?;
                    let mut expanded = Vec::new();
                    for copy in merge(one.bytes_of(side, groups.kind, &[span])?)? {
                        copy.expand(&mut expanded)?;
                    }
                    for run in expanded {
                        let at = add(base, run.local, "address to clear")?;
                        runs.push((region.device(), Run { local: at, remote: at, len: run.len }));
                    }
                }
            }
        }
        runs.sort_unstable();
        runs.dedup();
        let mut rows = Vec::new();
        for of_device in runs.chunk_by(|a, b| a.0 == b.0) {
            let device = of_device.first().map_or(0, |(device, _)| *device);
            for run in join(of_device.iter().map(|(_, run)| *run).collect())? {
                let (address, length) = (run.local, run.len);
                rows.push(Row { address, length, device: u64::from(device), stride: length, count: 1 });
            }
        }
        Ok(rows)
    }
}
