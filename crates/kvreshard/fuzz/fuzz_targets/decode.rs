//! Any bytes as a message: a typed error, or an object that survives its own message.
#![no_main]

use std::collections::BTreeMap;
use std::sync::LazyLock;

use kvreshard::check::untagged::{Untagged, UntaggedPeer, check_untagged};
use kvreshard::check::{Options, Severity, StockHandshake, check};
use kvreshard::format::{ElementType, PageFormat, Types};
use kvreshard::layout::{Group, Layer, MemoryKind, Position, RankLayout, RankParts, Region, Segment, Shares};
use kvreshard::name::Name;
use kvreshard::wire::RegionTags;
use kvreshard_fuzz::{Stage, pulse};
use libfuzzer_sys::fuzz_target;

/// This side of a handshake.
static LOCAL: LazyLock<RankLayout> = LazyLock::new(|| {
    let extents = BTreeMap::from([("h", 2), ("n", 16), ("d", 8)].map(|(axis, extent)| (axis.to_owned(), extent)));
    let format = PageFormat::new("h n k[d] v[d]", &extents, &Types::all(ElementType::Bf16)).unwrap();
    let stride = format.page_bytes();
    let segment = Segment::new(0, format, 0, 8, stride, Shares::default()).unwrap();
    let totals = [(Name::new("h").unwrap(), 2)];
    RankLayout::new(RankParts {
        engine: "here".to_owned(),
        generation: 0,
        position: Position::ALONE,
        regions: vec![Region::new(1 << 20, 1 << 20, 0, MemoryKind::Dram).unwrap()],
        groups: vec![Group::PLAIN],
        layers: vec![Layer::new("layers.0", vec![segment], 0, totals).unwrap()],
    })
    .unwrap()
});

fuzz_target!(|data: &[u8]| {
    pulse(Stage::Begun);
    if let Ok(layout) = RankLayout::from_bytes(data) {
        pulse(Stage::Valid);
        // What was read may be written longer, and so over the bound.
        if let Ok(again) = layout.to_bytes() {
            assert_eq!(RankLayout::from_bytes(&again).unwrap(), layout);
        }
        if check(&LOCAL, &layout, &Options::default()).of(Severity::Error).next().is_none() {
            pulse(Stage::Accepted);
        }
    }
    if let Ok(tags) = RegionTags::from_bytes(data) {
        if let Ok(again) = tags.to_bytes() {
            assert_eq!(RegionTags::from_bytes(&again).unwrap(), tags);
        }
    }
    if let Ok(handshake) = StockHandshake::from_bytes(data) {
        let peer = UntaggedPeer { handshake, position: Position::ALONE };
        check_untagged(&LOCAL, &peer, Untagged::IfStandard, &Options::default());
    }
});
