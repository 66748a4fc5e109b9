//! How much work one plan may be. Page sizes and nests come from a peer, so what they can ask for is bounded, not only its size.

use crate::error::Result;
use crate::units::wide;

use super::copy::{Copy, MAX_EXACT_RUNS, bounded};

/// The most runs that are written out, one by one, over a whole plan.
pub const MAX_PLAN_RUNS: u64 = 1 << 24;

/// The most pairs of page stretches between which a plan moves bytes: layers times segments times cells of a period.
pub const MAX_PLAN_LANES: u64 = 1 << 18;

/// What a plan has spent so far.
#[derive(Debug, Default)]
pub(crate) struct Work {
    runs: u64,
}

impl Work {
    /// Counts the copies of one pair of segments in one cell of a period, with the runs that merging wrote out.
    pub(crate) fn spend(&mut self, copies: &[Copy]) -> Result<()> {
        // An empty cell was looked at too.
        self.runs = self.runs.saturating_add(1);
        for copy in copies {
            let written = copy.runs()?.min(MAX_EXACT_RUNS);
            self.runs = self.runs.saturating_add(written).saturating_add(wide(copy.loops.len()));
        }
        bounded("runs to work out for one plan", self.runs, MAX_PLAN_RUNS)
    }

    /// Whether `runs` more may still be written out; they count as spent if so.
    pub(crate) fn affords(&mut self, runs: u64) -> bool {
        let after = self.runs.saturating_add(runs);
        let affordable = after <= MAX_PLAN_RUNS;
        if affordable {
            self.runs = after;
        }
        affordable
    }
}
