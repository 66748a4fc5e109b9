//! Runs joined as they come.

use crate::layout::RankLayout;
use crate::plan::{Plan, Run};

/// A run with the regions that it must not leave when it is joined with another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Placed {
    pub(super) local_region: usize,
    pub(super) run: Run,
    pub(super) remote_region: usize,
}

/// Joins runs that come in ascending local order, where the next one begins at the end of the last on both sides; hands each joined
/// one to `out` with the devices of both sides.
pub(super) struct Joiner<F> {
    devices: (Vec<u32>, Vec<u32>),
    /// The regions that runs are in at present, and their devices.
    regions: (usize, usize),
    on: (u32, u32),
    /// The run that may still grow; none while its length is 0.
    open: Run,
    /// Where it ends on both sides.
    ends: (u64, u64),
    out: F,
}

impl<F: FnMut(Run, (u32, u32))> Joiner<F> {
    pub(super) fn new(plan: &Plan, out: F) -> Self {
        let devices = |layout: &RankLayout| layout.regions().iter().map(crate::layout::Region::device).collect();
        let open = Run { local: 0, remote: 0, len: 0 };
        let devices = (devices(plan.local()), devices(plan.remote()));
        Self { devices, regions: (usize::MAX, usize::MAX), on: (0, 0), open, ends: (0, 0), out }
    }

    /// What follows is in these regions.
    pub(super) fn enter(&mut self, regions: (usize, usize)) {
        if self.regions != regions {
            self.flush();
            self.regions = regions;
            let device = |devices: &[u32], region: usize| devices.get(region).copied().unwrap_or_default();
            self.on = (device(&self.devices.0, regions.0), device(&self.devices.1, regions.1));
        }
    }

    /// `run` ends inside its regions on both sides, so that no sum here can wrap.
    #[inline]
    pub(super) fn push(&mut self, run: Run) {
        if (run.local, run.remote) == self.ends && self.open.len > 0 {
            self.open.len = self.open.len.wrapping_add(run.len);
        } else {
            self.flush();
            self.open = run;
        }
        self.ends = (run.local.wrapping_add(run.len), run.remote.wrapping_add(run.len));
    }

    /// A run of any regions.
    pub(super) fn place(&mut self, one: &Placed) {
        self.enter((one.local_region, one.remote_region));
        self.push(one.run);
    }

    #[inline]
    pub(super) fn flush(&mut self) {
        if self.open.len > 0 {
            (self.out)(self.open, self.on);
            self.open.len = 0;
        }
    }
}
