//! Which calls let other threads run.

use kvreshard::layout::RankLayout;
use kvreshard::plan::Plan;
use pyo3::marker::Ungil;
use pyo3::prelude::*;

/// How many things, segments or descriptors, are few.
pub(crate) const FEW: usize = 1_024;

/// Runs `work` on so many things without the GIL where they are many, and with it where they are few.
///
/// A thread that gives the GIL up while another one computes waits 5 ms to have it again, Python's switch interval. What is about
/// few things takes microseconds, and a handshake or a request is several such calls.
pub(crate) fn released<T: Ungil>(py: Python<'_>, things: usize, work: impl FnOnce() -> T + Ungil) -> T {
    if things > FEW { py.detach(work) } else { work() }
}

/// The segments of a rank.
pub(crate) fn segments(rank: &RankLayout) -> usize {
    rank.layers().iter().map(|layer| layer.segments().len()).sum()
}

/// What a plan of two ranks is about: segments; many where pages do not line up one by one, since periods may be long.
pub(crate) fn planned(local: &RankLayout, remote: &RankLayout) -> usize {
    let dealt = [local, remote].iter().any(|rank| rank.position().cp.place().size() > 1);
    let groups = local.groups().len().max(remote.groups().len());
    let unlike = (0..groups).any(|group| local.states_per_page(group) != remote.states_per_page(group));
    if dealt || unlike { usize::MAX } else { segments(local).saturating_add(segments(remote)) }
}

/// What the rows of a plan are about: runs.
pub(crate) fn runs(plan: &Plan, runs: u64) -> usize {
    usize::try_from(runs).unwrap_or(usize::MAX).max(plan.local().layers().len())
}
