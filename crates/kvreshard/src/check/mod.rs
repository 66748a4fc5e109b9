//! Whether two sides mean the same pages, before the first byte moves.
//!
//! [`check`] looks at everything and reports it; [`Plan::new`](crate::plan::Plan::new) and [`Route::new`](crate::route::Route::new)
//! raise the first error of the same kind. It needs neither memory nor NIXL, so the writer can run it before it writes, and the
//! receiver when all that it does is to wait for a notice.
//!
//! ```text
//! error     the pair must not transfer: bytes would be read as something else, or the forced strategy makes no sense
//! warning   it may transfer, but something cannot be seen, or looks like a mistake
//! note      what differs and is planned through
//! ```
//!
//! A peer that does not say how its pages are built is [`untagged`]; what two of those would do to each other is an [`audit`].

mod alias;
pub mod audit;
mod engines;
mod layers;
mod report;
mod stock;
mod strategy;
pub mod untagged;

pub use engines::check_engines;
pub use report::{Finding, MAX_FINDINGS, Report, Severity};
pub use stock::{MAX_HANDSHAKE_BYTES, StockHandshake};
pub use strategy::{MAX_RUNS_PER_PAGE, Outlook, SHORT_RUN_BYTES, Strategy};

use crate::layout::RankLayout;
use crate::plan::Direction;

/// What a pair is checked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Which way bytes would go; the local side issues the transfer.
    pub direction: Direction,
    /// A strategy that the caller insists on; none leaves it to the planner.
    pub strategy: Option<Strategy>,
    /// The most descriptors for one page of one layer that a caller who insists on [`Strategy::Direct`] may cause.
    pub max_runs_per_page: u64,
    /// Whether the receiver can scatter pages that it landed elsewhere.
    pub landing: bool,
    /// Whether both sides can run the packed protocol.
    pub packing: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            direction: Direction::Read,
            strategy: None,
            max_runs_per_page: MAX_RUNS_PER_PAGE,
            landing: true,
            packing: true,
        }
    }
}

/// Compares two ranks in everything that decides whether bytes copied between them mean the same.
///
/// Interleaves, page lengths, pool sizes, strides and replicas are compared for what they mean: what the planner can line up is a
/// note at most.
pub fn check(local: &RankLayout, remote: &RankLayout, options: &Options) -> Report {
    let mut report = Report::default();
    alias::look(local, crate::Side::Local, &mut report);
    alias::look(remote, crate::Side::Remote, &mut report);
    let direct = layers::compare(local, remote, options, &mut report);
    strategy::judge(direct, options, &mut report);
    report
}
