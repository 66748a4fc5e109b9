//! Where runs need not be sorted: lane by lane, page by page, run by run they come in the order of their local addresses.
#![allow(clippy::unwrap_used, clippy::arithmetic_side_effects, reason = "a test says so by panicking")]

use std::collections::BTreeMap;

use super::*;
use crate::format::{PageFormat, Types};
use crate::layout::{Group, Layer, MemoryKind, Position, RankLayout, RankParts, Region, Segment, Shares};
use crate::plan::{Direction, Plan};
use crate::request::{Blocks, Request};
use crate::units::Interval;

/// A stretch of pages of 16 bytes (8 of each component): the notation, where in its region it begins, and how many pages.
type Stretch = (&'static str, u64, u64);

const BOTH: &str = "n k[d] v[d]";
const APART: &str = "k[n d] v[n d]";

/// Layers of the given stretches in one region, pages `stride` bytes apart.
fn rank(layers: &[&[Stretch]], stride: u64) -> RankLayout {
    let extents = BTreeMap::from([("n".to_owned(), 2), ("d".to_owned(), 4)]);
    let layers = layers.iter().enumerate().map(|(number, stretches)| {
        let segments = stretches.iter().map(|&(notation, offset, pages)| {
            let format = PageFormat::new(notation, &extents, &Types::all("u8".parse().unwrap())).unwrap();
            Segment::new(0, format, offset, pages, stride, Shares::default()).unwrap()
        });
        Layer::new(format!("layers.{number}"), segments.collect(), 0, None).unwrap()
    });
    RankLayout::new(RankParts {
        engine: "e".to_owned(),
        generation: 0,
        position: Position::ALONE,
        regions: vec![Region::new(1 << 20, 1 << 16, 0, MemoryKind::Dram).unwrap()],
        groups: vec![Group::PLAIN],
        layers: layers.collect(),
    })
    .unwrap()
}

/// For each lane in the order found, where it begins and how many runs a page has; none where runs must be sorted.
fn lanes(local: &RankLayout, remote: &RankLayout, pages: &[i32]) -> Option<Vec<(u64, usize)>> {
    let plan = Plan::new(local, remote, Direction::Read).unwrap();
    let tokens = Interval::from_zero(wide(pages.len()) * 2);
    let blocks = || vec![Blocks::new(pages, 0)];
    let pairing = Pairing::new(&plan, &Request::new(tokens, blocks(), blocks())).unwrap();
    let prepared = plan.prepare().unwrap();
    assert_eq!(prepared.len(), 1);
    let found = pairing.lanes_in_order(prepared.first().unwrap())?;
    Some(found.iter().map(|strands| (strands.first().unwrap().local.address - (1 << 20), strands.len())).collect())
}

#[test]
fn lanes_that_lie_one_behind_the_other_come_by_their_addresses() {
    let other = rank(&[&[(APART, 0, 4)], &[(APART, 1024, 4)]], 16);
    // Whatever order the layers have; up to the last byte of the page, of which each component is a run for each token.
    let rank = rank(&[&[(BOTH, 512, 4)], &[(BOTH, 0, 4)]], 16);
    for pages in [&[0][..], &[0, 1], &[3, 1, 2]] {
        assert_eq!(lanes(&rank, &other, pages), Some(vec![(0, 4), (512, 4)]), "{pages:?}");
    }
}

#[test]
fn lanes_that_interleave_are_sorted() {
    let other = rank(&[&[(BOTH, 0, 4)], &[(BOTH, 1024, 4)]], 16);
    // Page 0 of the one touches page 0 of the other, whose pages lie between those of the first.
    let rank = rank(&[&[(BOTH, 0, 4)], &[(BOTH, 16, 3)]], 32);
    assert_eq!(lanes(&rank, &other, &[0]), Some(vec![(0, 1), (16, 1)]));
    assert_eq!(lanes(&rank, &other, &[0, 1]), None);
}

#[test]
fn pages_that_reach_beyond_the_next_are_sorted() {
    // K and V are the halves of a row, so that they and W, a plane far behind, are one lane: page 1 of K comes before page 0 of W.
    let planes = rank(&[&[("k[n d]", 0, 4), ("v[n d]", 8, 4), ("w[n d]", 256, 4)]], 16);
    let other = rank(&[&[("v[n d] k[n d] w[n d]", 0, 4)]], 24);
    assert_eq!(lanes(&planes, &other, &[2]), Some(vec![(0, 3)]));
    assert_eq!(lanes(&planes, &other, &[2, 3]), None);
    // The halves alone end where the next page begins.
    let row = rank(&[&[("k[n d]", 0, 4), ("v[n d]", 8, 4)]], 16);
    let other = rank(&[&[("v[n d] k[n d]", 0, 4)]], 16);
    assert_eq!(lanes(&row, &other, &[2, 3]), Some(vec![(0, 2)]));
}
