//! Two whole engines.

use std::collections::BTreeSet;

use crate::engine::Engine;
use crate::error::{Error, Side};
use crate::layout::RankLayout;
use crate::route::Route;

use super::report::{Report, Severity};
use super::strategy::{DirectRuns, judge};
use super::{Options, alias, layers};

/// The most pairs of ranks that are compared; the others are built like them.
const MAX_PAIRS: usize = 256;

/// Compares two engines: every layer has a source for each of its members, replicas agree, and every pair of ranks that exchanges
/// bytes fits.
pub fn check_engines(local: &Engine, remote: &Engine, options: &Options) -> Report {
    let mut report = Report::default();
    for (engine, side) in [(local, Side::Local), (remote, Side::Remote)] {
        for rank in engine.ranks().iter().take(MAX_PAIRS) {
            alias::look(rank, side, &mut report);
        }
    }
    let (to, from, source) = match options.direction.destination() {
        Side::Local => (local, remote, Side::Remote),
        Side::Remote => (remote, local, Side::Local),
    };
    let held: BTreeSet<&str> = from.ranks().iter().flat_map(RankLayout::layers).map(|layer| layer.name()).collect();
    for layer in to.ranks().iter().flat_map(RankLayout::layers) {
        if !held.contains(layer.name()) {
            let missing = "the layer".to_owned();
            report.add(Severity::Error, Error::Missing { layer: layer.name().to_owned(), side: source, missing });
        }
    }
    let pairs: Vec<(usize, usize)> = match Route::new(local, remote, options.direction) {
        Ok(route) => route.edges().iter().map(|edge| (edge.local(), edge.remote())).take(MAX_PAIRS).collect(),
        Err(error) => {
            report.add(Severity::Error, error);
            // Without a route any pair may be the one that does not fit.
            let all = (0..local.ranks().len()).flat_map(|one| (0..remote.ranks().len()).map(move |other| (one, other)));
            all.take(MAX_PAIRS).collect()
        }
    };
    let mut worst = DirectRuns::default();
    for (one, other) in pairs {
        let (Some(ours), Some(theirs)) = (local.ranks().get(one), remote.ranks().get(other)) else { continue };
        let mut found = Report::default();
        let direct = layers::compare(ours, theirs, options, &mut found);
        // Layers that one pair lacks may come from another; the engines as a whole were asked above.
        report.merge(found.without_missing());
        if direct.runs_per_page() > worst.runs_per_page() {
            worst = direct;
        }
    }
    judge(worst, options, &mut report);
    report
}
