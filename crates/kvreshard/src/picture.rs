//! What a picture of a page or of a plan shows: pieces of pages with what they hold, and the runs between them.
//!
//! Data only. A page is cut where its content turns (another component, head, token, ...) and where a run begins or ends:
//!
//! ```text
//! local   | k h0 | k h1 | v h0 | v h1 |        pieces, each of one component
//!            |  \     \      \
//! remote  | k h0 | v h0 | k h1 | v h1 |        runs, each from pieces to pieces
//! ```

use crate::error::{Error, Result};
use crate::format::{Component, Digit, PageFormat};
use crate::layout::{Layer, RankLayout, Segment};
use crate::name::Name;
use crate::plan::lane::Track;
use crate::plan::{Plan, Run};
use crate::units::{Interval, add, div, mul, rem, sub, wide};

/// The most pieces, and the most runs, of one picture: more cannot be told apart.
pub const MAX_DRAWN: u64 = 16_384;

/// A component is cut finer while it has fewer pieces than this.
const FINE: u64 = 1024;

/// Pieces are not made shorter than this, unless the nest or a run does.
const SHORTEST: u64 = 16;

/// The indexes of one axis that a piece holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reach {
    /// The axis; `""` of loops without a name.
    pub axis: Name,
    /// The lowest index. Of a sharded axis, counted over all ranks.
    pub first: u64,
    /// The highest index.
    pub last: u64,
    /// How many there are; fewer than the interval has where the nest skips some.
    pub count: u64,
}

/// Contiguous bytes of one page, of one component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Index of the segment in its layer.
    pub segment: usize,
    /// Number of the page in the period.
    pub page: u64,
    /// First byte, counted from the start of the page.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// The component; `None` for bytes that nobody reads.
    pub component: Option<Name>,
    /// What it holds along each axis of the component.
    pub axes: Vec<Reach>,
    /// Index of the run that moves it.
    pub run: Option<usize>,
}

/// One contiguous run between a local and a remote page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arrow {
    /// Page, segment and byte offset in the page on the local side.
    pub local: (u64, usize, u64),
    /// Page, segment and byte offset in the page on the remote side.
    pub remote: (u64, usize, u64),
    /// Bytes.
    pub bytes: u64,
}

/// One layer of a plan, over one period of pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// The layer's name.
    pub layer: String,
    /// The local pages, piece by piece, in order of page, segment and offset.
    pub local: Vec<Piece>,
    /// The remote pages.
    pub remote: Vec<Piece>,
    /// The runs, in order of their place on the local side.
    pub runs: Vec<Arrow>,
}

impl PageFormat {
    /// One page, cut into pieces in the order of its bytes.
    ///
    /// # Errors
    /// [`Error::Limit`] when there are more than [`MAX_DRAWN`].
    pub fn pieces(&self) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        draw(self, &Frame { segment: 0, page: 0, held: &|_| None }, &[], &mut pieces)?;
        Ok(pieces)
    }
}

impl Plan {
    /// The picture of one layer: the named one, or the first.
    ///
    /// # Errors
    /// [`Error::Layout`] when a side has no such layer, [`Error::Limit`] when there are more than [`MAX_DRAWN`] pieces or runs.
    pub fn picture(&self, layer: Option<&str>) -> Result<Picture> {
        let name = layer.or_else(|| self.local().layers().first().map(Layer::name)).unwrap_or_default();
        let find = |side: &'_ RankLayout| {
            side.layer(name)
                .cloned()
                .ok_or_else(|| Error::layout(Some(name), "layer", "absent", "a layer of both sides"))
        };
        let (local, remote) = (find(self.local())?, find(self.remote())?);
        let mut runs = Vec::new();
        let mut pages = (1, 1);
        for lane in self.lanes() {
            let Some(pair) = self.pairs().get(lane.pair) else { continue };
            let Some(cell) = pair.period.cells.get(lane.cell) else { continue };
            if (pair.local, pair.remote) != (local.group(), remote.group()) {
                continue;
            }
            pages = (pair.period.local_pages, pair.period.remote_pages);
            let here = Pages { layer: &local, layout: self.local(), track: lane.local, page: cell.local_page };
            let there = Pages { layer: &remote, layout: self.remote(), track: lane.remote, page: cell.remote_page };
            let (spans, other_spans) = (here.spans()?, there.spans()?);
            let mut expanded = Vec::new();
            for copy in lane.copies.iter() {
                let reach = Interval::new(
                    add(lane.local.address, copy.local, "run address")?,
                    add(lane.local.address, copy.local_end()?, "run address")?,
                );
                if !reach.is_some_and(|reach| spans.iter().any(|(_, span)| span.intersect(reach).is_some())) {
                    continue;
                }
                within("runs of a picture", add(copy.runs()?, wide(runs.len()), "runs of a picture")?)?;
                copy.expand(&mut expanded)?;
            }
            for run in expanded {
                clip(run, (&here, &spans), (&there, &other_spans), &mut runs)?;
            }
        }
        runs.sort_unstable();
        runs.dedup();
        within("runs of a picture", wide(runs.len()))?;
        let strip = |layer: &Layer, pages, end: fn(&Arrow) -> (u64, usize, u64)| strip(layer, pages, &runs, end);
        Ok(Picture {
            layer: name.to_owned(),
            local: strip(&local, pages.0, |run| run.local)?,
            remote: strip(&remote, pages.1, |run| run.remote)?,
            runs,
        })
    }
}

fn within(what: &str, count: u64) -> Result<()> {
    if count > MAX_DRAWN {
        return Err(Error::limit(format!("{what} (draw fewer heads, states or channels)"), count, MAX_DRAWN));
    }
    Ok(())
}

/// The pages of a layer that one track of a lane runs over.
struct Pages<'a> {
    layer: &'a Layer,
    layout: &'a RankLayout,
    track: Track,
    page: u64,
}

impl Pages<'_> {
    /// Each segment in the track's region, with the addresses of its page 0.
    fn spans(&self) -> Result<Vec<(usize, Interval)>> {
        let mut spans = Vec::new();
        for (index, segment) in self.layer.segments().iter().enumerate() {
            if segment.region() != self.track.region {
                continue;
            }
            let start = Track::new(self.layout, segment)?.address;
            let end = add(start, segment.format().page_bytes(), "end of a page")?;
            spans.extend(Interval::new(start, end).map(|span| (index, span)));
        }
        Ok(spans)
    }
}

/// The parts of `run` inside the layer's pages on both sides: a run may cross segments and layers.
fn clip(
    run: Run,
    (here, spans): (&Pages<'_>, &[(usize, Interval)]),
    (there, other_spans): (&Pages<'_>, &[(usize, Interval)]),
    runs: &mut Vec<Arrow>,
) -> Result<()> {
    let term = "run address";
    let (local, remote) = (add(here.track.address, run.local, term)?, add(there.track.address, run.remote, term)?);
    let reach = |start: u64| Ok(Interval::new(start, add(start, run.len, term)?));
    for &(segment, span) in spans {
        let Some(part) = reach(local)?.and_then(|reach| reach.intersect(span)) else { continue };
        for &(other, other_span) in other_spans {
            let from = add(remote, sub(part.start(), local, term)?, term)?;
            let Some(wanted) = Interval::new(from, add(from, part.len(), term)?) else { continue };
            let Some(common) = wanted.intersect(other_span) else { continue };
            let at = add(sub(part.start(), span.start(), term)?, sub(common.start(), from, term)?, term)?;
            runs.push(Arrow {
                local: (here.page, segment, at),
                remote: (there.page, other, sub(common.start(), other_span.start(), term)?),
                bytes: common.len(),
            });
        }
    }
    Ok(())
}

/// Every page of one side of a period.
fn strip(layer: &Layer, pages: u64, runs: &[Arrow], end: fn(&Arrow) -> (u64, usize, u64)) -> Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    for page in 0..pages {
        for (index, segment) in layer.segments().iter().enumerate() {
            let mut cuts: Vec<(u64, u64, usize)> = runs
                .iter()
                .enumerate()
                .filter(|(_, run)| (end(run).0, end(run).1) == (page, index))
                .map(|(number, run)| (end(run).2, end(run).2.saturating_add(run.bytes), number))
                .collect();
            cuts.sort_unstable();
            let held = |component: &Component| held(layer, segment, component);
            draw(segment.format(), &Frame { segment: index, page, held: &held }, &cuts, &mut pieces)?;
        }
    }
    Ok(pieces)
}

/// The sharded axis of a component and the first member that the segment holds.
fn held(layer: &Layer, segment: &Segment, component: &Component) -> Option<(Name, u64)> {
    let held = layer.held(segment, component)?;
    held.axis.map(|axis| (axis, held.interval.start()))
}

/// Which page is drawn, and how its indexes count over all ranks.
struct Frame<'a> {
    segment: usize,
    page: u64,
    held: &'a dyn Fn(&Component) -> Option<(Name, u64)>,
}

/// A dense stretch of one component: some digits fixed, the lower ones running.
struct Block<'a> {
    offset: u64,
    bytes: u64,
    component: &'a Component,
    fixed: Vec<(&'a Digit, u64)>,
    running: Vec<&'a Digit>,
}

/// Appends the pieces of one page, in the order of its bytes: its blocks cut where runs `(start, end, number)` begin and end.
fn draw(format: &PageFormat, frame: &Frame<'_>, runs: &[(u64, u64, usize)], pieces: &mut Vec<Piece>) -> Result<()> {
    let mut blocks = Vec::new();
    for component in format.components() {
        cut(component, &mut blocks)?;
    }
    blocks.sort_by_key(|block| block.offset);
    let unread = |offset: u64, end: u64| Piece {
        segment: frame.segment,
        page: frame.page,
        offset,
        bytes: end.saturating_sub(offset),
        component: None,
        axes: Vec::new(),
        run: None,
    };
    let mut at = 0;
    let mut next = 0_usize;
    for block in &blocks {
        if block.offset > at {
            pieces.push(unread(at, block.offset));
        }
        at = block.offset;
        let end = add(block.offset, block.bytes, "end of a piece")?;
        while at < end {
            while runs.get(next).is_some_and(|run| run.1 <= at) {
                next = next.saturating_add(1);
            }
            let run = runs.get(next);
            let moved = run.filter(|run| run.0 <= at);
            let stop = end.min(run.map_or(end, |run| if run.0 <= at { run.1 } else { run.0 }));
            pieces.push(Piece {
                component: Some(block.component.name().clone()),
                axes: reaches(block, at, stop, (frame.held)(block.component))?,
                run: moved.map(|run| run.2),
                ..unread(at, stop)
            });
            at = stop;
        }
        within("pieces of a picture", wide(pieces.len()))?;
    }
    if at < format.page_bytes() {
        pieces.push(unread(at, format.page_bytes()));
    }
    Ok(())
}

/// Cuts a component into dense blocks, and those further at their outer loops while they are few and long.
fn cut<'a>(component: &'a Component, blocks: &mut Vec<Block<'a>>) -> Result<()> {
    let term = "bytes of a piece";
    let mut digits: Vec<&Digit> = component.digits().iter().collect();
    digits.sort_by_key(|digit| digit.stride);
    let mut dense = component.dtype().bytes();
    let mut lower = 0_usize;
    while let Some(digit) = digits.get(lower).filter(|digit| digit.stride == dense) {
        dense = mul(dense, digit.extent, term)?;
        lower = lower.saturating_add(1);
    }
    let outer = digits.get(lower..).unwrap_or_default();
    let mut count = outer.iter().try_fold(1, |count, digit| mul(count, digit.extent, "pieces of a picture"))?;
    while let Some(digit) = lower.checked_sub(1).and_then(|index| digits.get(index)) {
        let (finer, more) = (digit.stride, mul(count, digit.extent, "pieces of a picture")?);
        if more > FINE || finer < SHORTEST {
            break;
        }
        (dense, count) = (finer, more);
        lower = lower.saturating_sub(1);
    }
    within("pieces of a picture", count)?;
    let (running, fixed) = digits.split_at(lower);
    for number in 0..count {
        let mut block = Block {
            offset: component.base(),
            bytes: dense,
            component,
            fixed: Vec::with_capacity(fixed.len()),
            running: running.to_vec(),
        };
        let mut rest = number;
        for digit in fixed {
            let value = rem(rest, digit.extent, term)?;
            rest = div(rest, digit.extent, term)?;
            block.offset = add(block.offset, mul(value, digit.stride, term)?, term)?;
            block.fixed.push((digit, value));
        }
        blocks.push(block);
    }
    Ok(())
}

/// What bytes `[from, to)` of a block hold along each axis.
fn reaches(block: &Block<'_>, from: u64, to: u64, held: Option<(Name, u64)>) -> Result<Vec<Reach>> {
    let term = "index of an element";
    let size = block.component.dtype().bytes();
    let element = |at: u64| div(sub(at, block.offset, term)?, size, term);
    let (first, last) = (element(from)?, element(to.saturating_sub(1).max(from))?);
    // The lowest and the highest value of every digit. Under a digit that runs, all lower ones run through.
    let mut values: Vec<(&Digit, u64, u64)> =
        block.fixed.iter().map(|(digit, value)| (*digit, *value, *value)).collect();
    let mut whole = false;
    for digit in block.running.iter().rev() {
        let step = div(digit.stride, size, term)?;
        let value = |at: u64| rem(div(at, step, term)?, digit.extent, term);
        let (low, high) = if whole { (0, digit.extent.saturating_sub(1)) } else { (value(first)?, value(last)?) };
        whole = whole || low != high;
        values.push((digit, low, high));
    }
    let mut reaches = Vec::new();
    for (axis, _) in block.component.axes() {
        let mut reach = Reach { axis: axis.clone(), first: 0, last: 0, count: 1 };
        for (digit, low, high) in values.iter().filter(|(digit, _, _)| digit.axis == *axis) {
            reach.first = add(reach.first, mul(*low, digit.scale, term)?, term)?;
            reach.last = add(reach.last, mul(*high, digit.scale, term)?, term)?;
            reach.count = mul(reach.count, add(sub(*high, *low, term)?, 1, term)?, term)?;
        }
        if let Some((_, start)) = held.as_ref().filter(|(sharded, _)| sharded == axis) {
            (reach.first, reach.last) = (add(reach.first, *start, term)?, add(reach.last, *start, term)?);
        }
        reaches.push(reach);
    }
    if let Some((axis, start)) = held.filter(|(axis, _)| block.component.extent(axis.as_ref()).is_none()) {
        reaches.push(Reach { axis, first: start, last: start, count: 1 });
    }
    Ok(reaches)
}
