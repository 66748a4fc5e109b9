//! Layers that are built alike are worked out once; what does not fit is refused by name.
#![allow(clippy::unwrap_used, clippy::arithmetic_side_effects, reason = "a test says so by panicking")]

use std::collections::BTreeMap;

use super::*;
use crate::format::{PageFormat, Types};
use crate::layout::{MemoryKind, Position, RankParts, Region, Segment, Shares, TokensPerState};
use crate::name::Name;
use crate::units::Interval;

const HND: &str = "h n k[d] v[d]";
const NHD: &str = "n h k[d] v[d]";

/// A rank whose layers have the given notations and groups, in a region each.
fn rank(layers: &[(&str, usize)], groups: &[Group]) -> RankLayout {
    let (mut regions, mut made) = (Vec::new(), Vec::new());
    for (number, (notation, group)) in layers.iter().enumerate() {
        let extents = [("h", 4), ("n", 2), ("d", 8)].into_iter().filter(|(axis, _)| notation.contains(axis));
        let extents: BTreeMap<String, u64> = extents.map(|(axis, extent)| (axis.to_owned(), extent)).collect();
        let format = PageFormat::new(notation, &extents, &Types::all("bf16".parse().unwrap())).unwrap();
        let (bytes, start) = (format.page_bytes() * 4, 1 << 20);
        regions.push(Region::new(start + wide(number) * 2 * bytes, bytes, 0, MemoryKind::Dram).unwrap());
        let pages = Segment::new(number, format, 0, 4, bytes / 4, Shares::default()).unwrap();
        let totals = Some((Name::new("h").unwrap(), 4));
        made.push(Layer::new(format!("layers.{number}"), vec![pages], *group, totals).unwrap());
    }
    RankLayout::new(RankParts {
        engine: "e".to_owned(),
        generation: 0,
        position: Position::ALONE,
        regions,
        groups: groups.to_vec(),
        layers: made,
    })
    .unwrap()
}

fn kinds(plan: &Plan) -> Vec<usize> {
    plan.layer_pairs().iter().map(|layer| layer.kind).collect()
}

#[test]
fn layers_are_of_one_kind_where_both_sides_and_the_groups_are_alike() {
    let groups = [Group::PLAIN, Group::PLAIN];
    let local = rank(&[(HND, 0), (HND, 0), (NHD, 0), (HND, 0), (HND, 1), (HND, 1), (NHD, 0)], &groups);
    let remote = rank(&[(NHD, 0), (NHD, 0), (NHD, 0), (HND, 0), (NHD, 1), (NHD, 1), (NHD, 0)], &groups);
    for direction in [Direction::Read, Direction::Write] {
        let plan = Plan::new(&local, &remote, direction).unwrap();
        assert_eq!(kinds(&plan), [0, 0, 1, 2, 3, 3, 1]);
        assert_eq!(plan.pairs().len(), 2);
        // What is worked out once is kept once.
        let same: Vec<bool> = plan
            .lanes()
            .windows(2)
            .map(|pair| match pair {
                [one, next] => Arc::ptr_eq(&one.copies, &next.copies),
                _ => false,
            })
            .collect();
        assert_eq!(same, [true, false, false, false, true, false]);
    }
}

#[test]
fn layers_of_which_different_heads_are_taken_are_of_different_kinds() {
    let rank = rank(&[(HND, 0); 5], &[Group::PLAIN]);
    let heads = |start, end| {
        let shares = Shares::new([(Name::new("h").unwrap(), Interval::new(start, end).unwrap())]);
        Arc::new(Take { shares, replicated: true })
    };
    let lower = heads(0, 2);
    let takes = [&lower, &lower, &heads(0, 2), &heads(2, 4), &heads(0, 2)];
    let takes: Vec<(Arc<str>, Arc<Take>)> =
        takes.iter().enumerate().map(|(at, take)| (format!("layers.{at}").into(), Arc::clone(take))).collect();
    let plan = Plan::of_takes(&rank, &rank, Direction::Read, &takes).unwrap();
    assert_eq!(kinds(&plan), [0, 0, 0, 1, 0]);
    assert_eq!(plan.summary().unwrap().bytes, 5 * 2 * 2 * 2 * 8 * 2);
}

#[test]
fn a_layer_that_the_source_lacks_is_missed_on_the_source_s_side() {
    let groups = [Group::PLAIN];
    let (two, one) = (rank(&[(HND, 0); 2], &groups), rank(&[(HND, 0)], &groups));
    let missing = |side| Some(Error::Missing { layer: "layers.1".to_owned(), side, missing: "the layer".to_owned() });
    assert_eq!(Plan::new(&two, &one, Direction::Read).err(), missing(Side::Remote));
    assert_eq!(Plan::new(&one, &two, Direction::Write).err(), missing(Side::Local));
    assert!(Plan::new(&one, &two, Direction::Read).is_ok() && Plan::new(&two, &one, Direction::Write).is_ok());
    let layers = |local, remote| Plan::of_layers(local, remote, Direction::Read, ["layers.1", "layers.0", "layers.1"]);
    assert_eq!(layers(&two, &one).err(), missing(Side::Remote));
    assert_eq!(layers(&one, &two).err(), missing(Side::Local));
    assert_eq!(layers(&two, &two).unwrap().summary().unwrap().layers, 2);
}

#[test]
fn groups_whose_blocks_stand_for_something_else_are_refused() {
    let plain = rank(&[(HND, 0)], &[Group::PLAIN]);
    let group = |kind, step| Group::new(kind, 1, step, None).unwrap();
    let double = rank(&[(HND, 0)], &[group(GroupKind::Tokens, TokensPerState::new(2, 1).unwrap())]);
    let state = rank(&[("h k[d] v[d]", 0)], &[group(GroupKind::State, TokensPerState::ONE)]);
    let fields = |other: &RankLayout| {
        let refused = Plan::new(&plain, other, Direction::Read).err();
        let of = |layout: &RankLayout| layout.groups().first().cloned().unwrap();
        let all = group_disagreements("layers.0", &of(&plain), &of(other));
        assert_eq!(refused.as_ref(), all.first());
        all.into_iter()
            .map(|error| match error {
                Error::Incompatible { field, local, remote, .. } => (field, local, remote),
                other => (other.to_string(), String::new(), String::new()),
            })
            .collect::<Vec<_>>()
    };
    assert!(fields(&plain).is_empty());
    assert_eq!(fields(&double), [("tokens per state".to_owned(), "1".to_owned(), "2".to_owned())]);
    assert_eq!(fields(&state), [("group kind".to_owned(), "tokens".to_owned(), "state".to_owned())]);
}
