//! Parts of transfers, and engines that share layers, heads and tokens in other ways than by heads alone.
#![allow(clippy::unwrap_used, clippy::arithmetic_side_effects, clippy::panic, clippy::indexing_slicing)]

mod common;

use std::collections::BTreeMap;

use common::{Rank, format, name};
use kvreshard::engine::Engine;
use kvreshard::layout::{
    Group, GroupKind, Layer, MemoryKind, Position, RankLayout, RankParts, Region, Segment, Shares, TokensPerState,
};
use kvreshard::lower::Pairing;
use kvreshard::plan::{Direction, Plan};
use kvreshard::request::{Blocks, Request};
use kvreshard::route::Route;
use kvreshard::shard::{ContextParallel, Place};
use kvreshard::{Error, Interval, verify};

const ROW: (&str, &[(&str, u64)]) = ("c[n r]", &[("n", 4), ("r", 8)]);

fn place(rank: u64, size: u64) -> Place {
    Place::new(rank, size).unwrap()
}

/// A rank of latent rows and one Mamba layer, tensor and context parallel alike.
fn hybrid(engine: &str, rank: u64, size: u64) -> RankLayout {
    let share = place(rank, size).share(4).unwrap();
    let pages =
        [format(ROW.0, ROW.1, "bf16"), format("x[cx t] ssm[cx s]", &[("cx", share.len()), ("t", 3), ("s", 5)], "f32")];
    let mut regions = Vec::new();
    let mut layers = Vec::new();
    for (index, page) in pages.into_iter().enumerate() {
        let bytes = page.page_bytes() * 8;
        let base = (1 << 30) * (rank + 1) + (1 << 20) * u64::try_from(index).unwrap();
        regions.push(Region::new(base, bytes, 0, MemoryKind::Dram).unwrap());
        let stride = page.page_bytes();
        let segment = Segment::new(index, page, 0, 8, stride, Shares::default()).unwrap();
        let totals = (index == 1).then(|| (name("cx"), 4));
        layers.push(Layer::new(format!("layers.{index}"), vec![segment], index, totals).unwrap());
    }
    RankLayout::new(RankParts {
        engine: engine.to_owned(),
        generation: 0,
        position: Position {
            tp: place(rank, size),
            pp: Place::ALONE,
            cp: ContextParallel::new(place(rank, size), 2).unwrap(),
        },
        regions,
        groups: vec![Group::PLAIN, Group::new(GroupKind::State, 1, TokensPerState::ONE, None).unwrap()],
        layers,
    })
    .unwrap()
}

/// Context-parallel ranks deal tokens; the states of a hybrid's other layers are whole on every rank that holds them, so each
/// head of a state comes once, not once for every context-parallel rank.
#[test]
fn a_state_comes_once_whatever_the_context_parallelism() {
    let engine = |name, size| Engine::new((0..size).map(|rank| hybrid(name, rank, size)).collect()).unwrap();
    for (p, d) in [(2, 1), (1, 2), (2, 4), (4, 2), (2, 2)] {
        let (from, to) = (engine("p", p), engine("d", d));
        let route = Route::new(&to, &from, Direction::Read).unwrap();
        for (rank, layout) in to.ranks().iter().enumerate() {
            let mut channels = BTreeMap::new();
            for edge in route.edges().iter().filter(|edge| edge.local() == rank) {
                for (_, take) in edge.takes().iter().filter(|(layer, _)| &**layer == "layers.1") {
                    for (_, share) in take.shares.iter() {
                        (share.start()..share.end()).for_each(|channel| *channels.entry(channel).or_insert(0) += 1);
                    }
                }
                verify::plan(&edge.plan(layout, &from.ranks()[edge.remote()]).unwrap()).unwrap();
            }
            let held = layout.position().tp.share(4).unwrap();
            assert_eq!(channels, (held.start()..held.end()).map(|channel| (channel, 1)).collect(), "TP {p} to {d}");
        }
    }
}

#[test]
fn states_of_several_tokens_are_not_dealt() {
    let rank = hybrid("p", 0, 2);
    let mut parts = rank.parts().clone();
    parts.groups[0] = Group::new(GroupKind::Tokens, 1, TokensPerState::new(4, 1).unwrap(), None).unwrap();
    let error = RankLayout::new(parts.clone()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "layer layers.0: tokens_per_state: found 4, expected 1 where 2 context-parallel ranks share the tokens: they deal tokens, not states"
    );
    parts.position.cp = ContextParallel::WHOLE;
    RankLayout::new(parts).unwrap();
}

/// Head planes: one segment a head and for K and V, formats without the axis.
fn planes(rank: u64, size: u64) -> RankLayout {
    let page = |component: &str| format(&format!("{component}[n d]"), &[("n", 4), ("d", 8)], "bf16");
    let held = place(rank, size).share(4).unwrap();
    let bytes = page("k").page_bytes() * 8;
    let mut segments = Vec::new();
    for head in held.start()..held.end() {
        for component in ["k", "v"] {
            let at = u64::try_from(segments.len()).unwrap() * bytes;
            let one = Shares::new([(name("h"), Interval::new(head, head + 1).unwrap())]);
            segments.push(Segment::new(0, page(component), at, 8, bytes / 8, one).unwrap());
        }
    }
    let all = bytes * u64::try_from(segments.len()).unwrap();
    RankLayout::new(RankParts {
        engine: "planes".to_owned(),
        generation: 0,
        position: common::position((rank, size)),
        regions: vec![Region::new(1 << 30, all, 0, MemoryKind::Dram).unwrap()],
        groups: vec![Group::PLAIN],
        layers: vec![Layer::new("layers.0", segments, 0, [(name("h"), 4)]).unwrap()],
    })
    .unwrap()
}

#[test]
fn an_engine_of_planes_is_made_by_the_rule() {
    let joint = |rank, size| {
        Rank { layers: 1, ..Rank::new("joint", (rank, size), "n h k[d] v[d]", 4, &[("n", 4), ("d", 8)]) }.build()
    };
    for (p, d) in [(1, 2), (2, 1), (2, 4), (4, 2)] {
        let listed = Engine::new((0..p).map(|rank| planes(rank, p)).collect()).unwrap();
        let ruled = Engine::uniform(&planes(p - 1, p)).unwrap();
        let to = Engine::new((0..d).map(|rank| joint(rank, d)).collect()).unwrap();
        let (one, other) = (Route::new(&to, &listed, Direction::Read), Route::new(&to, &ruled, Direction::Read));
        assert_eq!(one.unwrap(), other.unwrap(), "TP {p} to {d}");
    }
}

/// With one head two notations mean the same bytes; with two heads they do not.
#[test]
fn layers_alike_here_need_not_be_alike_at_another_rank() {
    let notations = ["h n k[d]", "n h k[d]", "n h k[d]"];
    let mut parts =
        Rank { layers: 3, ..Rank::new("p", (0, 2), notations[0], 3, &[("n", 4), ("d", 8)]) }.build().parts().clone();
    for (layer, notation) in parts.layers.iter_mut().zip(notations) {
        let segment = &layer.segments()[0];
        let page = format(notation, &[("h", 1), ("n", 4), ("d", 8)], "bf16");
        assert_eq!(&page, segment.format());
        let segment = Segment::new(segment.region(), page, 0, 8, segment.page_stride(), Shares::default()).unwrap();
        *layer = Layer::new(layer.name(), vec![segment], 0, [(name("h"), 3)]).unwrap();
    }
    let engine = Engine::uniform(&RankLayout::new(parts).unwrap()).unwrap();
    for (layer, notation) in engine.ranks()[1].layers().iter().zip(notations) {
        let page = format(notation, &[("h", 2), ("n", 4), ("d", 8)], "bf16");
        assert_eq!(layer.segments()[0].format(), &page, "{notation}");
    }
}

#[test]
fn blocks_count_the_tokens_of_all_context_parallel_ranks() {
    let rank = hybrid("p", 0, 2);
    assert_eq!(rank.tokens_per_block(0).unwrap(), Some(8), "pages of 4 tokens on each of 2 ranks");
    assert_eq!(rank.tokens_per_block(1).unwrap(), None, "states");
    assert_eq!(rank.tokens_per_block(2).unwrap(), None, "no such group");
    let group = |pages, tokens, states| {
        let mut parts = rank.parts().clone();
        parts.position.cp = ContextParallel::WHOLE;
        let scale = TokensPerState::new(tokens, states).unwrap();
        parts.groups[0] = Group::new(GroupKind::Tokens, pages, scale, None).unwrap();
        RankLayout::new(parts).unwrap().tokens_per_block(0)
    };
    assert_eq!(group(3, 4, 1).unwrap(), Some(48));
    assert_eq!(group(1, 1, 4).unwrap(), Some(1));
    assert_eq!(group(2, 1, 8).unwrap(), Some(1));
    let error = group(1, 3, 8).unwrap_err();
    assert_eq!(error.to_string(), "tokens of a block: found 12/8 in group 0, expected a whole number");
}

/// What the planes of a rank that is not there look like, no rule says.
#[test]
fn planes_that_differ_by_head_have_no_rule() {
    let rank = planes(0, 2);
    let mut parts = rank.parts().clone();
    let mut segments = parts.layers[0].segments().to_vec();
    let other = format("k[d n]", &[("n", 4), ("d", 8)], "bf16");
    let second = &segments[2];
    segments[2] = Segment::new(0, other, second.offset(), 8, second.page_stride(), second.shares().clone()).unwrap();
    parts.layers = vec![Layer::new("layers.0", segments, 0, [(name("h"), 4)]).unwrap()];
    let Err(Error::Layout { field, .. }) = Engine::uniform(&RankLayout::new(parts).unwrap()) else {
        panic!("accepted")
    };
    assert_eq!(field, "component k");
}

fn pair(heads: u64) -> (RankLayout, RankLayout) {
    let side = |name, rank, size| Rank {
        layers: 3,
        ..Rank::new(name, (rank, size), "h n k[d] v[d]", heads, &[("n", 4), ("d", 8)])
    };
    (side("d", 0, 2).build(), side("p", 0, 1).build())
}

#[test]
fn some_layers_alone_are_planned_once_each() {
    let (local, remote) = pair(4);
    let all = Plan::new(&local, &remote, Direction::Read).unwrap().summary().unwrap();
    let some = Plan::of_layers(&local, &remote, Direction::Read, ["layers.2", "layers.0", "layers.2"]).unwrap();
    verify::plan(&some).unwrap();
    let some = some.summary().unwrap();
    assert_eq!((some.layers, some.bytes * 3), (2, all.bytes * 2));
    let none = Plan::of_layers(&local, &remote, Direction::Read, []).unwrap();
    assert!(none.is_empty());
    let error = Plan::of_layers(&local, &remote, Direction::Read, ["layers.9"]).unwrap_err();
    assert_eq!(error.to_string(), "layer layers.9: no rank of the local side holds the layer");
}

#[test]
fn an_edge_is_narrowed_to_the_layers_it_carries() {
    let (local, remote) = pair(4);
    let other = Rank { layers: 3, ..Rank::new("d", (1, 2), "h n k[d] v[d]", 4, &[("n", 4), ("d", 8)]) }.build();
    let to = Engine::new(vec![local.clone(), other]).unwrap();
    let from = Engine::new(vec![remote.clone()]).unwrap();
    let route = Route::new(&to, &from, Direction::Read).unwrap();
    let edge = &route.edges()[0];
    let some = edge.of_layers(["layers.1"]).unwrap();
    assert_eq!(some.takes(), &edge.takes()[1..2]);
    assert_eq!(some.plan(&local, &remote).unwrap().summary().unwrap().layers, 1);
    let error = edge.of_layers(["layers.1", "layers.7"]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "layer layers.7: no rank of the remote side holds the layer on the edge from local rank 0 to remote rank 0"
    );
}

fn request(tokens: (u64, u64), local: &[i32], remote: &[i32]) -> Request {
    let tokens = Interval::new(tokens.0, tokens.1).unwrap();
    Request::new(tokens, vec![Blocks::new(local, 0)], vec![Blocks::new(remote, 0)])
}

fn cleared(pairing: &Pairing) -> u64 {
    pairing.zero(MemoryKind::Dram).unwrap().iter().map(|row| row.length).sum()
}

#[test]
fn a_part_with_more_to_come_touches_nothing_after_its_end() {
    let (local, remote) = pair(4);
    let plan = Plan::new(&local, &remote, Direction::Read).unwrap();
    let lists = plan.prepare().unwrap();
    let whole = request((0, 6), &[0, 1, 2], &[3, 4]);
    let pairing = Pairing::new(&plan, &whole).unwrap();
    // 2 heads of 32 bytes a token in 3 layers: the last 2 tokens of page 1, and page 2.
    let token = 2 * 32 * 3;
    assert_eq!((pairing.fits_rows(), cleared(&pairing)), (true, (2 + 4) * token));
    let part = whole.with_more(true);
    let pairing = Pairing::new(&plan, &part).unwrap();
    assert_eq!((pairing.fits_rows(), cleared(&pairing)), (false, 0));
    let exact: u64 = pairing.lists(&lists, 0).unwrap().iter().map(|one| one.length).sum();
    assert_eq!(exact, 6 * token);
    let error = pairing.id_count(&lists[0]).unwrap_err().to_string();
    assert!(error.contains("tokens end inside a row"), "{error}");
    let even = request((0, 4), &[0, 1, 2], &[3, 4]).with_more(true);
    assert!(Pairing::new(&plan, &even).unwrap().fits_rows());
}

/// Tokens 2 and 3 are another rank's: nothing moves, and no page is asked for.
#[test]
fn an_interval_between_the_turns_of_a_rank_is_empty() {
    let rank = |name, rank, size| Rank {
        position: common::context((rank, size), 2),
        heads: None,
        layers: 1,
        ..Rank::new(name, (0, 1), ROW.0, 1, ROW.1)
    };
    let (local, remote) = (rank("d", 0, 1).build(), rank("p", 0, 2).build());
    let plan = Plan::new(&local, &remote, Direction::Read).unwrap();
    let lists = plan.prepare().unwrap();
    let request = request((2, 4), &[5], &[]).with_more(true);
    let pairing = Pairing::new(&plan, &request).unwrap();
    assert!(pairing.fits_rows());
    assert_eq!((pairing.id_count(&lists[0]).unwrap(), pairing.lists(&lists, 0).unwrap().len()), (0, 0));
}

/// A rank's layout may be a peer's: what it says of the others is not made before it is bounded.
#[test]
fn an_engine_that_a_peer_makes_too_large_is_refused_at_once() {
    for size in [4_097, 1 << 40, u64::MAX] {
        let rank = Rank::new("e", (0, size), "h n k[d]", 2, &[("n", 2), ("d", 2)]).build();
        let error = Engine::uniform(&rank).unwrap_err();
        assert_eq!(error, Error::Limit { what: "ranks of an engine".to_owned(), found: size, limit: 4_096 });
    }
    let many = Rank { layers: 300, ..Rank::new("e", (0, 4_096), "h n k[d]", 2, &[("n", 2), ("d", 2)]) }.build();
    assert!(matches!(Engine::uniform(&many).unwrap_err(), Error::Limit { found: 1_228_800, limit: 1_048_576, .. }));

    // One plane of heads without end: the other rank would have the rest.
    let page = format("n k[d]", &[("n", 2), ("d", 2)], "bf16");
    let shares = Shares::new([(name("h"), Interval::new(0, 1).unwrap())]);
    let segment = Segment::new(0, page.clone(), 0, 1, page.page_bytes(), shares).unwrap();
    let layer = Layer::new("layers.0", vec![segment], 0, [(name("h"), 1 << 62)]).unwrap();
    let rank = RankLayout::new(RankParts {
        engine: "e".to_owned(),
        generation: 0,
        position: common::position((0, 2)),
        regions: vec![Region::new(1 << 20, page.page_bytes(), 0, MemoryKind::Dram).unwrap()],
        groups: vec![Group::PLAIN],
        layers: vec![layer],
    })
    .unwrap();
    let error = Engine::uniform(&rank).unwrap_err();
    assert!(matches!(error, Error::Limit { limit: 4_096, .. }), "{error}");
}

/// The target of a push says how many pages its blocks have, and all that no token fills would be cleared.
#[test]
fn a_block_without_end_is_not_cleared() {
    let page = format("n k[d]", &[("n", 2), ("d", 2)], "bf16");
    let rank = |pages_per_block: u64, pages: u64| {
        let stride = page.page_bytes();
        let segment = Segment::new(0, page.clone(), 0, pages, stride, Shares::default()).unwrap();
        RankLayout::new(RankParts {
            engine: "e".to_owned(),
            generation: 0,
            position: Position::ALONE,
            regions: vec![Region::new(1 << 20, pages * stride, 0, MemoryKind::Dram).unwrap()],
            groups: vec![Group::new(GroupKind::Tokens, pages_per_block, TokensPerState::ONE, None).unwrap()],
            layers: vec![Layer::new("layers.0", vec![segment], 0, []).unwrap()],
        })
        .unwrap()
    };
    let plan = |pages_per_block| {
        let plan = Plan::new(&rank(1, 4), &rank(pages_per_block, 1 << 31), Direction::Write).unwrap();
        Pairing::new(&plan, &request((0, 2), &[1], &[0]))
    };
    let Err(Error::Limit { limit: 1_048_576, .. }) = plan(1 << 31) else { panic!("accepted") };
    assert_eq!(cleared(&plan(1 << 10).unwrap()), 1023 * page.page_bytes());
}
