//! Plans of one edge and of whole routes, proven element by element.
#![allow(clippy::unwrap_used, clippy::arithmetic_side_effects, clippy::panic, clippy::indexing_slicing)]

mod common;

use common::Rank;
use kvreshard::engine::Engine;
use kvreshard::layout::RankLayout;
use kvreshard::lower::Pairing;
use kvreshard::plan::{Direction, Plan};
use kvreshard::request::{Blocks, Request};
use kvreshard::route::Route;
use kvreshard::{Interval, Side, verify};

const D: (&str, u64) = ("d", 128);
const N: (&str, u64) = ("n", 16);

fn engine(of: impl Fn(u64) -> Rank, size: u64) -> Engine {
    Engine::new((0..size).map(|rank| of(rank).build()).collect()).unwrap()
}

/// Plans every edge and proves every destination rank in both directions.
fn prove(from: &Engine, to: &Engine) -> Vec<Plan> {
    let route = Route::new(to, from, Direction::Read).unwrap();
    let mut all = Vec::new();
    for (rank, layout) in to.ranks().iter().enumerate() {
        let edges = route.edges().iter().filter(|edge| edge.local() == rank);
        let plans: Vec<Plan> = edges.map(|edge| edge.plan(layout, &from.ranks()[edge.remote()]).unwrap()).collect();
        assert_eq!(u64::try_from(plans.len()).unwrap(), route.writers()[rank]);
        verify::plans(&plans).unwrap();
        all.extend(plans);
    }
    let pushed = Route::new(from, to, Direction::Write).unwrap();
    assert_eq!(pushed.readers(), route.readers());
    for (rank, layout) in to.ranks().iter().enumerate() {
        let edges = pushed.edges().iter().filter(|edge| edge.remote() == rank);
        let plans: Vec<Plan> = edges.map(|edge| edge.plan(&from.ranks()[edge.local()], layout).unwrap()).collect();
        verify::plans(&plans).unwrap();
    }
    all
}

#[test]
fn formats_at_every_pair_of_sizes() {
    for notation in [
        "h n k[d] v[d]",
        "n h k[d] v[d]",
        "k[h n d] v[h n d]",
        "k[n h d] v[n h d]",
        "k[h d/8 n d%8] v[h n/8 d n%8]",
        "k[h d/8 n d%8] v[h d n]",
        "h k[n d] pad[64] v[d n]",
    ] {
        for (p, d) in [(1, 1), (1, 2), (2, 1), (2, 4), (4, 2), (2, 3), (3, 2), (1, 6), (12, 6), (6, 12), (12, 4)] {
            let side = |name, size| move |rank| Rank::new(name, (rank, size), notation, 6, &[N, ("d", 16)]);
            prove(&engine(side("p", p), p), &engine(side("d", d), d));
        }
    }
}

#[test]
fn equal_pages_are_one_run_and_join_across_pages() {
    let p = engine(|r| Rank::new("p", (r, 1), "h n k[d] v[d]", 8, &[N, D]), 1);
    let d = engine(|r| Rank::new("d", (r, 1), "h n k[d] v[d]", 8, &[N, D]), 1);
    let plans = prove(&p, &d);
    let summary = plans[0].summary().unwrap();
    assert_eq!((summary.layers, summary.runs, summary.longest_run), (2, 2, 65536));
    let request = request(&plans[0], 48, &[3, 4, 5], &[1, 2, 6]);
    let lists = plans[0].prepare().unwrap();
    let pairing = Pairing::new(&plans[0], &request).unwrap();
    assert_eq!(pairing.posted_by_ids(&lists[0]).unwrap(), 4);
    assert_eq!(pairing.lists(&lists, 0).unwrap().len(), 4);
}

/// A component of 4 bytes a token and one of 2; the other side has them the other way round.
#[test]
fn a_summary_counts_runs_and_bytes_of_one_period() {
    let side = |name, notation: &str, n| {
        let rank = Rank {
            heads: None,
            layers: 1,
            dtype: "u8",
            ..Rank::new(name, (0, 1), notation, 1, &[("n", n), ("d", 4), ("e", 2)])
        };
        rank.build()
    };
    let counted = |local: &RankLayout, remote: &RankLayout| {
        let summary = Plan::new(local, remote, Direction::Read).unwrap().summary().unwrap();
        (summary.runs, summary.bytes, summary.shortest_run, summary.longest_run, summary.runs_per_page)
    };
    let (one, other) = ("n k[d] v[e]", "n v[e] k[d]");
    assert_eq!(counted(&side("d", one, 3), &side("p", other, 3)), (6, 18, 2, 4, 6));
    assert_eq!(counted(&side("d", other, 3), &side("p", one, 3)), (6, 18, 2, 4, 6));
    // Two pages of 3 for three of 2: cells of 2, 1, 1 and 2 states. A page of the local side has half of the runs.
    assert_eq!(counted(&side("d", one, 3), &side("p", one, 2)), (4, 36, 6, 12, 2));
    assert_eq!(counted(&side("d", one, 2), &side("p", one, 3)), (4, 36, 6, 12, 2));
}

#[test]
fn a_plan_without_common_layers_is_empty() {
    let rank = Rank { layers: 1, ..Rank::new("d", (0, 1), "h n k[d] v[d]", 2, &[N, D]) }.build();
    let mut parts = rank.parts().clone();
    parts.position.pp = kvreshard::shard::Place::new(0, 2).unwrap();
    parts.layers.iter_mut().for_each(|layer| {
        let totals = layer.totals().to_vec();
        *layer = kvreshard::layout::Layer::new("layers.7", layer.segments().to_vec(), 0, totals).unwrap();
    });
    let stage = RankLayout::new(parts).unwrap();
    let plan = |remote| Plan::new(&rank, remote, Direction::Read).unwrap();
    assert!(plan(&stage).is_empty() && !plan(&rank).is_empty());
    assert_eq!(plan(&stage).summary().unwrap().shortest_run, 0);
}

#[test]
fn a_digest_is_written_in_hexadecimal_and_a_direction_by_its_name() {
    let rank = |base| Rank { base, ..Rank::new("d", (0, 1), "h n k[d] v[d]", 2, &[N, D]) }.build();
    let digest = |base, direction| Plan::new(&rank(base), &rank(1 << 20), direction).unwrap().digest();
    let one = digest(1 << 20, Direction::Read);
    let text: String = one.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!((one.to_string(), text.len()), (text, 64));
    assert_eq!(digest(1 << 20, Direction::Read), one);
    assert_ne!(digest(1 << 21, Direction::Read), one);
    assert_ne!(digest(1 << 20, Direction::Write), one);
    for direction in [Direction::Read, Direction::Write] {
        assert_eq!(direction.name().parse::<Direction>().unwrap(), direction);
    }
    assert_eq!((Direction::Read.name(), Direction::Write.name()), ("read", "write"));
    assert!("push".parse::<Direction>().is_err());
}

fn request(_: &Plan, tokens: u64, local: &[i32], remote: &[i32]) -> Request {
    let tokens = Interval::new(0, tokens).unwrap();
    Request::new(tokens, vec![Blocks::new(local, 0)], vec![Blocks::new(remote, 0)])
}

#[test]
fn ids_and_lists_name_the_same_bytes() {
    let p = Rank { pages: 9, ..Rank::new("p", (0, 1), "k[n h d] v[n h d]", 4, &[("n", 24), D]) }.build();
    let d = Rank { gap: 32, ..Rank::new("d", (1, 2), "n h k[d] v[d]", 4, &[N, D]) }.build();
    let plan = Plan::new(&d, &p, Direction::Read).unwrap();
    verify::plan(&plan).unwrap();
    let request = request(&plan, 96, &[5, 1, 7, 3, 0, 2], &[8, 0, 3, 4]);
    let lists = plan.prepare().unwrap();
    let pairing = Pairing::new(&plan, &request).unwrap();
    let count = pairing.id_count(&lists[0]).unwrap();
    let (mut here, mut there) = (vec![0; count], vec![0; count]);
    pairing.write_ids(&lists[0], &mut here, &mut there).unwrap();
    let (flat_here, flat_there) = (lists[0].flat(Side::Local).unwrap(), lists[0].flat(Side::Remote).unwrap());
    let at = |table: &[u64], id: i32| table[usize::try_from(id).unwrap() * 3..][..2].to_vec();
    let mut bytes = std::collections::BTreeMap::new();
    for (l, r) in here.iter().zip(&there) {
        let (l, r) = (at(&flat_here, *l), at(&flat_there, *r));
        assert_eq!(l[1], r[1]);
        for byte in 0..l[1] {
            assert!(bytes.insert(l[0] + byte, r[0] + byte).is_none(), "byte written twice");
        }
    }
    let exact = pairing.lists(&lists, 0).unwrap();
    verify::descriptors(&d, &p, Direction::Read, &exact).unwrap();
    let total: u64 = exact.iter().map(|one| one.length).sum();
    assert_eq!(total, u64::try_from(bytes.len()).unwrap());
    for one in exact {
        for byte in 0..one.length {
            assert_eq!(bytes[&(one.local + byte)], one.remote + byte);
        }
    }
}

#[test]
fn layouts_survive_the_wire() {
    let rank = Rank { layers: 80, ..Rank::new("p", (1, 2), "k[h d/8 n d%8] v[h n/8 d n%8]", 8, &[N, D]) }.build();
    let bytes = rank.to_bytes().unwrap();
    assert!(bytes.len() < 4096, "{}", bytes.len());
    assert_eq!(RankLayout::from_bytes(&bytes).unwrap(), rank);
}

/// Other ranks of an engine of head planes have as many planes as they hold heads.
#[test]
fn an_engine_of_planes_is_known_from_one_rank() {
    use kvreshard::layout::{Layer, Segment, Shares};
    let joint = Rank { layers: 1, ..Rank::new("p", (0, 2), "h n k[d] v[d]", 6, &[N, ("d", 4)]) };
    let mut parts = joint.build().parts().clone();
    let plane = common::format("n k[d] v[d]", &[N, ("d", 4)], "bf16");
    let bytes = plane.page_bytes();
    let segments = (0..3).map(|head| {
        let held = Shares::new([(common::name("h"), Interval::new(head, head + 1).unwrap())]);
        Segment::new(0, plane.clone(), head * bytes * 8, 8, bytes, held).unwrap()
    });
    parts.layers = vec![Layer::new("layers.0", segments.collect(), 0, [(common::name("h"), 6)]).unwrap()];
    let planes = Engine::uniform(&RankLayout::new(parts).unwrap()).unwrap();
    assert_eq!(planes.ranks()[1].layers()[0].segments().len(), 3);
    let decode = engine(|r| Rank { layers: 1, ..Rank::new("d", (r, 3), "h n k[d] v[d]", 6, &[N, ("d", 4)]) }, 3);
    let route = Route::new(&decode, &planes, Direction::Read).unwrap();
    assert_eq!(
        route.edges().iter().map(|edge| (edge.local(), edge.remote())).collect::<Vec<_>>(),
        [(0, 0), (1, 0), (1, 1), (2, 1)]
    );
}

/// Which plane has a head is looked for by what each holds, and a plane has no axis of heads where the other side has one.
#[test]
fn heads_in_planes_are_proven_either_way() {
    use kvreshard::layout::{Layer, Segment, Shares};
    let joint = Rank { layers: 1, ..Rank::new("p", (0, 1), "h n k[d] v[d]", 4, &[N, ("d", 4)]) };
    let mut parts = joint.build().parts().clone();
    let plane = common::format("n k[d] v[d]", &[N, ("d", 4)], "bf16");
    let bytes = plane.page_bytes();
    let segments = (0..4).map(|head| {
        let held = Shares::new([(common::name("h"), Interval::new(head, head + 1).unwrap())]);
        Segment::new(0, plane.clone(), head * bytes * 8, 8, bytes, held).unwrap()
    });
    parts.layers = vec![Layer::new("layers.0", segments.collect(), 0, [(common::name("h"), 4)]).unwrap()];
    let planes = Engine::new(vec![RankLayout::new(parts).unwrap()]).unwrap();
    for size in [1, 2, 4] {
        let rows = |r| Rank { layers: 1, ..Rank::new("d", (r, size), "n h k[d] v[d]", 4, &[N, ("d", 4)]) };
        prove(&planes, &engine(rows, size));
        prove(&engine(rows, size), &planes);
    }
}

/// Planes are compared once for each way in which they are built: one that is built otherwise is not taken for the first.
#[test]
fn a_plane_that_does_not_fit_is_found_behind_one_that_does() {
    use kvreshard::layout::{Layer, Segment, Shares};
    let side = |dims: [u64; 3]| {
        let rank = Rank { layers: 1, pages: 64, heads: None, ..Rank::new("p", (0, 1), "n k[d]", 1, &[N, D]) };
        let mut parts = rank.build().parts().clone();
        let segments = (0..3).zip(dims).map(|(head, d)| {
            let plane = common::format("n k[d]", &[N, ("d", d)], "bf16");
            let held = Shares::new([(common::name("h"), Interval::new(head, head + 1).unwrap())]);
            Segment::new(0, plane.clone(), head * 8192, 2, plane.page_bytes(), held).unwrap()
        });
        parts.layers = vec![Layer::new("layers.0", segments.collect(), 0, [(common::name("h"), 3)]).unwrap()];
        RankLayout::new(parts).unwrap()
    };
    let refused = |one, other| Plan::new(&side(one), &side(other), Direction::Read).unwrap_err().to_string();
    assert!(Plan::new(&side([8, 8, 8]), &side([8, 8, 8]), Direction::Read).is_ok());
    for odd in [[4, 8, 8], [8, 4, 8], [8, 8, 4]] {
        for text in [refused(odd, [8, 8, 8]), refused([8, 8, 8], odd)] {
            assert!(text.contains("extent of axis d in component k"), "{text}");
        }
    }
}

/// A page in planes is read plane by plane: what lies between are other pages.
#[test]
fn planes_are_landed_without_the_pages_between() {
    use kvreshard::layout::{Layer, Segment, Shares};
    let joint = Rank { layers: 1, ..Rank::new("p", (0, 1), "k[h n d] v[h n d]", 4, &[N, ("d", 8)]) };
    let mut parts = joint.build().parts().clone();
    let slot = |component: &str| common::format(&format!("{component}[h d/4 n d%4]"), &[N, ("d", 8), ("h", 4)], "bf16");
    let bytes = slot("k").page_bytes();
    let plane =
        |at: u64, component| Segment::new(0, slot(component), at * bytes * 8, 8, bytes, Shares::default()).unwrap();
    let segments = vec![plane(0, "k"), plane(1, "v")];
    parts.layers = vec![Layer::new("layers.0", segments, 0, [(common::name("h"), 4)]).unwrap()];
    let planes = RankLayout::new(parts).unwrap();
    for (rank, wanted) in [((0, 1), 2 * bytes), ((1, 2), bytes)] {
        let local = Rank { layers: 1, ..Rank::new("d", rank, "h n k[d] v[d]", 4, &[N, ("d", 8)]) }.build();
        let plan = Plan::new(&local, &planes, Direction::Read).unwrap();
        let landed = plan.landed(0).unwrap();
        assert_eq!(landed.landings().iter().map(|landing| landing.bytes).sum::<u64>(), wanted);
        let pairing = Pairing::new(&plan, &request(&plan, 32, &[5, 1], &[2, 7])).unwrap();
        let mut moved = std::collections::BTreeMap::new();
        for chunk in pairing.landed_chunks(&landed, wanted).unwrap() {
            let reads = pairing.landed_reads(&landed, &chunk, 1 << 40, 0).unwrap();
            let from: std::collections::BTreeMap<u64, u64> = reads
                .iter()
                .flat_map(|read| (0..read.length).map(|byte| (read.local - (1 << 40) + byte, read.remote + byte)))
                .collect();
            for part in &chunk.parts {
                let lane = &landed.tiles().lanes()[part.lane];
                for (page, place) in part.pages.iter().zip(&part.places) {
                    let base = lane.address + u64::try_from(*page).unwrap() * lane.stride;
                    let place = part.offset + u64::try_from(*place).unwrap() * lane.unit;
                    for tile in landed.tiles().shapes()[lane.shape].iter() {
                        let mut points = vec![(tile.page, tile.buffer)];
                        for step in &tile.loops {
                            let turned =
                                |turn| move |(page, buffer)| (page + turn * step.page, buffer + turn * step.buffer);
                            points =
                                (0..step.extent).flat_map(|turn| points.iter().copied().map(turned(turn))).collect();
                        }
                        for (page, buffer) in points {
                            for byte in 0..tile.run {
                                let to = base + page + byte;
                                assert!(
                                    moved.insert(to, from[&(place + buffer + byte)]).is_none(),
                                    "byte written twice"
                                );
                            }
                        }
                    }
                }
            }
        }
        let lists = plan.prepare().unwrap();
        let exact = pairing.lists(&lists, 0).unwrap();
        let wanted = exact.iter().flat_map(|one| (0..one.length).map(|byte| (one.local + byte, one.remote + byte)));
        assert_eq!(moved, wanted.collect());
    }
}

#[test]
fn pages_of_a_period_and_whether_they_end_alike() {
    let side = |name, n| Rank { layers: 3, ..Rank::new(name, (0, 1), "h n k[d] v[d]", 2, &[("n", n), D]) }.build();
    let plan = |here, there| Plan::new(&side("d", here), &side("p", there), Direction::Read).unwrap();
    for (here, there, pages) in [(16, 16, (3, 3)), (16, 32, (6, 3)), (24, 16, (6, 9))] {
        let plan = plan(here, there);
        assert_eq!(plan.summary().unwrap().pages, pages, "pages of {here} and {there} tokens");
        assert_eq!(plan.pages_alike(), here == there);
    }
}
