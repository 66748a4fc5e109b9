//! Layers are matched by name, wherever either side lists them.
#![allow(clippy::unwrap_used, clippy::panic, clippy::arithmetic_side_effects, reason = "a test says so by panicking")]

mod common;

use std::collections::BTreeSet;

use common::Rank;
use kvreshard::Interval;
use kvreshard::layout::{RankLayout, RankParts};
use kvreshard::lower::Pairing;
use kvreshard::plan::{Direction, Plan};
use kvreshard::request::{Blocks, Request};

fn ordered(rank: &RankLayout, order: &[usize]) -> RankLayout {
    let parts = rank.parts();
    let layers = order.iter().map(|at| parts.layers.get(*at).unwrap().clone()).collect();
    RankLayout::new(RankParts { layers, ..parts.clone() }).unwrap()
}

/// What moves: local and remote address, and bytes.
fn moved(local: &RankLayout, remote: &RankLayout, direction: Direction) -> BTreeSet<(u64, u64, u64)> {
    let plan = Plan::new(local, remote, direction).unwrap();
    let tokens = Interval::from_zero(8);
    let request = Request::new(tokens, vec![Blocks::new([3, 1], 0)], vec![Blocks::new([0, 2], 0)]);
    let prepared = plan.prepare().unwrap();
    let pairing = Pairing::new(&plan, &request).unwrap();
    let lists = (0..prepared.len()).flat_map(|list| pairing.lists(&prepared, list).unwrap());
    lists.map(|one| (one.local, one.remote, one.length)).collect()
}

#[test]
fn the_order_of_layers_on_either_side_changes_nothing() {
    let rank = |engine, notation| Rank { layers: 3, ..Rank::new(engine, (0, 1), notation, 2, &[("n", 4), ("d", 4)]) };
    let (local, remote) = (rank("d", "h n k[d] v[d]").build(), rank("p", "n h k[d] v[d]").build());
    for direction in [Direction::Read, Direction::Write] {
        let wanted = moved(&local, &remote, direction);
        assert_eq!(wanted.iter().map(|one| one.2).sum::<u64>(), 3 * 2 * 4 * 2 * 2 * 4 * 2);
        for order in [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            assert_eq!(moved(&local, &ordered(&remote, &order), direction), wanted, "{order:?}");
            assert_eq!(moved(&ordered(&local, &order), &remote, direction), wanted, "{order:?}");
        }
    }
}

#[test]
fn layers_that_only_the_source_has_are_left() {
    let rank = |engine, notation| Rank { layers: 3, ..Rank::new(engine, (0, 1), notation, 2, &[("n", 4), ("d", 4)]) };
    let (all, other) = (rank("d", "h n k[d] v[d]").build(), rank("p", "n h k[d] v[d]").build());
    let some = ordered(&other, &[2, 0]);
    for direction in [Direction::Read, Direction::Write] {
        let (local, remote) = if direction == Direction::Read { (&some, &all) } else { (&all, &some) };
        assert_eq!(Plan::new(local, remote, direction).unwrap().summary().unwrap().layers, 2);
        assert!(Plan::new(remote, local, direction).is_err(), "the destination wants a layer that is nowhere");
    }
}
