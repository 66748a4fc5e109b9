//! Puts a plan together, working once for each kind of layer instead of once for each layer.

use std::sync::{Arc, OnceLock};

use crate::error::{Error, Result, Side};
use crate::layout::{Group, GroupKind, Layer, RankLayout};
use crate::units::wide;

use super::copy::{Copy, bounded, fewer, merge, nests};
use super::lane::{Lane, Track, join_lanes};
use super::matching::{Match, Take, match_layers};
use super::period::{Paging, Period};
use super::work::{MAX_PLAN_LANES, Work};
use super::{Direction, GroupPair, Inner, LayerPair, Plan};

/// What the layers of one kind exchange: for each pair of segments and each cell, the copies.
struct Kind {
    pair: usize,
    local: usize,
    remote: usize,
    take: Option<Arc<Take>>,
    segments: Vec<SegmentPair>,
}

struct SegmentPair {
    local: usize,
    remote: usize,
    cells: Vec<Carried>,
}

/// What one cell carries: in the fewest runs, and as nests.
struct Carried {
    copies: Arc<[Copy]>,
    nests: Arc<[Copy]>,
}

/// Plans everything that both sides hold.
pub(super) fn all(local: &RankLayout, remote: &RankLayout, direction: Direction) -> Result<Plan> {
    let (wanted, source) = match direction.destination() {
        Side::Local => (local, remote),
        Side::Remote => (remote, local),
    };
    let mut builder = Builder::new(local, remote);
    for (index, layer) in wanted.layers().iter().enumerate() {
        if let Some(there) = source.layer_near(layer.name(), index) {
            let (local, remote) = if direction.destination() == Side::Local { (index, there) } else { (there, index) };
            builder.layer((local, remote), None)?;
        } else if source.position().pp.size() == 1 {
            // A source without pipeline stages has every layer, so this one has another name there or does not exist.
            let side = if direction.destination() == Side::Local { Side::Remote } else { Side::Local };
            return Err(Error::Missing { layer: layer.name().to_owned(), side, missing: "the layer".to_owned() });
        }
    }
    builder.finish(direction)
}

/// Plans the named layers, each with its share.
pub(super) fn some(
    local: &RankLayout,
    remote: &RankLayout,
    direction: Direction,
    takes: &[(Arc<str>, Arc<Take>)],
) -> Result<Plan> {
    let mut builder = Builder::new(local, remote);
    for (index, (name, take)) in takes.iter().enumerate() {
        let find = |layout: &RankLayout, side: Side| {
            let found = layout.layer_near(name, index);
            found.ok_or_else(|| Error::Missing { layer: name.to_string(), side, missing: "the layer".to_owned() })
        };
        builder.layer((find(local, Side::Local)?, find(remote, Side::Remote)?), Some(take))?;
    }
    builder.finish(direction)
}

struct Builder<'a> {
    local: &'a RankLayout,
    remote: &'a RankLayout,
    pairs: Vec<GroupPair>,
    kinds: Vec<Kind>,
    layers: Vec<LayerPair>,
    lanes: Vec<Lane>,
    work: Work,
}

impl<'a> Builder<'a> {
    fn new(local: &'a RankLayout, remote: &'a RankLayout) -> Self {
        let (kinds, layers, lanes) = (Vec::new(), Vec::new(), Vec::new());
        Self { local, remote, pairs: Vec::new(), kinds, layers, lanes, work: Work::default() }
    }

    /// Adds a layer by its index on both sides.
    fn layer(&mut self, at: (usize, usize), take: Option<&Arc<Take>>) -> Result<()> {
        let layers = (self.local.layers().get(at.0), self.remote.layers().get(at.1));
        let (Some(local), Some(remote)) = layers else { return Err(Error::overflow("layer index")) };
        let (local, remote) = ((at.0, local), (at.1, remote));
        let pair = self.pair(local.1, remote.1)?;
        let known = self.kinds.iter().position(|kind| {
            let like = |layout: &RankLayout, index: usize, layer: &Layer| {
                layout.layers().get(index).is_some_and(|known| known.same_kind(layer))
            };
            kind.pair == pair
                && same_take(kind.take.as_ref(), take)
                && like(self.local, kind.local, local.1)
                && like(self.remote, kind.remote, remote.1)
        });
        let kind = match known {
            Some(kind) => kind,
            None => {
                let kind = self.kind(pair, local, remote, take)?;
                self.kinds.push(kind);
                self.kinds.len().saturating_sub(1)
            }
        };
        self.layers.push(LayerPair { local: local.0, remote: remote.0, pair, take: take.cloned(), kind });
        let Some(kind) = self.kinds.get(kind) else { return Ok(()) };
        for segments in &kind.segments {
            let here = local.1.segments().get(segments.local);
            let there = remote.1.segments().get(segments.remote);
            let (Some(here), Some(there)) = (here, there) else { continue };
            let (here, there) = (Track::new(self.local, here)?, Track::new(self.remote, there)?);
            // Also of segments between which nothing moves, as between ranks that share no token: their pages are named all the same.
            if let Some(GroupPair { limits, .. }) = self.pairs.get_mut(pair) {
                *limits = (limits.0.min(here.pages), limits.1.min(there.pages));
            }
            for (cell, Carried { copies, nests }) in segments.cells.iter().enumerate() {
                if copies.is_empty() {
                    continue;
                }
                let (copies, nests) = (Arc::clone(copies), Arc::clone(nests));
                let lane = Lane { pair, cell, local: here, remote: there, copies, nests };
                lane.prove(self.local, self.remote)?;
                self.lanes.push(lane);
                bounded("stretches of pages in one plan", wide(self.lanes.len()), MAX_PLAN_LANES)?;
            }
        }
        Ok(())
    }

    /// The pair of groups that two layers belong to, and how their pages line up.
    fn pair(&mut self, local: &Layer, remote: &Layer) -> Result<usize> {
        let wanted = (local.group(), remote.group());
        if let Some(known) = self.pairs.iter().position(|pair| (pair.local, pair.remote) == wanted) {
            return Ok(known);
        }
        let groups = (self.local.groups().get(wanted.0), self.remote.groups().get(wanted.1));
        let (Some(here), Some(there)) = groups else { return Err(Error::overflow("group index")) };
        if let Some(first) = group_disagreements(local.name(), here, there).into_iter().next() {
            return Err(first);
        }
        let period = match here.kind() {
            GroupKind::State => Period::whole(),
            GroupKind::Tokens => {
                let paging = |layout: &RankLayout, group: usize| Paging {
                    states: layout.states_per_page(group),
                    context: layout.position().cp,
                };
                Period::new(paging(self.local, wanted.0), paging(self.remote, wanted.1))?
            }
        };
        let limits = (u64::MAX, u64::MAX);
        let pair = GroupPair { local: wanted.0, remote: wanted.1, kind: here.kind(), period: Arc::new(period), limits };
        self.pairs.push(pair);
        Ok(self.pairs.len().saturating_sub(1))
    }

    fn kind(
        &mut self,
        pair: usize,
        local: (usize, &Layer),
        remote: (usize, &Layer),
        take: Option<&Arc<Take>>,
    ) -> Result<Kind> {
        let matches = match_layers(local.1, remote.1, take.map(Arc::as_ref))?;
        let groups = self.pairs.get(pair).ok_or_else(|| Error::overflow("group pair"))?.clone();
        let mut segments: Vec<SegmentPair> = Vec::new();
        // `match_layers` lists the matches of two segments one after the other.
        for these in matches.chunk_by(|a, b| a.segments() == b.segments()) {
            let Some((local, remote)) = these.first().map(Match::segments) else { continue };
            let mut cells = Vec::with_capacity(groups.period.cells.len());
            for cell in &groups.period.cells {
                let nests = nests_of(these, groups.kind, &cell.spans(None)?, &mut self.work)?;
                let copies: Arc<[Copy]> = merge(nests.clone(), &mut self.work)?.into();
                let nests = fewer(&copies, nests);
                cells.push(Carried { copies, nests });
            }
            segments.push(SegmentPair { local, remote, cells });
        }
        Ok(Kind { pair, local: local.0, remote: remote.0, take: take.cloned(), segments })
    }

    fn finish(mut self, direction: Direction) -> Result<Plan> {
        Ok(Plan(Arc::new(Inner {
            local: self.local.clone(),
            remote: self.remote.clone(),
            direction,
            pairs: self.pairs,
            layers: self.layers,
            lanes: join_lanes(self.lanes, &mut self.work)?,
            digest: OnceLock::new(),
        })))
    }
}

/// Why the blocks of two groups do not stand for the same; none when they do. Lengths of pages and blocks may differ: they are lined
/// up by token.
pub(crate) fn group_disagreements(layer: &str, local: &Group, remote: &Group) -> Vec<Error> {
    let differs = |field: &str, local: String, remote: String| Error::Incompatible {
        layer: Some(layer.to_owned()),
        field: field.to_owned(),
        local,
        remote,
        remedy: None,
    };
    let mut found = Vec::new();
    if local.kind() != remote.kind() {
        found.push(differs("group kind", local.kind().to_string(), remote.kind().to_string()));
    }
    if local.tokens_per_state() != remote.tokens_per_state() {
        let (ours, theirs) = (local.tokens_per_state().to_string(), remote.tokens_per_state().to_string());
        found.push(differs("tokens per state", ours, theirs));
    }
    found
}

/// What matches carry for the given stretches of states, in the fewest runs.
pub(crate) fn copies_of(
    matches: &[Match<'_>],
    kind: GroupKind,
    spans: &[super::axis::Span],
    work: &mut Work,
) -> Result<Vec<Copy>> {
    merge(nests_of(matches, kind, spans, work)?, work)
}

/// What matches carry for the given stretches of states, as nests.
fn nests_of(matches: &[Match<'_>], kind: GroupKind, spans: &[super::axis::Span], work: &mut Work) -> Result<Vec<Copy>> {
    let mut copies = Vec::new();
    for one in matches {
        copies.extend(one.copies(kind, spans, work)?);
        bounded("copies of one pair of segments", wide(copies.len()), 1 << 18)?;
    }
    work.look_at(wide(copies.len()))?;
    nests(copies)
}

fn same_take(one: Option<&Arc<Take>>, other: Option<&Arc<Take>>) -> bool {
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => Arc::ptr_eq(one, other) || one == other,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
