//! How much work one plan may be. Page sizes and nests come from a peer, so what they can ask for is bounded, not only its size.

use crate::error::Result;

use super::copy::bounded;

/// The most runs that are written out one by one over a whole plan, to join those that touch. Beyond it copies stay as loops, and
/// runs that touch only across copies stay apart.
pub const MAX_PLAN_RUNS: u64 = 1 << 22;

/// The most copies that a plan looks at, over all pairs of segments and all cells of a period.
pub const MAX_PLAN_COPIES: u64 = 1 << 21;

/// The most pairs of page stretches between which a plan moves bytes: layers times segments times cells of a period.
pub const MAX_PLAN_LANES: u64 = 1 << 18;

/// What a plan has spent so far.
#[derive(Debug, Default)]
pub(crate) struct Work {
    runs: u64,
    copies: u64,
}

impl Work {
    /// Counts `copies` of one pair of segments in one cell of a period; an empty cell was looked at too.
    pub(crate) fn look_at(&mut self, copies: u64) -> Result<()> {
        self.copies = self.copies.saturating_add(copies).saturating_add(1);
        bounded("copies to work out for one plan", self.copies, MAX_PLAN_COPIES)
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

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn looking_ends_at_the_limit_and_an_empty_cell_counts() {
        let refused = |found| {
            let what = "copies to work out for one plan".to_owned();
            Err(Error::Limit { what, found, limit: MAX_PLAN_COPIES })
        };
        let mut work = Work::default();
        work.look_at(MAX_PLAN_COPIES - 2).unwrap();
        work.look_at(0).unwrap();
        assert_eq!(work.look_at(0), refused(MAX_PLAN_COPIES + 1));
        assert_eq!(Work::default().look_at(MAX_PLAN_COPIES), refused(MAX_PLAN_COPIES + 1));
        assert_eq!(Work::default().look_at(u64::MAX), refused(u64::MAX));
    }

    #[test]
    fn runs_that_are_not_affordable_are_not_spent() {
        let mut work = Work::default();
        assert!(work.affords(MAX_PLAN_RUNS - 1));
        assert!(!work.affords(2));
        assert!(!work.affords(u64::MAX));
        assert!(work.affords(1));
        assert!(!work.affords(1));
        assert!(work.affords(0));
    }
}
