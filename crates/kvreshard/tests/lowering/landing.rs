//! Layers that are built differently, side by side: what is landed or packed is what lists move, whatever a chunk holds.

use std::collections::BTreeMap;

use super::common::{format, name};
use super::moved::{through_landing, through_packed};
use kvreshard::layout::{Group, Layer, MemoryKind, Position, RankLayout, RankParts, Region, Segment, Shares};
use kvreshard::lower::{LandedCount, Pairing};
use kvreshard::plan::{Direction, Plan};
use kvreshard::request::{Blocks, Request};
use kvreshard::{Error, Interval, Side};

const PAGES: u64 = 10;
const TOKENS: u64 = 4;

/// Layers of these notations, each in a region of its own, with `gap` bytes behind every page. Where there are two notations, those
/// are planes: all pages of the first, then all of the second.
fn rank(layers: &[&[&str]], gap: u64, base: u64) -> RankLayout {
    let (mut regions, mut made) = (Vec::new(), Vec::new());
    for (number, planes) in layers.iter().enumerate() {
        let start = base + (u64::try_from(number).unwrap() << 16);
        let (mut segments, mut at) = (Vec::new(), 0);
        for plane in *planes {
            let axes = [("h", 2), ("n", TOKENS), ("d", 4), ("e", 3)];
            let used: Vec<(&str, u64)> = axes.into_iter().filter(|(axis, _)| plane.contains(axis)).collect();
            let page = format(plane, &used, "u8");
            let stride = page.page_bytes() + gap;
            segments.push(Segment::new(number, page, at, PAGES, stride, Shares::default()).unwrap());
            at += stride * PAGES;
        }
        regions.push(Region::new(start, at, 0, MemoryKind::Dram).unwrap());
        made.push(Layer::new(format!("layers.{number}"), segments, 0, [(name("h"), 2)]).unwrap());
    }
    RankLayout::new(RankParts {
        engine: "e".to_owned(),
        generation: 0,
        position: Position::ALONE,
        regions,
        groups: vec![Group::PLAIN],
        layers: made,
    })
    .unwrap()
}

const LOCAL: [&[&str]; 6] = [
    &["h n k[d] v[d]"],
    &["n h k[d] v[e]"],
    &["h n k[d] v[d]"],
    &["k[h n d] v[h n d]"],
    &["n h k[d] v[e]"],
    &["k[h n d] v[h n d]"],
];

const REMOTE: [&[&str]; 6] = [
    &["n h k[d] v[d]"],
    &["k[h n d] v[h n e]"],
    &["n h k[d] v[d]"],
    &["k[n h d]", "v[n h d]"],
    &["k[h n d] v[h n e]"],
    &["k[n h d]", "v[n h d]"],
];

fn plan(gap: u64) -> Plan {
    Plan::new(&rank(&LOCAL, 0, 1 << 20), &rank(&REMOTE, gap, 1 << 24), Direction::Read).unwrap()
}

fn request(local: &[i32], remote: &[i32]) -> Request {
    let tokens = Interval::from_zero(u64::try_from(local.len()).unwrap() * TOKENS);
    Request::new(tokens, vec![Blocks::new(local, 0)], vec![Blocks::new(remote, 0)])
}

fn listed(plan: &Plan, pairing: &Pairing) -> BTreeMap<u64, u64> {
    let prepared = plan.prepare().unwrap();
    let lists = (0..prepared.len()).flat_map(|list| pairing.lists(&prepared, list).unwrap());
    lists.flat_map(|one| (0..one.length).map(move |byte| (one.local + byte, one.remote + byte))).collect()
}

#[test]
fn every_way_moves_the_same_bytes() {
    for gap in [0, 8] {
        let plan = plan(gap);
        for (local, remote) in [
            (vec![0, 1, 2, 3, 4, 5, 6], vec![0, 1, 2, 3, 4, 5, 6]),
            (vec![7, 2, 9, 0, 4, 1, 3], vec![3, 9, 4, 0, 8, 1, 6]),
            (vec![5], vec![8]),
        ] {
            let pairing = Pairing::new(&plan, &request(&local, &remote)).unwrap();
            let wanted = listed(&plan, &pairing);
            assert_eq!(wanted.len(), local.len() * (4 * 2 * 4 * 8 + 2 * 2 * 4 * 7));
            for chunk in [64, 130, 1 << 14] {
                assert_eq!(through_packed(&plan, &pairing, chunk), wanted);
                for hole in [0, 8, 200] {
                    assert_eq!(through_landing(&plan, &pairing, chunk, hole), wanted, "{gap} {local:?} {chunk} {hole}");
                }
            }
        }
    }
}

/// Pages 1 to 4 and 7, of layers of 64, 56, 64, 64 (two planes of 32), 56 and 64 bytes a page.
#[test]
fn pages_are_read_at_once_where_the_hole_between_is_worth_it() {
    let pages = [1, 2, 3, 4, 7];
    let count = |gap: u64, hole: u64, chunk: u64| {
        let plan = plan(gap);
        let pairing = Pairing::new(&plan, &request(&pages, &pages)).unwrap();
        let landed = plan.landed(hole).unwrap();
        let LandedCount { posted, bytes } = pairing.landed_count(&landed, chunk).unwrap();
        (posted, bytes)
    };
    let all = 5 * (4 * 64 + 2 * 56);
    // Dense pages are one read as far as they follow one another; of planes, each plane of each page is one.
    assert_eq!(count(0, 0, 1 << 14), (4 * 2 + 2 * 2 * 5, all));
    // With a gap behind every page each page is one, until the gap is worth it: three gaps of 8 bytes in each of four layers.
    assert_eq!(count(8, 7, 1 << 14), (4 * 5 + 2 * 10, all));
    assert_eq!(count(8, 8, 1 << 14), (4 * 2 + 2 * 10, all + 4 * 3 * 8));
    // Two pages that nobody needs, and the gaps around them.
    assert_eq!(count(8, 8 * 3 + 2 * 64, 1 << 14), (4 + 2 * 10, all + 4 * 6 * 8 + 2 * 2 * 64 + 2 * 2 * 56));
    assert_eq!(count(8, 8 * 3 + 2 * 64 - 1, 1 << 14), (2 * 2 + 2 + 2 * 10, all + 4 * 3 * 8 + 2 * (3 * 8 + 2 * 56)));
}

#[test]
fn layers_that_are_built_alike_share_their_tiles() {
    let plan = plan(8);
    let shapes = |tiles: &kvreshard::lower::Tiles| tiles.lanes().iter().map(|lane| lane.shape).collect::<Vec<_>>();
    let landed = plan.landed(0).unwrap();
    let packed = plan.packed_tiles(Side::Local).unwrap();
    let (landings, lanes) = (landed.landings().len(), packed.lanes().len());
    assert_eq!((landings, lanes), (6, 6), "planes step together");
    assert_eq!(landed.landings().iter().map(|landing| landing.bytes).collect::<Vec<_>>(), [64, 56, 64, 64, 56, 64]);
    assert_eq!(shapes(landed.tiles()), [0, 1, 0, 2, 1, 2], "{:?}", landed.tiles().shapes());
    // Packed in the order of the local page, a page of which all moves is one run, whatever its format.
    assert_eq!(shapes(&packed), [0, 1, 0, 0, 1, 0], "{:?}", packed.shapes());
    assert_eq!((landed.tiles().shapes().len(), packed.shapes().len()), (3, 2));
}

/// Six layers of 5 pages, of 64 bytes and in the second and the fifth layer of 56.
#[test]
fn as_many_pages_as_fit_go_into_a_chunk() {
    let plan = plan(0);
    let pages = [1, 2, 3, 4, 7];
    let pairing = Pairing::new(&plan, &request(&pages, &pages)).unwrap();
    let (landed, tiles) = (plan.landed(0).unwrap(), plan.packed_tiles(Side::Local).unwrap());
    let all = 5 * (4 * 64 + 2 * 56);
    let landings = |chunk| pairing.landed_chunks(&landed, chunk).unwrap();
    let packings = |chunk| pairing.chunks(&tiles, chunk).unwrap();
    for (chunk, bytes) in [
        (all, vec![all]),
        (all - 1, vec![all - 64, 64]),
        (5 * 64 + 2 * 56, vec![432, 3 * 56 + 4 * 64, 64 + 320, 5 * 56 + 2 * 64, 3 * 64]),
    ] {
        assert_eq!(landings(chunk).iter().map(|chunk| chunk.bytes).collect::<Vec<_>>(), bytes);
        assert_eq!(packings(chunk).iter().map(|chunk| chunk.bytes).collect::<Vec<_>>(), bytes);
    }
    // Layers that move the same pages name one list of them.
    for moves in [landings(all)[0].moves(), pairing.moves(&tiles, &packings(all)[0]).unwrap()] {
        assert_eq!((moves.parts.len(), moves.pages.as_slice()), (6, &pages[..]));
        assert_eq!(moves.places, [0, 1, 2, 3, 4]);
        assert!(moves.parts.iter().all(|part| (part.first, part.count) == (0, 5)));
    }
    // A layer that is cut moves other pages than those that are not.
    let cut = pairing.moves(&tiles, &packings(432)[0]).unwrap();
    assert_eq!((cut.pages.as_slice(), cut.places.as_slice()), (&[1, 2, 3, 4, 7, 1, 2][..], &[0, 1, 2, 3, 4, 0, 1][..]));
    assert_eq!(cut.parts.iter().map(|part| (part.first, part.count)).collect::<Vec<_>>(), [(0, 5), (5, 2)]);
}

/// A rank of one layer, pages of `tokens` tokens of 8 bytes, for each of the groups.
fn plain(tokens: u64, groups: usize, base: u64) -> RankLayout {
    let page = format("n k[d]", &[("n", tokens), ("d", 8)], "u8");
    let (mut regions, mut layers) = (Vec::new(), Vec::new());
    for group in 0..groups {
        let start = base + (u64::try_from(group).unwrap() << 16);
        regions.push(Region::new(start, page.page_bytes() * PAGES, 0, MemoryKind::Dram).unwrap());
        let pages = Segment::new(group, page.clone(), 0, PAGES, page.page_bytes(), Shares::default()).unwrap();
        layers.push(Layer::new(format!("layers.{group}"), vec![pages], group, []).unwrap());
    }
    let (engine, position, groups) = ("e".to_owned(), Position::ALONE, vec![Group::PLAIN; groups]);
    RankLayout::new(RankParts { engine, generation: 0, position, regions, groups, layers }).unwrap()
}

/// What is landed in chunks of `chunk` bytes, once as it is read and once as it is counted.
fn landed(plan: &Plan, pairing: &Pairing, chunk: u64) -> (u64, u64) {
    let landed = plan.landed(0).unwrap();
    let chunks = pairing.landed_chunks(&landed, chunk).unwrap();
    let reads = chunks.iter().flat_map(|chunk| pairing.landed_reads(&landed, chunk, 1 << 40, 0).unwrap());
    let read = reads.fold((0, 0), |sum, read| (sum.0 + 1, sum.1 + read.length));
    let LandedCount { posted, bytes } = pairing.landed_count(&landed, chunk).unwrap();
    assert_eq!(read, (posted, bytes));
    read
}

/// Two pages of the receiver in each of the peer's.
#[test]
fn a_page_that_two_pages_need_is_read_once() {
    let plan = Plan::new(&plain(4, 1, 1 << 20), &plain(8, 1, 1 << 24), Direction::Read).unwrap();
    let (local, remote) = (vec![Blocks::new([5, 0, 3, 8], 0)], vec![Blocks::new([4, 7], 0)]);
    let pairing = Pairing::new(&plan, &Request::new(Interval::from_zero(16), local, remote)).unwrap();
    assert_eq!(plan.landed(0).unwrap().landings().len(), 1);
    assert_eq!(landed(&plan, &pairing, 1 << 14), (2, 2 * 64));
    assert_eq!(through_landing(&plan, &pairing, 64, 0), listed(&plan, &pairing));
}

#[test]
fn groups_with_other_pages_are_counted_for_themselves() {
    let plan = Plan::new(&plain(4, 3, 1 << 20), &plain(4, 3, 1 << 24), Direction::Read).unwrap();
    let blocks = |lists: [&[i32]; 3]| lists.map(|ids| Blocks::new(ids, 0)).to_vec();
    // The first two begin at the same byte of a chunk: the first fills one to its end.
    let (local, remote) =
        ([&[0, 1, 2, 3][..], &[9, 8, 7, 6], &[0, 2, 4, 6]], [&[0, 1, 2, 3][..], &[3, 5, 7, 9], &[1, 2, 8, 9]]);
    let request = Request::new(Interval::from_zero(16), blocks(local), blocks(remote));
    let pairing = Pairing::new(&plan, &request).unwrap();
    assert_eq!(landed(&plan, &pairing, 4 * 32), (1 + 4 + 2, 3 * 4 * 32));
    assert_eq!(landed(&plan, &pairing, 32), (12, 3 * 4 * 32));
}

#[test]
fn a_page_that_no_chunk_holds_is_refused() {
    let plan = plan(0);
    let pairing = Pairing::new(&plan, &request(&[1], &[1])).unwrap();
    let landed = plan.landed(0).unwrap();
    let tiles = plan.packed_tiles(Side::Local).unwrap();
    let of = |what: &str| Error::Limit { what: what.to_owned(), found: 64, limit: 63 };
    let (landing, packing) = (of("bytes of one page's span in a chunk"), of("bytes of one pair of pages in a chunk"));
    assert_eq!(pairing.landed_chunks(&landed, 63).unwrap_err(), landing);
    assert_eq!(pairing.landed_count(&landed, 63).unwrap_err(), landing);
    assert_eq!(pairing.chunks(&tiles, 63).unwrap_err(), packing);
    assert!(pairing.landed_chunks(&landed, 64).is_ok() && pairing.chunks(&tiles, 64).is_ok());
    // Where nothing is wanted nothing has to fit.
    let nothing = Pairing::new(
        &plan,
        &Request::new(Interval::from_zero(0), vec![Blocks::new([1], 0)], vec![Blocks::new([1], 0)]),
    )
    .unwrap();
    assert!(nothing.landed_chunks(&landed, 1).unwrap().is_empty() && nothing.chunks(&tiles, 1).unwrap().is_empty());
    assert_eq!(nothing.landed_count(&landed, 1).unwrap(), LandedCount::default());
}

#[test]
fn only_the_receiver_lands() {
    let plan = Plan::new(&rank(&REMOTE, 0, 1 << 20), &rank(&LOCAL, 0, 1 << 24), Direction::Write).unwrap();
    assert!(matches!(plan.landed(0), Err(Error::Layout { field, .. }) if field == "direction"));
}
