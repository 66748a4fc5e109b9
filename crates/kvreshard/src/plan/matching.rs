//! Which component of which segment goes with which: by name, after both sides proved to mean the same elements.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use crate::error::{Error, Result, Side};
use crate::format::{Component, Digit};
use crate::layout::{GroupKind, Layer, Segment, Shares, TOKEN_AXIS};
use crate::name::Name;
use crate::units::{Interval, sub};

use super::axis::{Span, refine};
use super::copy::{Copy, bounded};
use super::work::Work;

/// The most copies that one pair of segments may need before they are merged.
const MAX_COPIES: u64 = 65_536;

/// What one edge carries of a layer: an interval of each sharded axis, and whether it carries what is not sharded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Take {
    /// The interval of each sharded axis, in global members; an axis that is not named is not carried.
    pub shares: Shares,
    /// Whether components without a sharded axis come along.
    pub replicated: bool,
}

/// A component of two segments, with the stretch of its sharded axis that both hold.
pub(crate) struct Match<'a> {
    local_segment: usize,
    remote_segment: usize,
    local: &'a Component,
    remote: &'a Component,
    axis: Option<Name>,
    share: Span,
}

/// Matches the components of two layers of one name.
///
/// # Errors
/// The first of [`disagreements`]: bytes copied all the same would be read as something else.
pub(crate) fn match_layers<'a>(local: &'a Layer, remote: &'a Layer, take: Option<&Take>) -> Result<Vec<Match<'a>>> {
    if let Some(first) = disagreements(local, remote).into_iter().next() {
        return Err(first);
    }
    let given = by_component(remote);
    let mut matches = Vec::new();
    for (local_segment, here) in local.segments().iter().enumerate() {
        let first = matches.len();
        for component in here.format().components() {
            let Some(held) = local.held(here, component) else { continue };
            let wanted = match (&held.axis, take) {
                (_, None) => Some(held.interval),
                (None, Some(take)) => take.replicated.then_some(held.interval),
                (Some(axis), Some(take)) => take.shares.get(axis),
            };
            let Some(wanted) = wanted.and_then(|wanted| held.interval.intersect(wanted)) else { continue };
            for other in given.get(component.name()).map_or(&[][..], |all| meeting(all, wanted)) {
                let Some(common) = other.interval.intersect(wanted) else { continue };
                let share = Span {
                    local: sub(common.start(), held.interval.start(), "share")?,
                    remote: sub(common.start(), other.interval.start(), "share")?,
                    len: common.len(),
                };
                matches.push(Match {
                    local_segment,
                    remote_segment: other.segment,
                    local: component,
                    remote: other.component,
                    axis: held.axis.clone(),
                    share,
                });
            }
        }
        if let Some(found) = matches.get_mut(first..) {
            found.sort_by_key(|found| found.remote_segment);
        }
    }
    Ok(matches)
}

/// Where a layer holds a part of a component.
struct Part<'a> {
    segment: usize,
    component: &'a Component,
    interval: Interval,
}

/// The parts of each component, in order of what they hold. A layer may have thousands of segments, so that looking at every pair
/// of them would take a peer's message and make minutes of it.
fn by_component(layer: &Layer) -> BTreeMap<&Name, Vec<Part<'_>>> {
    let mut parts: BTreeMap<&Name, Vec<Part<'_>>> = BTreeMap::new();
    for (number, segment) in layer.segments().iter().enumerate() {
        for component in segment.format().components() {
            if let Some(held) = layer.held(segment, component) {
                let part = Part { segment: number, component, interval: held.interval };
                parts.entry(component.name()).or_default().push(part);
            }
        }
    }
    for all in parts.values_mut() {
        all.sort_by_key(|part| (part.interval.start(), part.interval.end()));
    }
    parts
}

/// The parts that may share something with `wanted`; no two parts of a component hold the same member.
fn meeting<'p, 'a>(parts: &'p [Part<'a>], wanted: Interval) -> &'p [Part<'a>] {
    let first = parts.partition_point(|part| part.interval.end() <= wanted.start());
    let last = parts.partition_point(|part| part.interval.start() < wanted.end());
    parts.get(first..last).unwrap_or_default()
}

/// Why two layers of one name do not hold the same elements: totals, components, and for each component its sharded axis, type and
/// content extents. Each reason once, at most [`MAX_DISAGREEMENTS`]; none when they fit.
pub(crate) fn disagreements(local: &Layer, remote: &Layer) -> Vec<Error> {
    let mut found = Vec::new();
    compare_totals(local, remote, &mut found);
    compare_components(local, remote, &mut found);
    let theirs = signatures(remote);
    for (name, ours) in signatures(local) {
        for (here, component) in &ours {
            for (there, other) in theirs.get(name).map_or(&[][..], Vec::as_slice) {
                if found.len() >= MAX_DISAGREEMENTS {
                    return found;
                }
                let (Some(held), Some(given)) = (local.held(here, component), remote.held(there, other)) else {
                    continue;
                };
                if held.axis != given.axis {
                    let side = |axis: &Option<Name>| {
                        axis.as_ref().map_or_else(|| "replicated".to_owned(), |a| format!("sharded by {a}"))
                    };
                    let field = format!("component {name}");
                    note(&mut found, differs(local, field, side(&held.axis), side(&given.axis)));
                }
                compare_elements(local, component, other, held.axis.as_ref(), (here, there), &mut found);
            }
        }
    }
    found
}

/// For each component, the first of the segments that have it with the same type, sharded axis and content: what is compared.
fn signatures(layer: &Layer) -> BTreeMap<&Name, Vec<(&Segment, &Component)>> {
    let mut seen = BTreeSet::new();
    let mut first: BTreeMap<&Name, Vec<(&Segment, &Component)>> = BTreeMap::new();
    for segment in layer.segments() {
        for component in segment.format().components() {
            let Some(held) = layer.held(segment, component) else { continue };
            let content: Vec<(Name, u64)> = component
                .axes()
                .filter(|(axis, _)| axis.as_ref() != TOKEN_AXIS && Some(*axis) != held.axis.as_ref())
                .map(|(axis, _)| (axis.clone(), component.extent(axis.as_ref()).unwrap_or(1)))
                .collect();
            if seen.insert((component.name(), component.dtype(), held.axis, content)) {
                first.entry(component.name()).or_default().push((segment, component));
            }
        }
    }
    first
}

/// The most reasons that are listed for one pair of layers.
const MAX_DISAGREEMENTS: usize = 64;

fn note(found: &mut Vec<Error>, error: Error) {
    if !found.contains(&error) {
        found.push(error);
    }
}

fn differs(layer: &Layer, field: String, local: impl ToString, remote: impl ToString) -> Error {
    Error::Incompatible {
        layer: Some(layer.name().to_owned()),
        field,
        local: local.to_string(),
        remote: remote.to_string(),
        remedy: None,
    }
}

fn compare_totals(local: &Layer, remote: &Layer, found: &mut Vec<Error>) {
    let of = |layer: &Layer, axis: &Name| {
        layer.total(axis).map_or_else(|| "not sharded".to_owned(), |total| total.to_string())
    };
    for (axis, _) in local.totals().iter().chain(remote.totals()) {
        if local.total(axis) != remote.total(axis) {
            let remedy = "every rank of both engines must count the members of the whole layer alike";
            note(
                found,
                Error::Incompatible {
                    layer: Some(local.name().to_owned()),
                    field: format!("total of axis {axis}"),
                    local: of(local, axis),
                    remote: of(remote, axis),
                    remedy: Some(remedy.to_owned()),
                },
            );
        }
    }
}

/// Both sides must hold the same components, in whatever segments.
fn compare_components(local: &Layer, remote: &Layer, found: &mut Vec<Error>) {
    let names = |layer: &Layer| -> BTreeSet<Name> {
        layer.segments().iter().flat_map(|s| s.format().components()).map(|c| c.name().clone()).collect()
    };
    let (ours, theirs) = (names(local), names(remote));
    for name in ours.symmetric_difference(&theirs) {
        let side = |has: bool| if has { "present" } else { "absent" };
        let here = format!("{} in {}", side(ours.contains(name)), notations(local));
        let there = format!("{} in {}", side(theirs.contains(name)), notations(remote));
        note(found, differs(local, format!("component {name}"), here, there));
    }
}

/// The notations of a layer's segments, each once.
pub(crate) fn notations(layer: &Layer) -> String {
    const SHOWN: usize = 4;
    let mut texts: Vec<String> = Vec::new();
    for segment in layer.segments() {
        let text = format!("`{}`", segment.format().notation());
        if !texts.contains(&text) {
            if texts.len() == SHOWN {
                texts.push("...".to_owned());
                break;
            }
            texts.push(text);
        }
    }
    texts.join(", ")
}

/// Types, encodings and the extents of content axes must be equal: an element is moved as it is.
fn compare_elements(
    layer: &Layer,
    local: &Component,
    remote: &Component,
    sharded: Option<&Name>,
    (here, there): (&Segment, &Segment),
    found: &mut Vec<Error>,
) {
    let written = |value: &dyn Display, segment: &Segment| format!("{value} (`{}`)", segment.format().notation());
    if local.dtype() != remote.dtype() {
        let remedy = "values would have to be converted; run both engines with one cache type";
        note(
            found,
            Error::Incompatible {
                layer: Some(layer.name().to_owned()),
                field: format!("element type of component {}", local.name()),
                local: written(&local.dtype(), here),
                remote: written(&remote.dtype(), there),
                remedy: Some(remedy.to_owned()),
            },
        );
    }
    let content = |component: &Component, axis: &Name| {
        if axis.as_ref() == TOKEN_AXIS || Some(axis) == sharded {
            1
        } else {
            component.extent(axis.as_ref()).unwrap_or(1)
        }
    };
    for (axis, _) in local.axes().chain(remote.axes()) {
        let (ours, theirs) = (content(local, axis), content(remote, axis));
        if ours != theirs {
            let name = if axis.is_anonymous() { "the loops without a name".to_owned() } else { format!("axis {axis}") };
            let field = format!("extent of {name} in component {}", local.name());
            note(found, differs(layer, field, written(&ours, here), written(&theirs, there)));
        }
    }
}

impl Match<'_> {
    /// The local and the remote segment.
    pub(crate) const fn segments(&self) -> (usize, usize) {
        (self.local_segment, self.remote_segment)
    }

    /// The copies that carry this component for the states in `tokens`.
    pub(crate) fn copies(&self, kind: GroupKind, tokens: &[Span], work: &mut Work) -> Result<Vec<Copy>> {
        self.walk((self.local, self.remote), self.share, kind, tokens, work)
    }

    /// Where this component's bytes of the states in `tokens` lie on one side: copies of that side onto itself.
    pub(crate) fn bytes_of(&self, side: Side, kind: GroupKind, tokens: &[Span], work: &mut Work) -> Result<Vec<Copy>> {
        let (component, at) = match side {
            Side::Local => (self.local, self.share.local),
            Side::Remote => (self.remote, self.share.remote),
        };
        let share = Span { local: at, remote: at, len: self.share.len };
        self.walk((component, component), share, kind, tokens, work)
    }

    fn walk(
        &self,
        (local, remote): (&Component, &Component),
        share: Span,
        kind: GroupKind,
        tokens: &[Span],
        work: &mut Work,
    ) -> Result<Vec<Copy>> {
        let element = local.dtype().bytes();
        let mut copies = vec![Copy { run: element, loops: Vec::new(), local: local.base(), remote: remote.base() }];
        let axes = local.axes().map(|(axis, _)| axis);
        let others = remote.axes().map(|(axis, _)| axis).filter(|axis| local.extent(axis.as_ref()).is_none());
        for axis in axes.chain(others) {
            let (here, there) = (digits_of(local, axis), digits_of(remote, axis));
            let along = if Some(axis) == self.axis.as_ref() {
                refine(here, there, &[share], element, work)?
            } else if axis.as_ref() == TOKEN_AXIS && kind == GroupKind::Tokens {
                refine(here, there, tokens, element, work)?
            } else {
                let len = local.extent(axis.as_ref()).unwrap_or(1);
                refine(here, there, &[Span { local: 0, remote: 0, len }], element, work)?
            };
            let product = copies.len().saturating_mul(along.len());
            bounded("copies of one component", crate::units::wide(product), MAX_COPIES)?;
            let mut next = Vec::with_capacity(product);
            for outer in &along {
                for inner in &copies {
                    next.push(outer.times(inner)?);
                }
            }
            copies = next;
        }
        Ok(copies)
    }
}

fn digits_of<'a>(component: &'a Component, axis: &Name) -> &'a [Digit] {
    component.axes().find(|(name, _)| *name == axis).map(|(_, digits)| digits).unwrap_or_default()
}
