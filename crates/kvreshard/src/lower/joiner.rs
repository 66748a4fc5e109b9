//! Runs joined as they come.

use crate::layout::RankLayout;
use crate::plan::{Plan, Run};

use super::descriptor::Sink;
use super::rows::Strand;

/// A run with the regions that it must not leave when it is joined with another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Placed {
    pub(super) local_region: usize,
    pub(super) run: Run,
    pub(super) remote_region: usize,
}

/// Joins runs that come in ascending local order, where the next one begins at the end of the last on both sides.
pub(super) struct Joiner<'a, S> {
    devices: (Vec<u32>, Vec<u32>),
    /// The regions that runs are in at present, and their devices.
    regions: (usize, usize),
    on: (u32, u32),
    /// The run that may still grow; none while its length is 0.
    open: Run,
    /// Where it ends on both sides.
    ends: (u64, u64),
    out: &'a mut S,
}

/// Pages that are looked at together.
const BLOCK: usize = 64;

impl<'a, S: Sink> Joiner<'a, S> {
    pub(super) fn new(plan: &Plan, out: &'a mut S) -> Self {
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

    /// The runs of one strand on pairs of pages, the local ones ascending.
    ///
    /// Runs of one strand can touch only where pages are dense and follow one another on both sides. That is looked for in a block
    /// of ids at a time, before any address is made; a block without it, as scattered pages are, is written in one piece.
    pub(super) fn pages(&mut self, strand: &Strand, local: &[i32], remote: &[i32]) {
        for (here, there) in local.chunks(BLOCK).zip(remote.chunks(BLOCK)) {
            let mut runs = here.iter().zip(there).map(|(here, there)| strand.run(*here, *there));
            if strand.dense() && joined(here, there) {
                runs.for_each(|run| self.push(run));
                continue;
            }
            let Some(first) = runs.next() else { continue };
            self.push(first);
            if let Some(last) = runs.next_back() {
                self.flush();
                self.out.extend(runs, self.on);
                self.open = last;
                self.ends = (last.local.wrapping_add(last.len), last.remote.wrapping_add(last.len));
            }
        }
    }

    /// A run of any regions.
    pub(super) fn place(&mut self, one: &Placed) {
        self.enter((one.local_region, one.remote_region));
        self.push(one.run);
    }

    #[inline]
    pub(super) fn flush(&mut self) {
        if self.open.len > 0 {
            self.out.put(self.open, self.on);
            self.open.len = 0;
        }
    }
}

/// Whether any neighbours advance by one on both sides.
fn joined(local: &[i32], remote: &[i32]) -> bool {
    let steps = local.iter().zip(local.get(1..).unwrap_or_default());
    let steps = steps.zip(remote.iter().zip(remote.get(1..).unwrap_or_default()));
    // Without an early end, so that it is vector code; ids are not negative, so that no difference wraps to 1.
    let one = |(id, next): (&i32, &i32)| next.wrapping_sub(*id) == 1;
    steps.fold(false, |any, (here, there)| any | (one(here) & one(there)))
}
