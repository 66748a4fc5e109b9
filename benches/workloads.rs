//! Ranks and requests that the benches share.

use std::collections::BTreeMap;

use kvreshard::Interval;
use kvreshard::engine::Engine;
use kvreshard::format::{ElementType, PageFormat, Types};
use kvreshard::layout::{Group, Layer, MemoryKind, Position, RankLayout, RankParts, Region, Segment, Shares};
use kvreshard::name::Name;
use kvreshard::request::{Blocks, Request};
use kvreshard::shard::Place;

/// A rank of 80 layers of two-slot pages: K and V are two runs wherever heads are cut.
pub(crate) fn rank(tp: (u64, u64), pages: u64) -> RankLayout {
    let tp = Place::new(tp.0, tp.1).unwrap();
    let held = tp.share(64).unwrap().len();
    let extents: BTreeMap<String, u64> =
        [("h", held), ("n", 16), ("d", 128)].map(|(axis, extent)| (axis.to_owned(), extent)).into();
    let format = PageFormat::new("k[h n d] v[h n d]", &extents, &Types::all(ElementType::Bf16)).unwrap();
    let bytes = format.page_bytes() * pages;
    let mut regions = Vec::new();
    let mut layers = Vec::new();
    for layer in 0..80_u32 {
        regions.push(Region::new((1 << 40) + u64::from(layer) * (bytes + 4096), bytes, 0, MemoryKind::Dram).unwrap());
        let at = usize::try_from(layer).unwrap();
        let segment = Segment::new(at, format.clone(), 0, pages, format.page_bytes(), Shares::default()).unwrap();
        let totals = [(Name::new("h").unwrap(), 64)];
        layers.push(Layer::new(format!("model.layers.{layer}.self_attn.attn"), vec![segment], 0, totals).unwrap());
    }
    RankLayout::new(RankParts {
        engine: "bench".to_owned(),
        generation: 0,
        position: Position { tp, ..Position::ALONE },
        regions,
        groups: vec![Group::PLAIN],
        layers,
    })
    .unwrap()
}

/// The first layer alone.
pub(crate) fn single(rank: &RankLayout) -> RankLayout {
    let mut parts = rank.parts().clone();
    parts.layers.truncate(1);
    RankLayout::new(parts).unwrap()
}

/// An engine of `size` ranks.
pub(crate) fn engine(size: u64) -> Engine {
    Engine::new((0..size).map(|at| rank((at, size), 1_000)).collect()).unwrap()
}

/// Block ids that ascend on this side, and never continue one another on both.
pub(crate) fn request(blocks: i32) -> Request {
    let local: Vec<i32> = (0..blocks).collect();
    let remote = local.iter().map(|id| if id % 2 == 0 { id + 1 } else { id - 1 }).collect();
    of_blocks(local, remote)
}

/// Every one of `blocks` block ids, a power of two, in no order on either side.
pub(crate) fn shuffled(blocks: i32) -> Request {
    let mixed =
        |factor: i32, start: i32| (0..blocks).map(move |id| id.wrapping_mul(factor).wrapping_add(start) & (blocks - 1));
    of_blocks(mixed(40_503, 7).collect(), mixed(25_717, 99).collect())
}

fn of_blocks(local: Vec<i32>, remote: Vec<i32>) -> Request {
    let blocks = local.len();
    let tokens = Interval::from_zero(u64::try_from(blocks).unwrap() * 16);
    Request::new(tokens, vec![Blocks::new(local, 0)], vec![Blocks::new(remote, 0)])
}
