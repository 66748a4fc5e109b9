//! An independent check of what planning produced.
//!
//! Planning works on loops and digits. This walks single elements instead: it asks each side's format where the element lies
//! ([`Component::offset`]) and looks the byte up in the runs of the plans, so a fault of planning cannot hide here as well.

use crate::error::{Error, Result, Side};
use crate::format::Component;
use crate::layout::{GroupKind, Held, Layer, RankLayout, Region, Segment, TOKEN_AXIS};
use crate::lower::Descriptor;
use crate::plan::period::Paging;
use crate::plan::{Direction, Plan, Run};
use crate::units::{add, div, lcm, mul, rem, sub, wide};

/// A run of one plan, addresses of page 0 on both sides, with the numbers of the pages in a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Arrow {
    to: u64,
    from: u64,
    len: u64,
    plan: usize,
    from_page: u64,
}

/// Proves that `plans`, all edges into one destination rank, write every byte of every element that it holds exactly once, take it
/// from the right place of the right source, write nothing else, and stay inside the regions of both sides.
///
/// The time is proportional to the elements of a period of pages; this is for tests and tools, not for every request.
///
/// # Errors
/// [`Error::Unproven`] naming the layer, the fault and the address of page 0 that shows it.
pub fn plans(plans: &[Plan]) -> Result<()> {
    check(plans, true)
}

/// Proves of one plan what [`plans`] proves of all edges into a rank, for the elements that this plan writes.
///
/// # Errors
/// As [`plans`].
pub fn plan(plan: &Plan) -> Result<()> {
    check(std::slice::from_ref(plan), false)
}

fn check(plans: &[Plan], whole: bool) -> Result<()> {
    let Some(first) = plans.first() else { return Ok(()) };
    let side = first.direction().destination();
    let rank = first.side(side);
    for plan in plans {
        if plan.direction() != first.direction() || plan.side(side) != rank {
            return Err(Error::layout(None, "plans", "several destinations", "plans into one rank, in one direction"));
        }
    }
    for (group, about) in rank.groups().iter().enumerate() {
        let layers: Vec<&Layer> = rank.layers().iter().filter(|layer| layer.group() == group).collect();
        if layers.is_empty() {
            continue;
        }
        let mut period = 1;
        for pair in plans.iter().flat_map(|plan| plan.pairs()).filter(|pair| of(side, pair.local, pair.remote) == group)
        {
            period = lcm(period, of(side, pair.period.local_pages, pair.period.remote_pages), "pages of a period")?;
        }
        for page in 0..period {
            let check = PageCheck { plans, side, rank, group, page, whole, arrows: arrows(plans, side, group, page)? };
            check.run(&layers, about.kind())?;
        }
    }
    Ok(())
}

/// Proves of a raw descriptor list that both sides stay inside one region each and that no byte of the destination is written twice.
///
/// # Errors
/// [`Error::Unproven`] with the first address at fault.
pub fn descriptors(local: &RankLayout, remote: &RankLayout, direction: Direction, list: &[Descriptor]) -> Result<()> {
    for one in list {
        for (side, layout, start) in [(Side::Local, local, one.local), (Side::Remote, remote, one.remote)] {
            let end = start.checked_add(one.length).ok_or_else(|| unproven(None, "descriptor wraps", side, start))?;
            let inside = |region: &Region| {
                let limit = region.base().checked_add(region.bytes());
                region.base() <= start && limit.is_some_and(|limit| end <= limit)
            };
            if !layout.regions().iter().any(inside) {
                return Err(unproven(None, "descriptor outside every region", side, start));
            }
        }
    }
    let side = direction.destination();
    let device = |one: &Descriptor| of(side, one.local_device, one.remote_device);
    let mut spans: Vec<(u32, u64, u64)> =
        list.iter().map(|one| (device(one), of(side, one.local, one.remote), one.length)).collect();
    spans.sort_unstable();
    for (one, next) in spans.iter().zip(spans.iter().skip(1)) {
        if one.0 == next.0 && one.1.saturating_add(one.2) > next.1 {
            return Err(unproven(None, "byte written twice", side, next.1));
        }
    }
    Ok(())
}

fn of<T>(side: Side, local: T, remote: T) -> T {
    match side {
        Side::Local => local,
        Side::Remote => remote,
    }
}

fn other(side: Side) -> Side {
    of(side, Side::Remote, Side::Local)
}

fn unproven(layer: Option<&str>, problem: &str, side: Side, address: u64) -> Error {
    Error::Unproven { layer: layer.map(str::to_owned), problem: problem.to_owned(), side, address }
}

/// Every run into page `page` (of a period) of `group`, sorted by destination.
fn arrows(plans: &[Plan], side: Side, group: usize, page: u64) -> Result<Vec<Arrow>> {
    let mut arrows = Vec::new();
    let mut runs: Vec<Run> = Vec::new();
    for (index, plan) in plans.iter().enumerate() {
        for lane in plan.lanes() {
            let Some(pair) = plan.pairs().get(lane.pair) else { continue };
            let Some(cell) = pair.period.cells.get(lane.cell) else { continue };
            if of(side, pair.local, pair.remote) != group {
                continue;
            }
            let period = of(side, pair.period.local_pages, pair.period.remote_pages);
            if rem(page, period, "page of a period")? != of(side, cell.local_page, cell.remote_page) {
                continue;
            }
            let turn = div(page, period, "page of a period")?;
            let from_pages = of(other(side), pair.period.local_pages, pair.period.remote_pages);
            let from_page = of(other(side), cell.local_page, cell.remote_page);
            let from_page = add(mul(turn, from_pages, "page of a period")?, from_page, "page of a period")?;
            inside(plan, lane)?;
            runs.clear();
            for copy in lane.copies.iter() {
                copy.expand(&mut runs)?;
            }
            for run in &runs {
                let local = add(lane.local.address, run.local, "run address")?;
                let remote = add(lane.remote.address, run.remote, "run address")?;
                let (to, from) = (of(side, local, remote), of(other(side), local, remote));
                arrows.push(Arrow { to, from, len: run.len, plan: index, from_page });
            }
        }
    }
    arrows.sort_unstable();
    Ok(arrows)
}

/// Every page of the lane lies inside its region.
fn inside(plan: &Plan, lane: &crate::plan::lane::Lane) -> Result<()> {
    let mut runs = Vec::new();
    for copy in lane.copies.iter() {
        copy.expand(&mut runs)?;
    }
    for (side, track) in [(Side::Local, lane.local), (Side::Remote, lane.remote)] {
        let region = plan.side(side).regions().get(track.region).ok_or_else(|| Error::overflow("region index"))?;
        let limit = add(region.base(), region.bytes(), "end of a region")?;
        for run in &runs {
            let last = mul(sub(track.pages, 1, "last page")?, track.stride, "last page")?;
            let start = add(track.address, of(side, run.local, run.remote), "run address")?;
            if start < region.base() || add(add(start, last, "run address")?, run.len, "run address")? > limit {
                return Err(unproven(None, "run outside its region", side, start));
            }
        }
    }
    Ok(())
}

struct PageCheck<'a> {
    plans: &'a [Plan],
    side: Side,
    rank: &'a RankLayout,
    group: usize,
    page: u64,
    /// Whether every element must be written; else only what is written is checked.
    whole: bool,
    arrows: Vec<Arrow>,
}

/// Where an element is, in terms that both sides share: members, states and content.
struct Element<'a> {
    component: &'a Component,
    held: &'a Held,
    index: Vec<(&'a str, u64)>,
}

impl PageCheck<'_> {
    fn run(&self, layers: &[&Layer], kind: GroupKind) -> Result<()> {
        for (one, next) in self.arrows.iter().zip(self.arrows.iter().skip(1)) {
            if one.to.saturating_add(one.len) > next.to {
                return Err(unproven(None, "byte written twice", self.side, next.to));
            }
        }
        let mut needed = 0;
        for layer in layers {
            for segment in layer.segments() {
                for component in segment.format().components() {
                    let Some(held) = layer.held(segment, component) else { continue };
                    needed = add(needed, self.component(layer, segment, component, &held, kind)?, "needed bytes")?;
                }
            }
        }
        let written = self.arrows.iter().try_fold(0, |sum, arrow| add(sum, arrow.len, "written bytes"))?;
        if written != needed {
            let address = self.arrows.first().map_or(0, |arrow| arrow.to);
            let problem = format!("{written} bytes written, {needed} needed, in page {} of a period", self.page);
            return Err(unproven(None, &problem, self.side, address));
        }
        Ok(())
    }

    /// Checks every element of a component; returns their bytes.
    fn component(
        &self,
        layer: &Layer,
        segment: &Segment,
        component: &Component,
        held: &Held,
        kind: GroupKind,
    ) -> Result<u64> {
        let region = self.rank.regions().get(segment.region()).ok_or_else(|| Error::overflow("region index"))?;
        let base = add(region.base(), segment.offset(), "segment address")?;
        let axes: Vec<(&str, u64)> =
            component.axes().map(|(axis, _)| (axis.as_ref(), component.extent(axis.as_ref()).unwrap_or(1))).collect();
        let mut element = Element { component, held, index: axes.iter().map(|(axis, _)| (*axis, 0)).collect() };
        let mut bytes = 0;
        loop {
            let address = add(base, component.offset(&element.index)?, "element address")?;
            if self.element(layer, &element, address, kind)? {
                bytes = add(bytes, component.dtype().bytes(), "needed bytes")?;
            }
            // The next index, the last axis fastest.
            let mut done = true;
            for (at, (_, extent)) in element.index.iter_mut().zip(&axes).rev() {
                at.1 = add(at.1, 1, "index")?;
                if at.1 < *extent {
                    done = false;
                    break;
                }
                at.1 = 0;
            }
            if done {
                return Ok(bytes);
            }
        }
    }

    /// Checks one element; `false` when no plan writes it and none has to.
    fn element(&self, layer: &Layer, element: &Element<'_>, address: u64, kind: GroupKind) -> Result<bool> {
        let fault = |problem: &str| unproven(Some(layer.name()), problem, self.side, address);
        let size = element.component.dtype().bytes();
        let mut at = address;
        let end = add(address, size, "element address")?;
        while at < end {
            let index = self.arrows.partition_point(|arrow| arrow.to <= at);
            let arrow = index.checked_sub(1).and_then(|index| self.arrows.get(index));
            let arrow = arrow.filter(|arrow| at < arrow.to.saturating_add(arrow.len));
            if arrow.is_none() && at == address && !self.whole {
                return Ok(false);
            }
            let arrow = arrow.ok_or_else(|| fault("byte never written"))?;
            let skip = sub(at, arrow.to, "element address")?;
            let plan = self.plans.get(arrow.plan).ok_or_else(|| fault("byte of no plan"))?;
            let (page, expected) = self.source(plan, layer, element, kind)?.ok_or_else(|| fault("source lacks it"))?;
            let expected = add(expected, sub(at, address, "element address")?, "source address")?;
            if page != arrow.from_page || add(arrow.from, skip, "source address")? != expected {
                return Err(fault("byte taken from the wrong place"));
            }
            at = end.min(add(arrow.to, arrow.len, "run end")?);
        }
        Ok(true)
    }

    /// The page of a period and the page-0 address where the source of `plan` has the element.
    fn source(&self, plan: &Plan, layer: &Layer, element: &Element<'_>, kind: GroupKind) -> Result<Option<(u64, u64)>> {
        let layout = plan.side(other(self.side));
        let Some(there) = layout.layer(layer.name()) else { return Ok(None) };
        let mut index = element.index.clone();
        let mut page = self.page;
        if kind == GroupKind::Tokens {
            let term = "state of an element";
            let Some(state) = index.iter().find(|(axis, _)| *axis == TOKEN_AXIS).map(|(_, at)| *at) else {
                return Ok(None);
            };
            let ours = Paging { states: self.rank.states_per_page(self.group), context: self.rank.position().cp };
            let theirs = Paging { states: there.states_per_page(), context: layout.position().cp };
            let global = global_state(ours, add(mul(self.page, ours.states, term)?, state, term)?)?;
            let Some(position) = local_position(theirs, global)? else { return Ok(None) };
            page = div(position, theirs.states, term)?;
            set(&mut index, TOKEN_AXIS, rem(position, theirs.states, term)?);
        }
        let member = match &element.held.axis {
            None => 0,
            Some(axis) => {
                let within = index.iter().find(|(name, _)| *name == axis.as_ref()).map_or(0, |(_, at)| *at);
                add(element.held.interval.start(), within, "member")?
            }
        };
        for segment in there.segments() {
            let Some(component) = segment.format().component(element.component.name().as_ref()) else { continue };
            let Some(held) = there.held(segment, component) else { continue };
            let Some(within) = member.checked_sub(held.interval.start()).filter(|at| *at < held.interval.len()) else {
                continue;
            };
            let mut index: Vec<(&str, u64)> =
                index.iter().copied().filter(|(axis, _)| component.extent(axis).is_some()).collect();
            for (axis, _) in component.axes() {
                if !index.iter().any(|(name, _)| *name == axis.as_ref()) {
                    index.push((axis.as_ref(), 0));
                }
            }
            if let Some(axis) = held.axis.as_ref().filter(|axis| component.extent(axis.as_ref()).is_some()) {
                set(&mut index, axis.as_ref(), within);
            }
            let region = layout.regions().get(segment.region()).ok_or_else(|| Error::overflow("region index"))?;
            let base = add(region.base(), segment.offset(), "segment address")?;
            return Ok(Some((page, add(base, component.offset(&index)?, "source address")?)));
        }
        Ok(None)
    }
}

fn set(index: &mut [(&str, u64)], axis: &str, value: u64) {
    for entry in index.iter_mut().filter(|(name, _)| *name == axis) {
        entry.1 = value;
    }
}

/// The global state at a local position, by the dealing rule itself.
fn global_state(paging: Paging, position: u64) -> Result<u64> {
    let (place, interleave) = (paging.context.place(), paging.context.interleave());
    let term = "global state";
    let turn = add(mul(div(position, interleave, term)?, place.size(), term)?, place.rank(), term)?;
    add(mul(turn, interleave, term)?, rem(position, interleave, term)?, term)
}

/// The local position of a global state, if this rank holds it.
fn local_position(paging: Paging, state: u64) -> Result<Option<u64>> {
    let (place, interleave) = (paging.context.place(), paging.context.interleave());
    let term = "local position";
    let deal = div(state, interleave, term)?;
    if rem(deal, place.size(), term)? != place.rank() {
        return Ok(None);
    }
    let round = div(deal, place.size(), term)?;
    Ok(Some(add(mul(round, interleave, term)?, rem(state, interleave, term)?, term)?))
}

/// How many elements [`plans`] would look at, so that a caller can tell whether it is worth the time.
///
/// # Errors
/// [`Error::Overflow`] when the count does not fit.
pub fn elements(plan: &Plan) -> Result<u64> {
    let rank = plan.side(plan.direction().destination());
    let mut count = 0;
    for layer in rank.layers() {
        for component in layer.segments().iter().flat_map(|segment| segment.format().components()) {
            let mut elements = 1;
            for (axis, _) in component.axes() {
                elements = mul(elements, component.extent(axis.as_ref()).unwrap_or(1), "elements")?;
            }
            count = add(count, elements, "elements")?;
        }
    }
    mul(count, wide(plan.pairs().len()).max(1), "elements")
}

#[cfg(test)]
mod tests;
