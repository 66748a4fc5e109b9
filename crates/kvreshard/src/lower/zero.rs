//! Bytes of destination pages that no transfer fills.
//!
//! A page that counts as ready is read whole by some kernels, masked afterwards; a stale NaN times a mask of zero is a NaN. So the
//! connector clears these bytes before the page counts as ready.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::error::{Result, Side};
use crate::layout::MemoryKind;
use crate::plan::LayerPair;
use crate::plan::axis::Span;
use crate::plan::copy::{MAX_EXACT_RUNS, Run, bounded, join, merge};
use crate::plan::lane::Track;
use crate::plan::matching::match_layers;
use crate::plan::work::Work;
use crate::units::{Interval, add, wide};

use super::lists::address;
use super::pairing::Pairing;
use super::rows::{MAX_ROWS, Row, region};

/// A segment of the destination's layer, and runs of a page of it.
type SegmentRuns = (usize, Vec<Run>);

impl Pairing {
    /// The bytes to clear in destination memory of kind `memory`, as rows of one descriptor each, coalesced; a row lies in one region.
    ///
    /// # Errors
    /// [`Error::Overflow`](crate::Error::Overflow) when an address does not fit, [`Error::Limit`](crate::Error::Limit) when there are too
    /// many.
    pub fn zero(&self, memory: MemoryKind) -> Result<Vec<Row>> {
        let side = self.plan.direction().destination();
        let layout = self.plan.side(side);
        let mut runs: Vec<(usize, Run)> = Vec::new();
        // Layers of one kind leave the same bytes of a page bare, and most pages are bare from end to end.
        let mut known: BTreeMap<(usize, Interval), Vec<SegmentRuns>> = BTreeMap::new();
        for bare in &self.bare {
            for layers in self.plan.layer_pairs().iter().filter(|layers| layers.pair == bare.pair) {
                let at = match side {
                    Side::Local => layers.local,
                    Side::Remote => layers.remote,
                };
                let Some(layer) = layout.layers().get(at) else { continue };
                let parts = match known.entry((layers.kind, bare.states)) {
                    Entry::Occupied(found) => found.into_mut(),
                    Entry::Vacant(slot) => slot.insert(self.bare_runs(layers, side, bare.states)?),
                };
                for (segment, parts) in parts.iter() {
                    let Some(segment) = layer.segments().get(*segment) else { continue };
                    if region(layout, segment.region())?.memory() != memory {
                        continue;
                    }
                    let track = Track::new(layout, segment)?;
                    let base = address(track.address, bare.page, track.stride)?;
                    bounded("runs to clear", wide(runs.len().saturating_add(parts.len())), MAX_ROWS)?;
                    for run in parts {
                        let at = add(base, run.local, "address to clear")?;
                        runs.push((segment.region(), Run { local: at, remote: at, len: run.len }));
                    }
                }
            }
        }
        runs.sort_unstable();
        runs.dedup();
        let mut rows = Vec::new();
        // Regions that touch are two allocations all the same: what clears one row looks for it in one of them.
        for of_region in runs.chunk_by(|a, b| a.0 == b.0) {
            let Some((at, _)) = of_region.first() else { continue };
            let device = u64::from(region(layout, *at)?.device());
            for run in join(of_region.iter().map(|(_, run)| *run).collect())? {
                let (address, length) = (run.local, run.len);
                rows.push(Row { address, length, device, stride: length, count: 1 });
            }
        }
        Ok(rows)
    }

    /// For each segment that the destination's layer has, where in a page the bytes of `states` lie, both offsets of a run alike.
    fn bare_runs(&self, layers: &LayerPair, side: Side, states: Interval) -> Result<Vec<SegmentRuns>> {
        let kind = self.plan.pairs().get(layers.pair).map(|groups| groups.kind);
        let here = self.plan.local().layers().get(layers.local);
        let there = self.plan.remote().layers().get(layers.remote);
        let (Some(kind), Some(here), Some(there)) = (kind, here, there) else { return Ok(Vec::new()) };
        let span = Span { local: states.start(), remote: states.start(), len: states.len() };
        let mut found: BTreeMap<usize, Vec<Run>> = BTreeMap::new();
        for one in match_layers(here, there, layers.take.as_deref())? {
            let (local, remote) = one.segments();
            let runs = found.entry(if side == Side::Local { local } else { remote }).or_default();
            let mut work = Work::default();
            for copy in merge(one.bytes_of(side, kind, &[span], &mut work)?, &mut work)? {
                bounded("runs to clear in one page", copy.runs()?, MAX_EXACT_RUNS)?;
                copy.expand(runs)?;
            }
        }
        // Components lie between one another: together they are a few runs, and most pages are bare from end to end.
        let joined = |(segment, mut runs): (usize, Vec<Run>)| {
            runs.sort_unstable();
            runs.dedup();
            Ok((segment, join(runs)?))
        };
        found.into_iter().map(joined).collect()
    }
}
