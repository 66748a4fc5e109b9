//! Who of several holders gives what: where a layer is held, cut into stretches, and each stretch dealt to one source.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::error::{Error, Result, Side};
use crate::layout::{GroupKind, Layer, RankLayout, Shares};
use crate::name::Name;
use crate::plan::Take;
use crate::plan::period::{Paging, Period};
use crate::shard::ContextParallel;
use crate::units::{Interval, wide};

/// Target, source, and what goes between them.
pub(super) type Dealt = Vec<(usize, usize, Arc<Take>)>;

/// Both engines, and which of their pages meet.
pub(super) struct Router<'a> {
    to: &'a [RankLayout],
    from: &'a [RankLayout],
    source_side: Side,
    meets: Vec<(Paging, Paging, bool)>,
}

/// Where one layer is held: index of the rank, and the layer there.
pub(super) struct Spread<'a> {
    name: &'a str,
    totals: &'a [(Name, u64)],
    kind: GroupKind,
    to: Vec<Holder>,
    from: Vec<Holder>,
}

struct Holder {
    rank: usize,
    paging: Paging,
    /// Intervals of each sharded axis, in the order of the totals.
    held: Vec<Vec<Interval>>,
    replicated: bool,
}

impl<'a> Router<'a> {
    /// `source_side` is what an error calls the side of `from`.
    pub(super) const fn new(to: &'a [RankLayout], from: &'a [RankLayout], source_side: Side) -> Self {
        Self { to, from, source_side, meets: Vec::new() }
    }

    /// Whether every rank of both engines has both layers or neither, built alike and in one group.
    pub(super) fn alike(&self, one: (usize, &Layer), other: (usize, &Layer)) -> bool {
        let find = |rank: &'a RankLayout, (index, layer): (usize, &Layer)| {
            rank.layer_near(layer.name(), index).and_then(|at| rank.layers().get(at))
        };
        self.to.iter().chain(self.from).all(|rank| match (find(rank, one), find(rank, other)) {
            (Some(one), Some(other)) => one.group() == other.group() && one.same_kind(other),
            (None, None) => true,
            _ => false,
        })
    }

    pub(super) fn spread(&self, layer: &'a Layer) -> Result<Spread<'a>> {
        let holders = |ranks: &'a [RankLayout]| -> Result<Vec<Holder>> {
            let mut holders = Vec::new();
            for (rank, layout) in ranks.iter().enumerate() {
                let Some(there) = layout.layer(layer.name()) else { continue };
                check_totals(layer, there)?;
                let paging = Paging { states: there.states_per_page(), context: layout.position().cp };
                let (held, replicated) = holds(there);
                holders.push(Holder { rank, paging, held, replicated });
            }
            Ok(holders)
        };
        let kind = self.to.iter().find_map(|rank| rank.layer(layer.name()).and_then(|l| rank.groups().get(l.group())));
        let spread = Spread {
            name: layer.name(),
            totals: layer.totals(),
            kind: kind.map_or(GroupKind::Tokens, crate::layout::Group::kind),
            to: holders(self.to)?,
            from: holders(self.from)?,
        };
        if spread.from.is_empty() {
            return Err(self.missing(layer.name(), "the layer"));
        }
        Ok(spread)
    }

    fn missing(&self, layer: &str, what: impl Into<String>) -> Error {
        Error::Missing { layer: layer.to_owned(), side: self.source_side, missing: what.into() }
    }

    /// Deals what every destination needs of a layer to the sources.
    pub(super) fn deal(&mut self, layer: &Spread<'_>) -> Result<Dealt> {
        let mut dealt: BTreeMap<(usize, usize), Vec<(usize, Interval)>> = BTreeMap::new();
        let mut whole: BTreeSet<(usize, usize)> = BTreeSet::new();
        // States are not dealt by token: every context-parallel rank has the whole of them, so all are one context.
        let context_of = |source: &Holder| match layer.kind {
            GroupKind::Tokens => source.paging.context.place().rank(),
            GroupKind::State => 0,
        };
        let contexts: BTreeSet<u64> = layer.from.iter().map(context_of).collect();
        self.check_contexts(layer, &contexts)?;
        for context in contexts {
            let sources: Vec<&Holder> = layer.from.iter().filter(|source| context_of(source) == context).collect();
            let Some(sample) = sources.first() else { continue };
            let mut targets = Vec::new();
            for target in &layer.to {
                if layer.kind == GroupKind::State || self.meet(target.paging, sample.paging)? {
                    targets.push(target);
                }
            }
            for (axis, (name, _)) in layer.totals.iter().enumerate() {
                for stretch in stretches(axis, &targets, &sources) {
                    let holding = |holder: &&&Holder| holds_stretch(holder, axis, stretch);
                    let wanting: Vec<_> = targets.iter().filter(holding).collect();
                    let giving: Vec<_> = sources.iter().filter(holding).collect();
                    for (index, target) in wanting.iter().enumerate() {
                        let source = giving.get(dealt_index(index, wanting.len(), giving.len()));
                        let Some(source) = source else {
                            return Err(self.missing(layer.name, format!("{name} {stretch}")));
                        };
                        dealt.entry((target.rank, source.rank)).or_default().push((axis, stretch));
                    }
                }
            }
            let wanting: Vec<_> = targets.iter().filter(|target| target.replicated).collect();
            let giving: Vec<_> = sources.iter().filter(|source| source.replicated).collect();
            for (index, target) in wanting.iter().enumerate() {
                // A source that already sends something to this rank saves a connection.
                let used = giving.iter().find(|source| dealt.contains_key(&(target.rank, source.rank)));
                let source = used.or_else(|| giving.get(dealt_index(index, wanting.len(), giving.len())));
                let Some(source) = source else {
                    return Err(self.missing(layer.name, "the components that are not sharded"));
                };
                whole.insert((target.rank, source.rank));
                dealt.entry((target.rank, source.rank)).or_default();
            }
        }
        let mut out = Vec::new();
        for ((target, source), parts) in dealt {
            let replicated = whole.contains(&(target, source));
            for (index, shares) in takes_of(layer.totals, parts).into_iter().enumerate() {
                out.push((target, source, Arc::new(Take { shares, replicated: replicated && index == 0 })));
            }
        }
        Ok(out)
    }

    /// Every context-parallel rank of the source must be there, or tokens would be missing without a word.
    fn check_contexts(&self, layer: &Spread<'_>, found: &BTreeSet<u64>) -> Result<()> {
        let size = layer.from.first().map_or(1, |source| source.paging.context.place().size());
        if layer.kind == GroupKind::Tokens && wide(found.len()) != size {
            let absent = (0..size).find(|rank| !found.contains(rank)).unwrap_or(0);
            return Err(self.missing(layer.name, format!("the tokens of context-parallel rank {absent} of {size}")));
        }
        Ok(())
    }

    /// Whether two ranks hold any token in common.
    fn meet(&mut self, to: Paging, from: Paging) -> Result<bool> {
        let alone = |context: ContextParallel| context.place().size() == 1;
        if alone(to.context) || alone(from.context) {
            return Ok(true);
        }
        if let Some((_, _, meet)) = self.meets.iter().find(|(a, b, _)| (*a, *b) == (to, from)) {
            return Ok(*meet);
        }
        let meet = !Period::new(to, from)?.cells.is_empty();
        self.meets.push((to, from, meet));
        Ok(meet)
    }
}

fn check_totals(one: &Layer, other: &Layer) -> Result<()> {
    if one.totals() == other.totals() {
        return Ok(());
    }
    let text = |layer: &Layer| {
        let totals: Vec<String> = layer.totals().iter().map(|(axis, total)| format!("{axis}={total}")).collect();
        if totals.is_empty() { "nothing sharded".to_owned() } else { totals.join(" ") }
    };
    Err(Error::Incompatible {
        layer: Some(one.name().to_owned()),
        field: "totals of sharded axes".to_owned(),
        local: text(one),
        remote: text(other),
        remedy: Some("every rank of both engines must count the heads of the whole layer alike".to_owned()),
    })
}

/// The intervals of each sharded axis over all segments, joined; and whether there are components without a sharded axis.
fn holds(layer: &Layer) -> (Vec<Vec<Interval>>, bool) {
    let mut held: Vec<Vec<Interval>> = vec![Vec::new(); layer.totals().len()];
    let mut replicated = false;
    for segment in layer.segments() {
        for component in segment.format().components() {
            let Some(part) = layer.held(segment, component) else { continue };
            let Some(axis) = &part.axis else {
                replicated = true;
                continue;
            };
            let at = layer.totals().iter().position(|(name, _)| name == axis);
            if let Some(list) = at.and_then(|at| held.get_mut(at)) {
                if !list.contains(&part.interval) {
                    list.push(part.interval);
                }
            }
        }
    }
    for list in &mut held {
        list.sort_unstable();
        join_intervals(list);
    }
    (held, replicated)
}

/// Joins neighbours in a sorted list.
fn join_intervals(list: &mut Vec<Interval>) {
    let mut joined: Vec<Interval> = Vec::with_capacity(list.len());
    for next in list.drain(..) {
        match joined.last().and_then(|last| {
            if last.end() >= next.start() { Interval::new(last.start(), last.end().max(next.end())) } else { None }
        }) {
            Some(whole) => {
                joined.pop();
                joined.push(whole);
            }
            None => joined.push(next),
        }
    }
    *list = joined;
}

fn holds_stretch(holder: &Holder, axis: usize, stretch: Interval) -> bool {
    holder.held.get(axis).is_some_and(|list| list.iter().any(|interval| interval.contains(stretch)))
}

/// What the targets need of an axis, cut wherever any holder's interval begins or ends.
fn stretches(axis: usize, targets: &[&Holder], sources: &[&Holder]) -> Vec<Interval> {
    let of = |holder: &&Holder| holder.held.get(axis).cloned().unwrap_or_default();
    let wanted: Vec<Interval> = targets.iter().flat_map(of).collect();
    let cuts: BTreeSet<u64> = wanted
        .iter()
        .copied()
        .chain(sources.iter().flat_map(of))
        .flat_map(|interval| [interval.start(), interval.end()])
        .collect();
    let between = cuts.iter().zip(cuts.iter().skip(1)).filter_map(|(start, end)| Interval::new(*start, *end));
    between.filter(|stretch| wanted.iter().any(|interval| interval.contains(*stretch))).collect()
}

/// Deals `index` of `count` evenly to `holders`: neighbours share a holder, or holders are left out at equal distances.
pub(super) fn dealt_index(index: usize, count: usize, holders: usize) -> usize {
    index.checked_mul(holders).and_then(|product| product.checked_div(count)).unwrap_or(0)
}

/// The shares of one edge: neighbouring stretches joined; an axis in several pieces needs several takes.
fn takes_of(totals: &[(Name, u64)], parts: Vec<(usize, Interval)>) -> Vec<Shares> {
    let mut takes = vec![Shares::default()];
    for (axis, (name, _)) in totals.iter().enumerate() {
        let mut list: Vec<Interval> = parts.iter().filter(|(of, _)| *of == axis).map(|(_, part)| *part).collect();
        list.sort_unstable();
        join_intervals(&mut list);
        for (index, interval) in list.into_iter().enumerate() {
            if index == takes.len() {
                takes.push(Shares::default());
            }
            if let Some(shares) = takes.get_mut(index) {
                shares.set(name.clone(), interval);
            }
        }
    }
    takes
}
