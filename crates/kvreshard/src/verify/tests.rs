//! Plans with one fault each, which the proof has to find and to name.
#![allow(clippy::unwrap_used, clippy::panic, clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{descriptors, elements, plan, plans};
use crate::error::{Error, Side};
use crate::format::{PageFormat, Types};
use crate::layout::{Group, Layer, MemoryKind, Position, RankLayout, RankParts, Region, Segment, Shares};
use crate::lower::Descriptor;
use crate::name::Name;
use crate::plan::lane::Lane;
use crate::plan::{Direction, Plan};
use crate::shard::{ContextParallel, Place};

const PAGES: u64 = 4;

/// A rank of 4 heads in all, with two layers in regions of their own; pages of 16 tokens have a gap behind them, others fill theirs.
fn rank(notation: &str, tokens: u64, position: Position, base: u64) -> RankLayout {
    let heads = position.tp.share(4).unwrap().len();
    let extents: BTreeMap<String, u64> =
        [("h", heads), ("n", tokens), ("d", 4)].map(|(axis, extent)| (axis.to_owned(), extent)).into();
    let format = PageFormat::new(notation, &extents, &Types::all("bf16".parse().unwrap())).unwrap();
    let stride = format.page_bytes() + if tokens == 16 { 64 } else { 0 };
    let (mut regions, mut layers) = (Vec::new(), Vec::new());
    for layer in 0..2 {
        let start = base + u64::try_from(layer).unwrap() * 2 * PAGES * stride;
        regions.push(Region::new(start, PAGES * stride, 0, MemoryKind::Dram).unwrap());
        let segment = Segment::new(layer, format.clone(), 0, PAGES, stride, Shares::default()).unwrap();
        let totals = Some((Name::new("h").unwrap(), 4));
        layers.push(Layer::new(format!("layers.{layer}"), vec![segment], 0, totals).unwrap());
    }
    let groups = vec![Group::PLAIN];
    let engine = "engine".to_owned();
    RankLayout::new(RankParts { engine, generation: 0, position, regions, groups, layers }).unwrap()
}

fn tp(rank: u64, size: u64) -> Position {
    Position { tp: Place::new(rank, size).unwrap(), ..Position::ALONE }
}

fn cp(rank: u64, size: u64, interleave: u64) -> Position {
    Position { cp: ContextParallel::new(Place::new(rank, size).unwrap(), interleave).unwrap(), ..Position::ALONE }
}

/// Both directions of what one rank has for another of another format, page size and parallel size.
fn sound() -> Vec<Plan> {
    let pairs = [
        (rank("k[n h d] v[n h d]", 16, tp(0, 1), 1 << 20), rank("h n k[d] v[d]", 16, tp(0, 1), 2 << 20)),
        (rank("k[n h d] v[n h d]", 24, tp(0, 1), 1 << 20), rank("h n k[d] v[d]", 16, tp(1, 2), 2 << 20)),
        (rank("n h k[d] v[d]", 16, cp(1, 2, 8), 1 << 20), rank("h n k[d] v[d]", 32, tp(0, 1), 2 << 20)),
    ];
    let mut all = Vec::new();
    for (source, target) in &pairs {
        all.push(Plan::new(target, source, Direction::Read).unwrap());
        all.push(Plan::new(source, target, Direction::Write).unwrap());
    }
    all
}

fn problem(found: Result<(), Error>) -> (String, Side) {
    match found {
        Err(Error::Unproven { problem, side, .. }) => (problem, side),
        other => panic!("{other:?}"),
    }
}

/// Every sound plan with `fault`, where `to` says which side is written: all are found, as one of `expected`.
fn found(expected: &[&str], fault: impl Fn(Side, &mut Vec<Lane>)) {
    for good in sound() {
        plan(&good).unwrap();
        let bad = good.broken(|lanes| fault(good.direction().destination(), lanes));
        let (text, side) = problem(plan(&bad));
        assert!(expected.iter().any(|one| text.contains(one)), "{text}, not one of {expected:?}");
        assert!(text.contains("outside") || side == good.direction().destination());
        assert!(plans(std::slice::from_ref(&bad)).is_err());
    }
}

fn written(to: Side, lane: &mut Lane) -> &mut u64 {
    if to == Side::Local { &mut lane.local.address } else { &mut lane.remote.address }
}

fn taken(to: Side, lane: &mut Lane) -> &mut u64 {
    if to == Side::Local { &mut lane.remote.address } else { &mut lane.local.address }
}

#[test]
fn bytes_from_elsewhere() {
    found(&["wrong place", "outside"], |to, lanes| *taken(to, &mut lanes[0]) += 2);
    found(&["wrong place", "outside"], |to, lanes| *taken(to, lanes.last_mut().unwrap()) += 32);
}

#[test]
fn bytes_written_elsewhere() {
    let all = ["wrong place", "written twice", "needed", "never written", "outside"];
    found(&all, |to, lanes| *written(to, &mut lanes[0]) += 1);
    found(&all, |to, lanes| *written(to, &mut lanes[0]) += 32);
}

#[test]
fn bytes_written_twice() {
    found(&["written twice"], |_, lanes| lanes.push(lanes[0].clone()));
}

#[test]
fn runs_outside_their_regions() {
    for way in [0, 1] {
        found(&["outside its region"], |_, lanes| {
            let lane = &mut lanes[0];
            let track = if way == 0 { &mut lane.local } else { &mut lane.remote };
            track.pages += 1;
        });
        found(&["outside its region"], |_, lanes| {
            let lane = &mut lanes[0];
            let track = if way == 0 { &mut lane.local } else { &mut lane.remote };
            track.address -= 1 << 15;
        });
    }
}

#[test]
fn a_run_that_is_too_long_or_too_short() {
    let all = ["wrong place", "written twice", "needed", "never written", "outside"];
    for by in [-1_i64, 1] {
        found(&all, |_, lanes| {
            let mut copies = lanes[0].copies.to_vec();
            copies[0].run = copies[0].run.checked_add_signed(by).unwrap();
            lanes[0].copies = Arc::from(copies);
        });
    }
}

#[test]
fn what_is_missing_is_missed_where_all_has_to_come() {
    for good in sound() {
        let bad = good.broken(|lanes| drop(lanes.pop()));
        plan(&bad).unwrap();
        assert!(plans(&[bad]).is_err(), "only some of it is a plan, but not all");
    }
    let halves: Vec<RankLayout> = (0..2).map(|one| rank("h n k[d] v[d]", 16, tp(one, 2), (1 + one) << 20)).collect();
    let target = rank("n h k[d] v[d]", 16, tp(0, 1), 4 << 20);
    let both: Vec<Plan> = halves.iter().map(|half| Plan::new(&target, half, Direction::Read).unwrap()).collect();
    plans(&both).unwrap();
    plans(&[]).unwrap();
    for half in &both {
        plan(half).unwrap();
        let (text, side) = problem(plans(std::slice::from_ref(half)));
        assert_eq!((text.as_str(), side), ("byte never written", Side::Local));
    }
    let twice = [both[0].clone(), both[1].clone(), both[0].clone()];
    assert_eq!(problem(plans(&twice)), ("byte written twice".to_owned(), Side::Local));
    // Two destinations, and two directions.
    let other = Plan::new(&halves[0], &target, Direction::Read).unwrap();
    let pushed = Plan::new(&target, &halves[0], Direction::Write).unwrap();
    for two in [[both[0].clone(), other], [both[0].clone(), pushed]] {
        assert!(matches!(plans(&two), Err(Error::Layout { .. })), "{:?}", plans(&two));
    }
}

#[test]
fn lists_that_no_planner_made() {
    let (local, remote) = (rank("h n k[d] v[d]", 16, tp(0, 1), 1 << 20), rank("h n k[d] v[d]", 16, tp(0, 1), 2 << 20));
    let (here, there) = (local.regions()[0], remote.regions()[0]);
    let one = |at: u64, from: u64, length: u64| Descriptor {
        local: at,
        local_device: 0,
        remote: from,
        remote_device: 0,
        length,
    };
    let whole = one(here.base(), there.base(), here.bytes());
    for direction in [Direction::Read, Direction::Write] {
        let to = direction.destination();
        let check = |list: &[Descriptor]| descriptors(&local, &remote, direction, list);
        check(&[]).unwrap();
        check(&[whole]).unwrap();
        check(&[one(here.base() + 64, there.base() + 64, 64), one(here.base(), there.base(), 64)]).unwrap();
        for (list, side) in [
            (one(here.base() - 1, there.base(), 64), Side::Local),
            (one(here.base() + 1, there.base(), here.bytes()), Side::Local),
            (one(here.base(), there.base() - 1, 64), Side::Remote),
            (one(here.base(), there.base() + 1, here.bytes()), Side::Remote),
        ] {
            assert_eq!(problem(check(&[list])), ("descriptor outside every region".to_owned(), side));
        }
        assert_eq!(problem(check(&[one(u64::MAX, there.base(), 2)])), ("descriptor wraps".to_owned(), Side::Local));
        assert_eq!(problem(check(&[one(here.base(), u64::MAX, 2)])), ("descriptor wraps".to_owned(), Side::Remote));
        let apart = one(here.base() + 4096, there.base() + 4096, 64);
        let same_target = match to {
            Side::Local => one(here.base() + 4096 + 63, there.base(), 64),
            Side::Remote => one(here.base(), there.base() + 4096 + 63, 64),
        };
        assert_eq!(problem(check(&[same_target, apart])), ("byte written twice".to_owned(), to));
        let same_source = match to {
            Side::Local => one(here.base(), there.base() + 4096, 64),
            Side::Remote => one(here.base() + 4096, there.base(), 64),
        };
        check(&[same_source, apart]).unwrap();
    }
}

#[test]
fn the_work_is_told_beforehand() {
    let all = sound();
    // Two layers, K and V, heads, tokens and channels of the destination's page.
    assert_eq!(elements(&all[0]).unwrap(), 2 * 2 * 4 * 16 * 4);
    assert_eq!(elements(&all[2]).unwrap(), 2 * 2 * 2 * 16 * 4);
}
