//! What one rank exchanges with another: a short list of strided copies, independent of the number of pages.
//!
//! 1. `matching`: components by name; types, content and shares must agree.
//! 2. `period`: pages of both sides lined up by global token.
//! 3. `axis` and `copy`: both address maps refined to common digits, contiguous loops folded into runs.
//! 4. `lane`: runs that touch on both sides joined across components, segments and layers.

pub(crate) mod axis;
pub(crate) mod build;
pub(crate) mod copy;
pub(crate) mod lane;
pub(crate) mod matching;
pub(crate) mod period;
pub(crate) mod work;

use std::fmt;
use std::sync::{Arc, OnceLock};

use sha2::{Digest as _, Sha256};

pub use copy::{Copy, Loop, Run};
pub use matching::Take;
pub use work::{MAX_PLAN_COPIES, MAX_PLAN_LANES, MAX_PLAN_RUNS};

use crate::error::{Error, Result, Side};
use crate::layout::{GroupKind, RankLayout, Shares};
use crate::units::{Interval, add, div_ceil, mul, wide};
use lane::Lane;
use period::Period;

/// Which way the bytes go. The local side plans and issues the transfer in either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The local side pulls: its pages are the destination.
    Read,
    /// The local side pushes: the remote pages are the destination.
    Write,
}

impl Direction {
    /// The side whose pages are written.
    pub const fn destination(self) -> Side {
        match self {
            Self::Read => Side::Local,
            Self::Write => Side::Remote,
        }
    }

    /// `read` or `write`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

impl std::str::FromStr for Direction {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "read" => Ok(Self::Read),
            "write" => Ok(Self::Write),
            other => Err(Error::layout(None, "direction", other, "read or write")),
        }
    }
}

/// Names a plan: equal digests move the same bytes between the same addresses, so prepared handles can be kept by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PlanDigest([u8; 32]);

impl PlanDigest {
    /// The digest's bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for PlanDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Two groups whose layers meet on this edge, and how their pages line up.
#[derive(Debug, Clone)]
pub(crate) struct GroupPair {
    pub(crate) local: usize,
    pub(crate) remote: usize,
    pub(crate) kind: GroupKind,
    pub(crate) period: Arc<Period>,
    /// Page ids of each side must be below these.
    pub(crate) limits: (u64, u64),
}

/// A layer of both sides with what of it moves, kept for requests that need part of a page.
#[derive(Debug, Clone)]
pub(crate) struct LayerPair {
    pub(crate) local: usize,
    pub(crate) remote: usize,
    pub(crate) pair: usize,
    pub(crate) take: Option<Arc<Take>>,
    /// Layers with one number are built alike on both sides.
    pub(crate) kind: usize,
}

/// The plan of one edge. Immutable, cheap to clone; its size does not depend on how many pages there are.
#[derive(Debug, Clone)]
pub struct Plan(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    local: RankLayout,
    remote: RankLayout,
    direction: Direction,
    pairs: Vec<GroupPair>,
    layers: Vec<LayerPair>,
    lanes: Vec<Lane>,
    digest: OnceLock<PlanDigest>,
}

/// Counts of a plan, over one period of pages (the least common multiple of both sides' page lengths).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Layers that move.
    pub layers: u64,
    /// Contiguous runs of all layers in one period; rows of a prepared list.
    pub runs: u64,
    /// Bytes of all layers in one period.
    pub bytes: u64,
    /// The shortest run in bytes; 0 when nothing moves.
    pub shortest_run: u64,
    /// The longest run in bytes.
    pub longest_run: u64,
    /// Runs of all layers for each page of the local side, rounded up.
    pub runs_per_page: u64,
    /// Pages of all layers in one period, of the local and of the remote side.
    pub pages: (u64, u64),
}

impl Plan {
    /// Plans the edge between two ranks: everything that both hold.
    ///
    /// # Errors
    /// [`Error::Incompatible`] when bytes copied as they are would not mean the same on the other side, [`Error::Missing`] when a
    /// layer of the destination is not held by a source that claims to hold all layers, [`Error::Limit`] when page sizes or nests
    /// need more pieces than can be planned.
    pub fn new(local: &RankLayout, remote: &RankLayout, direction: Direction) -> Result<Self> {
        build::all(local, remote, direction)
    }

    /// Plans what a route's edge carries: the named layers, each with its share.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn of_takes(
        local: &RankLayout,
        remote: &RankLayout,
        direction: Direction,
        takes: &[(Arc<str>, Arc<Take>)],
    ) -> Result<Self> {
        build::some(local, remote, direction, takes)
    }

    /// Plans some layers alone, all that both ranks hold of them: prefill that sends each layer as soon as it is computed.
    ///
    /// # Errors
    /// As [`Plan::new`]; [`Error::Missing`] when either rank lacks one of the layers.
    pub fn of_layers<'n>(
        local: &RankLayout,
        remote: &RankLayout,
        direction: Direction,
        layers: impl IntoIterator<Item = &'n str>,
    ) -> Result<Self> {
        let mut takes: Vec<(Arc<str>, Arc<Take>)> = Vec::new();
        for name in layers {
            let Some(layer) = local.layer(name) else {
                return Err(Error::Missing {
                    layer: name.to_owned(),
                    side: Side::Local,
                    missing: "the layer".to_owned(),
                });
            };
            if takes.iter().all(|(known, _)| &**known != name) {
                let shares = layer.totals().iter().map(|(axis, total)| (axis.clone(), Interval::from_zero(*total)));
                let take = Take { shares: Shares::new(shares), replicated: true };
                takes.push((Arc::from(name), Arc::new(take)));
            }
        }
        build::some(local, remote, direction, &takes)
    }

    /// A plan with a fault in it, for what has to find it.
    #[cfg(test)]
    pub(crate) fn broken(&self, fault: impl FnOnce(&mut Vec<Lane>)) -> Self {
        let inner = &self.0;
        let mut lanes = inner.lanes.clone();
        fault(&mut lanes);
        Self(Arc::new(Inner {
            local: inner.local.clone(),
            remote: inner.remote.clone(),
            direction: inner.direction,
            pairs: inner.pairs.clone(),
            layers: inner.layers.clone(),
            lanes,
            digest: OnceLock::new(),
        }))
    }

    /// The side that plans and issues.
    pub fn local(&self) -> &RankLayout {
        &self.0.local
    }

    /// The peer.
    pub fn remote(&self) -> &RankLayout {
        &self.0.remote
    }

    /// The layout of one side.
    pub fn side(&self, side: Side) -> &RankLayout {
        match side {
            Side::Local => &self.0.local,
            Side::Remote => &self.0.remote,
        }
    }

    /// Which way the bytes go.
    pub fn direction(&self) -> Direction {
        self.0.direction
    }

    pub(crate) fn pairs(&self) -> &[GroupPair] {
        &self.0.pairs
    }

    pub(crate) fn layer_pairs(&self) -> &[LayerPair] {
        &self.0.layers
    }

    pub(crate) fn lanes(&self) -> &[Lane] {
        &self.0.lanes
    }

    /// Whether pages hold as many states here as at the peer, in all groups that meet: then each ends where its like does.
    pub fn pages_alike(&self) -> bool {
        let states =
            |pair: &GroupPair| (self.0.local.states_per_page(pair.local), self.0.remote.states_per_page(pair.remote));
        self.0.pairs.iter().map(states).all(|(here, there)| here == there)
    }

    /// Whether no byte moves.
    pub fn is_empty(&self) -> bool {
        self.0.lanes.is_empty()
    }

    /// Counts over one period.
    ///
    /// # Errors
    /// [`Error::Overflow`] when a count does not fit.
    pub fn summary(&self) -> Result<Summary> {
        let mut summary = Summary {
            layers: wide(self.0.layers.len()),
            runs: 0,
            bytes: 0,
            shortest_run: 0,
            longest_run: 0,
            runs_per_page: 0,
            pages: (0, 0),
        };
        for pair in self.0.layers.iter().filter_map(|layer| self.0.pairs.get(layer.pair)) {
            let Period { local_pages, remote_pages, .. } = *pair.period;
            summary.pages.0 = add(summary.pages.0, local_pages, "pages of a plan")?;
            summary.pages.1 = add(summary.pages.1, remote_pages, "pages of a plan")?;
        }
        let mut by_pair = vec![0; self.0.pairs.len()];
        for lane in &self.0.lanes {
            for copy in lane.copies.iter() {
                let runs = copy.runs()?;
                summary.runs = add(summary.runs, runs, "runs of a plan")?;
                summary.bytes = add(summary.bytes, mul(runs, copy.run, "bytes of a plan")?, "bytes of a plan")?;
                summary.longest_run = summary.longest_run.max(copy.run);
                let before = Some(summary.shortest_run).filter(|shortest| *shortest > 0);
                summary.shortest_run = before.map_or(copy.run, |shortest| shortest.min(copy.run));
                if let Some(sum) = by_pair.get_mut(lane.pair) {
                    *sum = add(*sum, runs, "runs of a plan")?;
                }
            }
        }
        for (runs, pair) in by_pair.iter().zip(&self.0.pairs) {
            let runs = div_ceil(*runs, pair.period.local_pages, "runs of a page")?;
            summary.runs_per_page = add(summary.runs_per_page, runs, "runs of a page")?;
        }
        Ok(summary)
    }

    /// Names the plan by everything that its prepared lists and its tiles depend on: addresses, pages, runs, generations.
    pub fn digest(&self) -> PlanDigest {
        *self.0.digest.get_or_init(|| {
            let mut hash = Sha256::new();
            hash.update(b"kvreshard plan 1");
            hash.update(self.0.direction.name());
            for layout in [&self.0.local, &self.0.remote] {
                hash.update(wide(layout.engine().len()).to_le_bytes());
                hash.update(layout.engine());
                hash.update(layout.generation().to_le_bytes());
                for region in layout.regions() {
                    hash.update(u64::from(region.device()).to_le_bytes());
                    hash.update(region.memory().name());
                }
            }
            let mut number = |value: u64| hash.update(value.to_le_bytes());
            for lane in &self.0.lanes {
                number(wide(lane.pair));
                number(wide(lane.cell));
                for track in [&lane.local, &lane.remote] {
                    [wide(track.region), track.address, track.stride, track.pages].into_iter().for_each(&mut number);
                }
                let nests = if Arc::ptr_eq(&lane.copies, &lane.nests) { &[][..] } else { &lane.nests };
                for copy in lane.copies.iter().chain(nests) {
                    [copy.run, copy.local, copy.remote, wide(copy.loops.len())].into_iter().for_each(&mut number);
                    for step in &copy.loops {
                        [step.extent, step.local, step.remote].into_iter().for_each(&mut number);
                    }
                }
            }
            PlanDigest(hash.finalize().into())
        })
    }
}
