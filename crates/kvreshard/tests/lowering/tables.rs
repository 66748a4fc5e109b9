//! The table of a chunk that a device reads: the same numbers as the chunk's moves, parts of one shape together.

use super::common::Rank;
use kvreshard::layout::{Layer, RankLayout, Segment, Shares};
use kvreshard::lower::{Batch, Moves, Pairing, Tiles};
use kvreshard::plan::{Direction, Plan};
use kvreshard::request::{Blocks, Request};
use kvreshard::{Error, Interval, Side};

fn rank(engine: &'static str, layers: usize) -> RankLayout {
    let pages = &[("n", 4), ("d", 8)];
    Rank { layers, ..Rank::new(engine, (0, 1), "k[h n d] v[h n d]", 2, pages) }.build()
}

/// Tiles of three layers, and the moves of five pages of each in chunks of seven pages.
fn made() -> (Tiles, Vec<Moves>) {
    let plan = Plan::new(&rank("a", 3), &rank("b", 3), Direction::Read).unwrap();
    let tiles = plan.packed_tiles(Side::Local).unwrap();
    let blocks = |ids: &[i32]| vec![Blocks::new(ids, 0)];
    let request = Request::new(Interval::from_zero(20), blocks(&[4, 0, 3, 1, 2]), blocks(&[0, 1, 2, 3, 4]));
    let pairing = Pairing::new(&plan, &request).unwrap();
    let chunk = tiles.lanes()[0].unit * 7;
    let moves = pairing.chunks(&tiles, chunk).unwrap();
    let moves = moves.iter().map(|chunk| pairing.moves(&tiles, chunk).unwrap()).collect();
    (tiles, moves)
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|eight| u64::from_ne_bytes(eight.try_into().unwrap())).collect()
}

fn ids(bytes: &[u8]) -> Vec<i32> {
    bytes.chunks_exact(4).map(|four| i32::from_ne_bytes(four.try_into().unwrap())).collect()
}

#[test]
fn a_table_has_the_numbers_of_the_moves() {
    let (tiles, all) = made();
    assert_eq!(all.len(), 3);
    for moves in &all {
        let needed = usize::try_from(moves.table_bytes().unwrap()).unwrap();
        let mut out = vec![0xEE; needed + 3];
        let table = moves.table(&tiles, 100, &mut out).unwrap();
        assert_eq!(out[needed..], [0xEE; 3]);
        let (pages, places) = (usize::try_from(table.pages).unwrap(), usize::try_from(table.places).unwrap());
        assert_eq!((pages, pages % 16, places % 16), (moves.parts.len() * 48, 0, 0));
        assert!(places - pages < moves.pages.len() * 4 + 16);
        assert_eq!(needed, places + moves.places.len() * 4);
        let mut bits = 0;
        let rows = numbers(&out[..pages]);
        for (row, part) in rows.chunks(6).zip(&moves.parts) {
            let lane = &tiles.lanes()[part.lane];
            let (first, count) = (u64::try_from(part.first).unwrap(), u64::try_from(part.count).unwrap());
            assert_eq!(row, [lane.address, lane.stride, lane.unit, part.offset, first, count]);
            bits |= lane.unit | part.offset;
        }
        assert_eq!(table.bits, bits);
        assert_eq!(ids(&out[pages..][..moves.pages.len() * 4]), moves.pages);
        assert_eq!(ids(&out[places..needed]), moves.places);
        let most = moves.parts.iter().map(|part| part.count).max().unwrap();
        assert_eq!(table.batches, [Batch { shape: 0, row: 0, parts: moves.parts.len(), pages: most }]);
    }
}

#[test]
fn launches_are_cut_where_they_are_told_to_be() {
    let (tiles, all) = made();
    let moves = &all[1];
    assert_eq!(moves.parts.iter().map(|part| part.count).collect::<Vec<_>>(), [3, 4]);
    let mut out = vec![0; 4096];
    for most in [0, 1] {
        let batches = moves.table(&tiles, most, &mut out).unwrap().batches;
        let of = |row, pages| Batch { shape: 0, row, parts: 1, pages };
        assert_eq!(batches, [of(0, 3), of(1, 4)], "{most} at most");
    }
}

#[test]
fn what_does_not_fit_and_what_is_of_other_tiles_is_refused() {
    let (tiles, all) = made();
    let needed = all[1].table_bytes().unwrap();
    let mut short = vec![0; usize::try_from(needed).unwrap() - 1];
    let refused = Error::Limit { what: "bytes of a chunk's table".to_owned(), found: needed, limit: needed - 1 };
    assert_eq!(all[1].table(&tiles, 9, &mut short).unwrap_err(), refused);
    let fewer = Plan::new(&rank("a", 1), &rank("b", 1), Direction::Read).unwrap().packed_tiles(Side::Local).unwrap();
    let last = all[2].parts.iter().map(|part| part.lane).find(|lane| *lane >= fewer.lanes().len()).unwrap();
    let refused = all[2].table(&fewer, 9, &mut vec![0; 4096]).unwrap_err();
    let (found, limit) = (u64::try_from(last).unwrap(), u64::try_from(fewer.lanes().len()).unwrap());
    assert_eq!(refused, Error::Limit { what: "lane of a chunk".to_owned(), found, limit });
}

/// Three pages of 3 bytes, then one layer whose pages have 8: it begins at byte 9, which has a bit of the 8.
#[test]
fn bits_are_those_of_all_units_and_offsets() {
    let rank = |engine| {
        let rank = Rank {
            layers: 2,
            heads: None,
            dtype: "u8",
            ..Rank::new(engine, (0, 1), "n k[d]", 1, &[("n", 1), ("d", 8)])
        };
        let mut parts = rank.build().parts().clone();
        let page = super::common::format("n k[d]", &[("n", 1), ("d", 3)], "u8");
        let segment = Segment::new(0, page, 0, 8, 8, Shares::default()).unwrap();
        parts.layers[0] = Layer::new("layers.0", vec![segment], 0, []).unwrap();
        RankLayout::new(parts).unwrap()
    };
    let plan = Plan::new(&rank("a"), &rank("b"), Direction::Read).unwrap();
    let tiles = plan.packed_tiles(Side::Local).unwrap();
    let blocks = || vec![Blocks::new([0, 2, 4], 0)];
    let pairing = Pairing::new(&plan, &Request::new(Interval::from_zero(3), blocks(), blocks())).unwrap();
    let chunks = pairing.chunks(&tiles, 1 << 10).unwrap();
    let moves = pairing.moves(&tiles, &chunks[0]).unwrap();
    assert_eq!(moves.parts.iter().map(|part| part.offset).collect::<Vec<_>>(), [0, 9]);
    let mut out = vec![0; usize::try_from(moves.table_bytes().unwrap()).unwrap()];
    assert_eq!(moves.table(&tiles, 9, &mut out).unwrap().bits, 0b1011);
}
