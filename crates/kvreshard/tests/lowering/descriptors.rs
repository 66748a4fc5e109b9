//! Descriptor counts where they are easily missed: regions visited out of order, ends inside a page, more descriptors than ids.

use super::common::{Rank, format, name, position};
use kvreshard::layout::{Group, Layer, MemoryKind, RankLayout, RankParts, Region, Segment, Shares};
use kvreshard::lower::Pairing;
use kvreshard::plan::{Direction, Plan};
use kvreshard::request::{Blocks, Request};
use kvreshard::{Error, Interval, Side};

const PAGES: u64 = 8;

fn request(tokens: u64, local: &[i32], remote: &[i32]) -> Request {
    Request::new(Interval::from_zero(tokens), vec![Blocks::new(local, 0)], vec![Blocks::new(remote, 0)])
}

/// Descriptors of the exact lists, of the lists rounded up to whole rows, and of ids.
fn counts(plan: &Plan, request: &Request) -> (usize, usize, u64) {
    let prepared = plan.prepare().unwrap();
    let pairing = Pairing::new(plan, request).unwrap();
    let ids = pairing.posted_by_ids(&prepared[0]).unwrap();
    let exact = pairing.lists(&prepared, 0).unwrap().len();
    (exact, pairing.rounded().lists(&prepared, 0).unwrap().len(), ids)
}

/// Three layers: the first and the last follow one another in one allocation, the second has its own.
fn interleaved() -> RankLayout {
    let page = format("h n k[d] v[d]", &[("h", 2), ("n", 4), ("d", 8)], "bf16");
    let bytes = page.page_bytes() * PAGES;
    let regions = [(1 << 20, 2 * bytes), (1 << 24, bytes)];
    let layers = [(0, 0), (1, 0), (0, bytes)].into_iter().enumerate().map(|(index, (region, offset))| {
        let segment = Segment::new(region, page.clone(), offset, PAGES, page.page_bytes(), Shares::default()).unwrap();
        Layer::new(format!("layers.{index}"), vec![segment], 0, [(name("h"), 2)]).unwrap()
    });
    RankLayout::new(RankParts {
        engine: "e".to_owned(),
        generation: 0,
        position: position((0, 1)),
        regions: regions.map(|(base, bytes)| Region::new(base, bytes, 0, MemoryKind::Dram).unwrap()).to_vec(),
        groups: vec![Group::PLAIN],
        layers: layers.collect(),
    })
    .unwrap()
}

#[test]
fn runs_join_across_layers_that_are_no_neighbours_in_the_list() {
    let plan = Plan::new(&interleaved(), &interleaved(), Direction::Read).unwrap();
    let ends = [i32::try_from(PAGES - 1).unwrap(), 0];
    // Two pages of three layers, of which the first layer's last page touches the third layer's first.
    assert_eq!(counts(&plan, &request(8, &ends, &ends)), (5, 5, 6));
}

#[test]
fn an_end_inside_a_page_is_rounded_up_where_that_takes_fewer() {
    // Head by head: a page that is wanted in part is two runs for each of its four heads.
    let rank = Rank { layers: 1, ..Rank::new("e", (0, 1), "k[h n d] v[h n d]", 4, &[("n", 4), ("d", 8)]) }.build();
    let plan = Plan::new(&rank, &rank, Direction::Read).unwrap();
    let ids: Vec<i32> = (0..5).collect();
    assert_eq!(counts(&plan, &request(20, &ids, &ids)), (1, 1, 1));
    assert_eq!(counts(&plan, &request(18, &ids, &ids)), (9 - 1, 1, 1));
    assert_eq!(counts(&plan, &request(18, &[0, 2, 4, 6, 7], &[7, 5, 3, 1, 0])), (4 + 8, 5, 5));
}

/// `layers` layers of 2^26 pages of one byte.
fn wide(layers: usize) -> RankLayout {
    let rank = Rank::new("e", (0, 1), "n k[]", 1, &[("n", 1)]);
    Rank { heads: None, dtype: "u8", pages: 1 << 26, layers, ..rank }.build()
}

#[test]
fn ids_end_below_2_to_the_31_and_then_another_list_begins() {
    let plan_of = |layers| Plan::new(&wide(layers), &wide(layers), Direction::Read).unwrap();
    let last = (1 << 26) - 1;
    let one = request(1, &[last], &[last]);
    for (layers, lists) in [(31, vec![31]), (32, vec![32]), (33, vec![32, 1]), (65, vec![32, 32, 1])] {
        let plan = plan_of(layers);
        let prepared = plan.prepare().unwrap();
        let rows: Vec<usize> = prepared.iter().map(kvreshard::lower::Prepared::len).collect();
        assert_eq!(rows, lists, "{layers} layers");
        let pairing = Pairing::new(&plan, &one).unwrap();
        for (list, rows) in prepared.iter().zip(rows) {
            let descriptors = u64::try_from(rows).unwrap() << 26;
            assert_eq!((list.descriptors(Side::Local), list.descriptors(Side::Remote)), (descriptors, descriptors));
            let (mut here, mut there) = (vec![0; rows], vec![0; rows]);
            pairing.write_ids(list, &mut here, &mut there).unwrap();
            assert_eq!(here, there);
            assert_eq!(u64::try_from(here[rows - 1]).unwrap(), descriptors - 1);
        }
        let exact: usize = (0..prepared.len()).map(|list| pairing.lists(&prepared, list).unwrap().len()).sum();
        assert_eq!(exact, layers);
    }
    assert_eq!(plan_of(32).prepare().unwrap()[0].descriptors(Side::Local), 1 << 31);
}

#[test]
fn a_list_ends_where_either_side_has_no_more_ids() {
    let few = |layers| {
        let rank = Rank::new("e", (0, 1), "n k[]", 1, &[("n", 1)]);
        Rank { heads: None, dtype: "u8", layers, ..rank }.build()
    };
    let rows = |local: &RankLayout, remote: &RankLayout| -> Vec<usize> {
        let plan = Plan::new(local, remote, Direction::Read).unwrap();
        plan.prepare().unwrap().iter().map(kvreshard::lower::Prepared::len).collect()
    };
    assert_eq!((rows(&few(33), &wide(33)), rows(&wide(33), &few(33))), (vec![32, 1], vec![32, 1]));
    assert_eq!(rows(&few(33), &few(33)), [33]);
}

/// A transposition of 2,048 heads and 4,096 tokens of one byte: twice as many rows as may be.
#[test]
fn rows_that_are_too_many_are_refused_before_they_are_made() {
    let rank = |notation| {
        let rank = Rank::new("e", (0, 1), notation, 2048, &[("n", 4096)]);
        Rank { dtype: "u8", layers: 1, pages: 1, ..rank }.build()
    };
    let plan = Plan::new(&rank("h n k[]"), &rank("n h k[]"), Direction::Read).unwrap();
    let refused = Error::Limit { what: "rows of a prepared list".to_owned(), found: 1 << 23, limit: 1 << 22 };
    assert_eq!(plan.prepare().unwrap_err(), refused);
}

/// Pages follow one another on both sides; where either has a gap behind each, none is joined.
#[test]
fn ids_are_joined_where_pages_are_dense_on_both_sides() {
    let rank =
        |gap| Rank { layers: 1, gap, ..Rank::new("e", (0, 1), "h n k[d] v[d]", 2, &[("n", 4), ("d", 4)]) }.build();
    for (local, remote, posted) in [(0, 0, 1), (0, 8, 5), (8, 0, 5), (8, 8, 5)] {
        let plan = Plan::new(&rank(local), &rank(remote), Direction::Read).unwrap();
        let ids: Vec<i32> = (1..6).collect();
        assert_eq!(counts(&plan, &request(20, &ids, &ids)), (posted, posted, u64::try_from(posted).unwrap()));
    }
}

#[test]
fn a_row_of_more_than_2_to_the_31_pages_is_refused_by_name() {
    for (pages, fits) in [(1 << 31, true), ((1 << 31) + 1, false)] {
        let rank = Rank { pages, layers: 1, ..Rank::new("e", (0, 1), "n k[]", 1, &[("n", 1)]) };
        let rank = Rank { heads: None, dtype: "u8", ..rank }.build();
        let prepared = Plan::new(&rank, &rank, Direction::Read).unwrap().prepare();
        match prepared {
            Ok(lists) => assert!(fits && lists.len() == 1),
            Err(error) => assert!(
                !fits
                    && matches!(&error, Error::Limit { what, limit: 0x8000_0000, .. } if what == "descriptors of one row"),
                "{error}"
            ),
        }
    }
}

/// Tables are what NIXL is given; descriptors are what is looked at elsewhere. Buffers are used again.
#[test]
fn tables_hold_the_descriptors_and_nothing_of_before() {
    let rank =
        |engine, notation| Rank { layers: 2, ..Rank::new(engine, (0, 1), notation, 2, &[("n", 4), ("d", 4)]) }.build();
    let (mut here, mut there) = (vec![[7; 3]; 5], vec![[7; 3]]);
    // Pages of several runs, and pages of one, of which no two touch.
    for notation in ["n h k[d] v[d]", "h n k[d] v[d]"] {
        let plan = Plan::new(&rank("d", "h n k[d] v[d]"), &rank("p", notation), Direction::Read).unwrap();
        let prepared = plan.prepare().unwrap();
        for tokens in [16, 7, 4] {
            let pairing = Pairing::new(&plan, &request(tokens, &[5, 1, 3, 7], &[3, 4, 5, 7])).unwrap();
            pairing.write_lists(&prepared, 0, &mut here, &mut there).unwrap();
            let lists = pairing.lists(&prepared, 0).unwrap();
            assert!(!lists.is_empty() && !prepared[0].is_empty());
            let of = |one: &kvreshard::lower::Descriptor| {
                ([one.local, one.length, one.local_device.into()], [one.remote, one.length, one.remote_device.into()])
            };
            assert_eq!(
                here.iter().copied().zip(there.iter().copied()).collect::<Vec<_>>(),
                lists.iter().map(of).collect::<Vec<_>>()
            );
            assert_eq!(here.len(), there.len());
        }
        // A list that the plan does not have is empty.
        let pairing = Pairing::new(&plan, &request(4, &[0], &[0])).unwrap();
        pairing.write_lists(&prepared, 9, &mut here, &mut there).unwrap();
        assert!(here.is_empty() && there.is_empty());
    }
}

/// Two layers whose regions touch, of two devices on either side: each run has the devices of its own regions.
#[test]
fn descriptors_name_the_devices_of_their_regions() {
    let rank = |devices: [u32; 2]| {
        let rank = Rank { layers: 2, ..Rank::new("e", (0, 1), "h n k[d] v[d]", 2, &[("n", 4), ("d", 4)]) }.build();
        let mut parts = rank.parts().clone();
        let bytes = parts.regions[0].bytes();
        let region = |(at, device): (u64, u32)| Region::new((1 << 20) + at * bytes, bytes, device, MemoryKind::Dram);
        parts.regions = (0..).zip(devices).map(|one| region(one).unwrap()).collect();
        RankLayout::new(parts).unwrap()
    };
    let ends = [i32::try_from(PAGES - 1).unwrap(), 0, 3];
    for (local, remote) in [([0, 1], [3, 2]), ([1, 1], [2, 3]), ([5, 4], [6, 6])] {
        let plan = Plan::new(&rank(local), &rank(remote), Direction::Read).unwrap();
        let prepared = plan.prepare().unwrap();
        let pairing = Pairing::new(&plan, &request(12, &ends, &ends)).unwrap();
        let lists = pairing.lists(&prepared, 0).unwrap();
        kvreshard::verify::descriptors(plan.local(), plan.remote(), Direction::Read, &lists).unwrap();
        let devices: Vec<(u32, u32)> = lists.iter().map(|one| (one.local_device, one.remote_device)).collect();
        let of = |layer: usize| [(local[layer], remote[layer]); 3];
        assert_eq!(devices, [of(0), of(1)].concat());
        let table = prepared[0].table(Side::Remote);
        assert_eq!(table.chunks(5).map(|row| row[2]).collect::<Vec<_>>(), remote.map(u64::from));
    }
}
