//! Where the bytes of a plan go that take the way through a buffer, byte by byte: packed, and landed.
#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::as_conversions,
    missing_docs,
    unreachable_pub,
    reason = "a test says so by panicking"
)]

use std::collections::BTreeMap;

use kvreshard::Side;
use kvreshard::lower::{LandedCount, Pairing, Tile};
use kvreshard::plan::Plan;

/// (page offset, buffer offset) of every byte of a tile.
fn bytes_of(tile: &Tile) -> Vec<(u64, u64)> {
    let mut points = vec![(tile.page, tile.buffer)];
    for step in &tile.loops {
        let turn = |(page, buffer): (u64, u64), i| (page + i * step.page, buffer + i * step.buffer);
        points = points.into_iter().flat_map(|at| (0..step.extent).map(move |i| turn(at, i))).collect();
    }
    points.into_iter().flat_map(|(page, buffer)| (0..tile.run).map(move |byte| (page + byte, buffer + byte))).collect()
}

/// Destination to source byte addresses, through a packed buffer of `chunk` bytes at a time.
pub fn through_packed(plan: &Plan, pairing: &Pairing, chunk: u64) -> BTreeMap<u64, u64> {
    let (gather, scatter) = (plan.packed_tiles(Side::Remote).unwrap(), plan.packed_tiles(Side::Local).unwrap());
    let chunk = scatter.lanes().iter().map(|lane| lane.unit).max().unwrap_or(0).max(chunk);
    let chunks = pairing.chunks(&gather, chunk).unwrap();
    assert_eq!(chunks, pairing.chunks(&scatter, chunk).unwrap(), "both sides cut alike");
    let mut moved = BTreeMap::new();
    for one in &chunks {
        assert!(one.bytes <= chunk && one.bytes > 0);
        let mut buffer: BTreeMap<u64, u64> = BTreeMap::new();
        for (tiles, packing) in [(&gather, true), (&scatter, false)] {
            let moves = pairing.moves(tiles, one).unwrap();
            assert!(moves.pages.len() <= one.parts.iter().map(|part| part.pairs).sum());
            for (part, cut) in moves.parts.iter().zip(&one.parts) {
                let lane = &tiles.lanes()[part.lane];
                let (local, remote) = pairing.lane_pages(lane).unwrap();
                let pages = if packing { remote } else { local };
                assert_eq!(&moves.pages[part.first..][..part.count], &pages[cut.first..][..cut.pairs]);
                let stretch = moves.pages[part.first..][..part.count].iter().zip(&moves.places[part.first..]);
                for (page, place) in stretch {
                    let base = lane.address + u64::try_from(*page).unwrap() * lane.stride;
                    let place = part.offset + u64::try_from(*place).unwrap() * lane.unit;
                    for (at, staged) in tiles.shapes()[lane.shape].iter().flat_map(bytes_of) {
                        if packing {
                            assert!(buffer.insert(place + staged, base + at).is_none(), "byte staged twice");
                        } else {
                            assert!(moved.insert(base + at, buffer[&(place + staged)]).is_none(), "byte written twice");
                        }
                    }
                }
            }
        }
        assert_eq!(buffer.len() as u64, one.bytes, "a packed chunk has no holes");
    }
    moved
}

/// The same through landed pages, holes of up to `hole` bytes read along.
pub fn through_landing(plan: &Plan, pairing: &Pairing, chunk: u64, hole: u64) -> BTreeMap<u64, u64> {
    let landed = plan.landed(hole).unwrap();
    let chunk = landed.landings().iter().map(|landing| landing.bytes).max().unwrap_or(0).max(chunk);
    let mut moved = BTreeMap::new();
    let mut count = LandedCount::default();
    for one in pairing.landed_chunks(&landed, chunk).unwrap() {
        assert!(one.bytes <= chunk && one.bytes > 0);
        let mut buffer: BTreeMap<u64, u64> = BTreeMap::new();
        for read in pairing.landed_reads(&landed, &one, 1 << 40, 0).unwrap() {
            count.posted += 1;
            count.bytes += read.length;
            for byte in 0..read.length {
                assert!(
                    buffer.insert(read.local - (1 << 40) + byte, read.remote + byte).is_none(),
                    "byte landed twice"
                );
            }
        }
        let moves = one.moves();
        assert_eq!(moves.parts.len(), one.parts.len());
        for part in &moves.parts {
            let lane = &landed.tiles().lanes()[part.lane];
            let stretch = moves.pages[part.first..][..part.count].iter().zip(&moves.places[part.first..]);
            for (page, place) in stretch {
                let base = lane.address + u64::try_from(*page).unwrap() * lane.stride;
                let place = part.offset + u64::try_from(*place).unwrap() * lane.unit;
                for (at, staged) in landed.tiles().shapes()[lane.shape].iter().flat_map(bytes_of) {
                    assert!(moved.insert(base + at, buffer[&(place + staged)]).is_none(), "byte written twice");
                }
            }
        }
    }
    assert_eq!(pairing.landed_count(&landed, chunk).unwrap(), count);
    moved
}
