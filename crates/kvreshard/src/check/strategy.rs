//! What could be done with a pair, and whether doing it directly makes sense.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::plan::Direction;

use super::Options;
use super::report::{Report, Severity};

/// Descriptors for one page of one layer over which a caller who insists on direct transfer is refused: a descriptor costs 3 to 10
/// microseconds whatever its size, so such a page takes some milliseconds, where a whole page in one run takes a hundredth of it.
pub const MAX_RUNS_PER_PAGE: u64 = 1_024;

/// Runs shorter than this take longer to post than to move: pages that are built differently are better converted.
pub const SHORT_RUN_BYTES: u64 = 4_096;

/// Who works, and what moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Strategy {
    /// Nobody works: exactly the bytes move, one descriptor a run.
    Direct,
    /// The receiver reads whole pages into a ring and scatters them from there.
    Landed,
    /// The sender gathers the bytes, one run a chunk, and the receiver scatters them.
    Packed,
    /// Nothing moves.
    Refuse,
}

impl Strategy {
    /// `direct`, `landed`, `packed` or `refuse`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Landed => "landed",
            Self::Packed => "packed",
            Self::Refuse => "refuse",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Strategy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "direct" => Ok(Self::Direct),
            "landed" => Ok(Self::Landed),
            "packed" => Ok(Self::Packed),
            other => Err(Error::layout(None, "strategy", other, "direct, landed or packed")),
        }
    }
}

/// What one strategy would mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outlook {
    /// The strategy.
    pub strategy: Strategy,
    /// Whether it is the one to take.
    pub advised: bool,
    /// Descriptors for each local page, all layers together; of the direct strategy only.
    pub runs_per_page: Option<u64>,
    /// Bytes of a descriptor, in the mean; of the direct strategy only.
    pub bytes_per_run: Option<u64>,
    /// Who works, in words.
    pub work: String,
}

impl fmt::Display for Outlook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}{}", self.strategy, self.work, if self.advised { " (advised)" } else { "" })
    }
}

/// What moving one layer's pages directly takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LayerRuns {
    pub(super) layer: String,
    pub(super) local: String,
    pub(super) remote: String,
    /// Descriptors for one local page.
    pub(super) runs_per_page: u64,
    /// Whether the pages hold the same elements in another arrangement; in words, empty when not.
    pub(super) rearranged: String,
}

/// What moving every layer directly takes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DirectRuns {
    /// Each layer that moves.
    pub(super) layers: Vec<LayerRuns>,
    /// Bytes of one period, all layers.
    pub(super) bytes: u64,
    /// Runs of one period, all layers.
    pub(super) runs: u64,
}

impl DirectRuns {
    pub(super) fn runs_per_page(&self) -> u64 {
        self.layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.runs_per_page))
    }

    fn bytes_per_run(&self) -> u64 {
        self.bytes.checked_div(self.runs).unwrap_or(0)
    }
}

/// Adds the strategies to a report, and the refusal of a forced one that makes no sense.
pub(super) fn judge(direct: DirectRuns, options: &Options, report: &mut Report) {
    let conversions = conversions(options);
    if options.strategy == Some(Strategy::Direct) {
        for layer in direct.layers.iter().filter(|layer| layer.runs_per_page > options.max_runs_per_page) {
            report.add(Severity::Error, too_many(layer, options, &conversions));
        }
    }
    if let Some(forced) = options.strategy.filter(|s| *s != Strategy::Direct && !conversions.contains(s)) {
        report.add(Severity::Error, not_available(forced, options));
    }
    if !report.is_accepted() {
        let work = "nothing moves: see the errors".to_owned();
        report.set_strategies(vec![Outlook {
            strategy: Strategy::Refuse,
            advised: true,
            runs_per_page: None,
            bytes_per_run: None,
            work,
        }]);
        return;
    }
    let rearranged = direct.layers.iter().any(|layer| !layer.rearranged.is_empty());
    let senseless = (rearranged && direct.bytes_per_run() < SHORT_RUN_BYTES)
        || direct.layers.iter().any(|layer| layer.runs_per_page > options.max_runs_per_page);
    // Packed moves the bytes once; landed works with a peer that cannot help.
    let best = conversions.iter().copied().find(|s| *s == Strategy::Packed).or_else(|| conversions.first().copied());
    let advised = options.strategy.unwrap_or_else(|| best.filter(|_| senseless).unwrap_or(Strategy::Direct));
    let mut outlooks = vec![Outlook {
        strategy: Strategy::Direct,
        advised: advised == Strategy::Direct,
        runs_per_page: Some(direct.runs_per_page()),
        bytes_per_run: Some(direct.bytes_per_run()),
        work: format!(
            "{} descriptors a page over {} layers, {} bytes each in the mean",
            direct.runs_per_page(),
            direct.layers.len(),
            direct.bytes_per_run()
        ),
    }];
    outlooks.extend(conversions.into_iter().map(|strategy| Outlook {
        strategy,
        advised: advised == strategy,
        runs_per_page: None,
        bytes_per_run: None,
        work: match strategy {
            Strategy::Landed => "whole pages in long runs, scattered by the receiver".to_owned(),
            _ => "long runs, gathered by the sender and scattered by the receiver".to_owned(),
        },
    }));
    report.set_strategies(outlooks);
}

/// The conversions that the two sides can run. Landing is the receiver's own read.
fn conversions(options: &Options) -> Vec<Strategy> {
    let landed = options.landing && options.direction == Direction::Read;
    let both = [(landed, Strategy::Landed), (options.packing, Strategy::Packed)];
    both.into_iter().filter(|(able, _)| *able).map(|(_, strategy)| strategy).collect()
}

fn too_many(layer: &LayerRuns, options: &Options, conversions: &[Strategy]) -> Error {
    let how = if layer.rearranged.is_empty() {
        "the same arrangement, of which scattered shares move".to_owned()
    } else {
        format!("the same elements in another arrangement ({})", layer.rearranged)
    };
    let names: Vec<&str> = conversions.iter().map(|strategy| strategy.name()).collect();
    let remedy = if names.is_empty() {
        "a conversion exists (landed or packed), but neither side may run it: allow one".to_owned()
    } else {
        format!("a conversion exists: choose the strategy {}, or leave it to the planner", names.join(" or "))
    };
    Error::Incompatible {
        layer: Some(layer.layer.clone()),
        field: "page format".to_owned(),
        local: layer.local.clone(),
        remote: layer.remote.clone(),
        remedy: Some(format!(
            "it is {how}, and direct transfer would take {} descriptors a page, over the bound of {}; {remedy}",
            layer.runs_per_page, options.max_runs_per_page
        )),
    }
}

fn not_available(strategy: Strategy, options: &Options) -> Error {
    let why = match strategy {
        Strategy::Landed if options.direction == Direction::Write => "landing is the receiver's own read",
        Strategy::Landed => "the receiver does not scatter",
        _ => "not both sides run the packed protocol",
    };
    Error::layout(None, "strategy", strategy, format!("one that both sides can run; {why}"))
}
