//! Bytes of one rank that belong to two things.
//!
//! Engines alias on purpose: groups share one pool, since a block belongs to one group at a time, and two layers may be two views of
//! the same pages. What is left is reported: pages of one group that overlap by some bytes are written by two layers.

use std::collections::BTreeMap;

use crate::error::{Error, Side};
use crate::layout::{Layer, RankLayout, Segment};
use crate::units::{gcd, rem};

use super::report::{Report, Severity};

/// How many pairs of segments with unequal page strides are held against each other.
const MAX_PAIRS: usize = 1 << 16;

#[derive(Clone, Copy)]
struct Part<'a> {
    at: usize,
    layer: &'a Layer,
    segment: &'a Segment,
    start: u64,
    end: u64,
}

/// Reports segments of `layout` that overlap without meaning to.
pub(super) fn look(layout: &RankLayout, side: Side, report: &mut Report) {
    // Segments of different regions may overlap too, where one buffer is registered twice: addresses decide, by device.
    let mut families: BTreeMap<(u32, &str, u64), Vec<Part<'_>>> = BTreeMap::new();
    for (at, layer) in layout.layers().iter().enumerate() {
        for segment in layer.segments() {
            let Some(region) = layout.regions().get(segment.region()) else { continue };
            let Some(start) = region.base().checked_add(segment.offset()) else { continue };
            let Some(end) = segment.end().ok().and_then(|end| region.base().checked_add(end)) else { continue };
            let key = (region.device(), region.memory().name(), segment.page_stride());
            families.entry(key).or_default().push(Part { at, layer, segment, start, end });
        }
    }
    for family in families.values_mut() {
        same_stride(family, side, report);
    }
    // By where they begin, so that families that lie apart are never held against each other: a peer may send 131,072 strides.
    let mut spans: Vec<_> =
        families.iter().map(|((device, memory, _), parts)| (*device, *memory, span(parts), parts)).collect();
    spans.sort_by_key(|(device, memory, span, _)| (*device, *memory, *span));
    let mut budget = MAX_PAIRS;
    for (index, (device, memory, one, parts)) in spans.iter().enumerate() {
        let later = spans.iter().skip(index).skip(1);
        for (_, _, _, others) in later.take_while(|next| (next.0, next.1) == (*device, *memory) && next.2.0 < one.1) {
            other_stride(parts, others, &mut budget, side, report);
            if budget == 0 {
                return;
            }
        }
    }
}

/// Pages that step alike overlap where their places in the step do, and their stretches meet.
fn same_stride(family: &mut [Part<'_>], side: Side, report: &mut Report) {
    let Some(stride) = family.first().map(|part| part.segment.page_stride()) else { return };
    let place = |part: &Part<'_>| rem(part.start, stride, "page stride").unwrap_or(0);
    family.sort_by_key(|part| (place(part), part.at));
    let mut reach: Vec<Part<'_>> = Vec::new();
    for part in family.iter().copied() {
        // Those that end before this one begins cannot meet any later one either; a page may run around the end of the step.
        reach.retain(|known| place(known).saturating_add(known.segment.format().page_bytes()) > place(&part));
        if reach.len() > 64 {
            reach.remove(0);
        }
        for known in &reach {
            if known.start < part.end && part.start < known.end {
                judge(known, &part, place(known) == place(&part), side, report);
            }
        }
        reach.push(part);
    }
    let around = |part: &Part<'_>| place(part).saturating_add(part.segment.format().page_bytes()).checked_sub(stride);
    let wrapped: Vec<_> =
        family.iter().copied().filter(|part| around(part).is_some_and(|past| past > 0)).take(64).collect();
    for part in &wrapped {
        let past = around(part).unwrap_or(0);
        for first in family.iter().take_while(|first| place(first) < past).take(64) {
            if first.at != part.at && first.start < part.end && part.start < first.end {
                judge(part, first, false, side, report);
            }
        }
    }
}

/// The first and one past the last byte of any part.
fn span(parts: &[Part<'_>]) -> (u64, u64) {
    parts.iter().fold((u64::MAX, 0), |span, part| (span.0.min(part.start), span.1.max(part.end)))
}

/// Pages that step differently meet wherever their places modulo the common step do.
fn other_stride(one: &[Part<'_>], other: &[Part<'_>], budget: &mut usize, side: Side, report: &mut Report) {
    for part in one {
        for next in other {
            *budget = budget.saturating_sub(1);
            if *budget == 0 {
                return;
            }
            if part.start >= next.end || next.start >= part.end {
                continue;
            }
            let step = gcd(part.segment.page_stride(), next.segment.page_stride());
            let apart = rem(next.start.wrapping_sub(part.start), step, "common step").unwrap_or(0);
            let back = if next.start >= part.start {
                apart
            } else {
                let behind = rem(part.start.saturating_sub(next.start), step, "common step").unwrap_or(0);
                rem(step.saturating_sub(behind), step, "common step").unwrap_or(0)
            };
            let meets = part.segment.format().page_bytes() > back
                || next.segment.format().page_bytes() > step.saturating_sub(back);
            if meets {
                judge(part, next, part.start == next.start, side, report);
            }
        }
    }
}

fn judge(one: &Part<'_>, other: &Part<'_>, same_start: bool, side: Side, report: &mut Report) {
    let same_step = one.segment.page_stride() == other.segment.page_stride();
    let same_group = one.layer.group() == other.layer.group();
    let severity = match (one.at == other.at, same_group, same_step, same_start) {
        (true, ..) => Severity::Error,
        // Groups share a pool: a block is one group's at a time.
        (_, false, true, _) => return,
        // Two views of the same pages.
        (_, true, true, true) => return,
        (_, _, false, true) => Severity::Note,
        _ => Severity::Warning,
    };
    let found = format!(
        "{side} pages of `{}` from {:#x} by {} overlap those of layer {}, `{}` from {:#x} by {}",
        one.segment.format().notation(),
        one.start,
        one.segment.page_stride(),
        other.layer.name(),
        other.segment.format().notation(),
        other.start,
        other.segment.page_stride(),
    );
    let expected = if severity == Severity::Note {
        "equal page strides, for one block id to be the same bytes in both views"
    } else {
        "pages of their own, or one start and one stride where two views of one page are meant"
    };
    report.add(severity, Error::layout(Some(one.layer.name()), "memory", found, expected));
}
