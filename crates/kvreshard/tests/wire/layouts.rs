//! The message of a layout: golden bytes and fingerprints, sizes, and bytes that are cut, flipped or random.

use super::common::{Rank, format, name, position};
use kvreshard::layout::{Group, Layer, MemoryKind, Position, RankLayout, RankParts, Region, Segment, Shares};
use kvreshard::wire::{HostRegion, RegionTag, RegionTags};
use kvreshard::{Error, Interval};
use proptest::prelude::*;

const D: (&str, u64) = ("d", 128);
const N: (&str, u64) = ("n", 16);
const SHUFFLE: &str = "k[h d/8 n d%8] v[h n/8 d n%8]";

fn small() -> RankLayout {
    Rank { layers: 2, pages: 4, ..Rank::new("prefill-0", (1, 2), "h n k[d] v[d]", 2, &[("n", 2), ("d", 2)]) }.build()
}

/// The message of [`small`], byte by byte as docs/handshake.md explains it.
fn golden() -> Vec<u8> {
    let mut bytes = vec![0x92, 0x01, 0x89];
    let raw = |bytes: &mut Vec<u8>, texts: &[&str], tail: &[u8]| {
        for text in texts {
            bytes.push(0xa0 | u8::try_from(text.len()).unwrap());
            bytes.extend(text.bytes());
        }
        bytes.extend_from_slice(tail);
    };
    raw(&mut bytes, &["engine", "prefill-0", "generation"], &[0]);
    raw(&mut bytes, &["place"], &[0x83]);
    raw(&mut bytes, &["tp"], &[0x92, 1, 2]);
    raw(&mut bytes, &["pp"], &[0x92, 0, 1]);
    raw(&mut bytes, &["cp"], &[0x93, 0, 1, 1]);
    // Two regions of 4 pages of 2 tokens, K and V of 2 bf16: 64 bytes, 4096 bytes apart.
    raw(&mut bytes, &["regions"], &[0x92]);
    raw(&mut bytes, &[], &[0x94, 0xce, 0, 0x10, 0, 0, 64, 0]);
    raw(&mut bytes, &["DRAM"], &[0x94, 0xce, 0, 0x10, 0x10, 0x40, 64, 0]);
    raw(&mut bytes, &["DRAM", "groups"], &[0x91, 0x83]);
    raw(&mut bytes, &["kind", "tokens", "pages_per_block"], &[1]);
    raw(&mut bytes, &["tokens_per_state"], &[0x92, 1, 1]);
    raw(&mut bytes, &["formats"], &[0x91, 0x84]);
    raw(&mut bytes, &["notation", "h n k[d] v[d]", "extents"], &[0x83]);
    raw(&mut bytes, &["d"], &[2]);
    raw(&mut bytes, &["h"], &[1]);
    raw(&mut bytes, &["n"], &[2]);
    raw(&mut bytes, &["types"], &[0x82]);
    raw(&mut bytes, &["k", "bf16", "v", "bf16", "fingerprint"], &[0xc4, 16]);
    bytes.extend(hex("a9c749ef302fd201e08a21b5b2b8c97a"));
    raw(&mut bytes, &["kinds"], &[0x91, 0x83]);
    raw(&mut bytes, &["group"], &[0]);
    raw(&mut bytes, &["totals"], &[0x81]);
    raw(&mut bytes, &["h"], &[2]);
    raw(&mut bytes, &["segments"], &[0x91, 0x94, 0, 4, 16, 0x81]);
    raw(&mut bytes, &["h"], &[0x92, 1, 2]);
    raw(&mut bytes, &["templates"], &[0x91]);
    raw(&mut bytes, &["layers.#", "layers"], &[0x92]);
    raw(&mut bytes, &[], &[0x93, 0x92, 0, 0, 0, 0x91, 0x92, 0, 0]);
    raw(&mut bytes, &[], &[0x93, 0x92, 0, 1, 0, 0x91, 0x92, 1, 0]);
    bytes
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[at * 2..at * 2 + 2], 16).unwrap()).collect()
}

#[test]
fn the_message_is_these_bytes() {
    assert_eq!(small().to_bytes().unwrap(), golden());
    assert_eq!(RankLayout::from_bytes(&golden()).unwrap(), small());
}

/// Computed once by hand-written Python from the definition in [`kvreshard::format::Fingerprint`]; any build must find the same.
#[test]
fn fingerprints_are_the_same_everywhere() {
    for (notation, extents, dtype, expected) in [
        (
            "h n k[d] v[d]",
            &[("h", 8), N, D][..],
            "bf16",
            "f152cbd96922eafacf97523da0df1f42954f90eae898046fcd26872eb87201b0",
        ),
        (
            "n h k[d] v[d]",
            &[("h", 8), N, D],
            "bf16",
            "8b53bde947c7d94d1171f5cf792a1f72209cfce01f6383a8b31b740dc5727bc7",
        ),
        (
            "k[n h d] v[n h d]",
            &[("h", 8), N, D],
            "bf16",
            "382d841d665b73052e55b887c4d068060741cd458640af7c1f6d6508b87c0599",
        ),
        (SHUFFLE, &[("h", 8), N, D], "bf16", "43ecffe98d340b1b152af121b998748492271b2dbc9a0c978f600bc1447832f3"),
        (
            "k[n/16 h d/8 n%16 d%8] pad[64] v[d]",
            &[("h", 8), N, D],
            "f16",
            "28e1426c8b302efdecb0cd52ba548325f66b4baaf59d9b9cdb4f2e01753fce20",
        ),
        (
            "c[n r] cs[n s] pad[p]",
            &[("n", 64), ("r", 576), ("s", 8), ("p", 64)],
            "u8",
            "38866ab8bf0e2066d2e8fdb0178096b0936b1bb1ba8f95827eefbd71f4dabcc4",
        ),
        ("4 k[2 3] v[]", &[], "f8e4m3fn", "775f16f97a9dd2ad2ab399b881f055491ebf2209b4dde9c0365b52c0daf3fbfb"),
    ] {
        assert_eq!(format(notation, extents, dtype).fingerprint().to_string(), expected, "{notation}");
    }
}

#[test]
fn eighty_equal_layers_are_under_4_kib_and_a_thousand_segments_under_64() {
    let rank =
        Rank { layers: 80, base: 0x7f00_0000_0000, ..Rank::new("decode-7", (3, 8), SHUFFLE, 8, &[N, D]) }.build();
    let bytes = rank.to_bytes().unwrap();
    assert!(bytes.len() < 4 << 10, "{} bytes", bytes.len());
    assert_eq!(RankLayout::from_bytes(&bytes).unwrap(), rank);

    let planes = planes(1000);
    let bytes = planes.to_bytes().unwrap();
    assert!(bytes.len() < 64 << 10, "{} bytes", bytes.len());
    assert_eq!(RankLayout::from_bytes(&bytes).unwrap(), planes);
}

/// One plane and one region a head, 10 heads a layer, at addresses that take nine bytes each.
fn planes(count: u64) -> RankLayout {
    let plane = format("n k[d] v[d]", &[N, D], "bf16");
    let (bytes, heads) = (plane.page_bytes() * 64, 10);
    let mut regions = Vec::new();
    let mut layers = Vec::new();
    for layer in 0..count / heads {
        let mut segments = Vec::new();
        for head in 0..heads {
            let base = 0x7f12_3456_0000 + (layer * heads + head) * (bytes + 4096);
            regions.push(Region::new(base, bytes, 0, MemoryKind::Vram).unwrap());
            let share = Shares::new([(name("h"), Interval::new(head, head + 1).unwrap())]);
            segments.push(Segment::new(regions.len() - 1, plane.clone(), 0, 64, plane.page_bytes(), share).unwrap());
        }
        layers.push(Layer::new(format!("model.layers.{layer}.attn"), segments, 0, [(name("h"), heads)]).unwrap());
    }
    RankLayout::new(RankParts {
        engine: "prefill".to_owned(),
        generation: 3,
        position: Position::ALONE,
        regions,
        groups: vec![Group::PLAIN],
        layers,
    })
    .unwrap()
}

#[test]
fn names_come_back_as_they_were() {
    for given in [
        "",
        "layers.0",
        "layers.007.attn",
        "a.1.b.22.c",
        "#",
        "layers.#.3",
        "18446744073709551615",
        "18446744073709551616",
        "größe.3",
        "9",
        "1.2.3.4.5.6.7.8.9.10.11.12.13.14.15.16.17.18.19.20.21.22.23.24.25.26.27.28.29.30.31.32.33.34",
    ] {
        let mut parts = small().parts().clone();
        let segment = parts.layers[0].segments().to_vec();
        parts.layers = vec![Layer::new(given, segment, 0, [(name("h"), 2)]).unwrap()];
        let rank = RankLayout::new(parts).unwrap();
        let back = RankLayout::from_bytes(&rank.to_bytes().unwrap()).unwrap();
        assert_eq!(back.layers()[0].name(), given);
    }
}

#[test]
fn every_cut_and_every_flipped_byte_is_refused_or_a_layout() {
    let bytes = planes(20).to_bytes().unwrap();
    for end in 0..bytes.len() {
        let error = RankLayout::from_bytes(&bytes[..end]).unwrap_err();
        assert!(matches!(error, Error::Wire { .. }), "cut at {end}: {error}");
    }
    let mut longer = bytes.clone();
    longer.push(0xc0);
    assert!(RankLayout::from_bytes(&longer).unwrap_err().to_string().contains("bytes follow"));
    for at in 0..bytes.len() {
        for flip in [1, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] ^= flip;
            if let Ok(layout) = RankLayout::from_bytes(&changed) {
                assert_eq!(RankLayout::from_bytes(&layout.to_bytes().unwrap()).unwrap(), layout);
            }
        }
    }
}

proptest! {
    #[test]
    fn random_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(RankLayout::from_bytes(&bytes).is_err());
        prop_assert!(RegionTags::from_bytes(&bytes).is_err());
    }

    #[test]
    fn random_bytes_after_a_good_head_are_refused(tail in proptest::collection::vec(any::<u8>(), 0..200), keep in 3_usize..300) {
        let mut bytes = golden();
        bytes.truncate(keep);
        bytes.extend(tail);
        if let Ok(layout) = RankLayout::from_bytes(&bytes) {
            prop_assert_eq!(layout, small());
        }
    }
}

#[test]
fn tags_and_addresses_make_the_layout_again() {
    for rank in [small(), planes(40)] {
        let tags = RegionTags::of(&rank);
        let bytes = tags.to_bytes().unwrap();
        assert_eq!(RegionTags::from_bytes(&bytes).unwrap(), tags);
        let host: Vec<HostRegion> = rank
            .layers()
            .iter()
            .flat_map(Layer::segments)
            .map(|segment| {
                let region = rank.regions()[segment.region()];
                HostRegion {
                    base: region.base() + segment.offset(),
                    page_bytes: segment.format().page_bytes(),
                    page_stride: segment.page_stride(),
                    pages: segment.pages(),
                    device: region.device(),
                    memory: region.memory(),
                }
            })
            .collect();
        let joined = RegionTags::from_bytes(&bytes).unwrap().join(rank.engine(), rank.generation(), &host).unwrap();
        assert_eq!(joined, rank);

        let mut other = host.clone();
        other[1].page_bytes *= 2;
        let error = tags.join("e", 0, &other).unwrap_err();
        assert!(matches!(error, Error::Layout { layer: Some(_), field, .. } if field == "page bytes of the host"));
        let error = tags.join("e", 0, &host[1..]).unwrap_err();
        assert!(matches!(error, Error::Layout { field, .. } if field == "regions of the host"));
        let mut partly = tags.clone();
        partly.regions[0] = None;
        let back = RegionTags::from_bytes(&partly.to_bytes().unwrap()).unwrap();
        assert_eq!(back, partly);
        // A layer that is described in part is one of fewer segments; one without any tag is left out.
        let left = back.join("e", 0, &host).unwrap();
        let segments = |layout: &RankLayout| layout.layers().iter().map(|layer| layer.segments().len()).sum::<usize>();
        assert_eq!(segments(&left), segments(&rank) - 1);
    }
}

#[test]
fn a_host_without_addresses_sends_little() {
    let rank = Rank { layers: 80, ..Rank::new("d", (0, 1), SHUFFLE, 8, &[N, D]) }.build();
    let bytes = RegionTags::of(&rank).to_bytes().unwrap();
    assert!(bytes.len() < 1024, "{}", bytes.len());
}

#[test]
fn long_names_of_many_regions_are_read() {
    let mut tags = RegionTags::of(&small());
    let one = tags.regions[0].clone().unwrap();
    let named = |at| RegionTag { layer: format!("{}{at}", "x".repeat(1000)).into(), ..one.clone() };
    tags.regions = (0..20).map(|at| Some(named(at))).collect();
    assert_eq!(RegionTags::from_bytes(&tags.to_bytes().unwrap()).unwrap(), tags);
}

#[test]
fn position_is_part_of_the_message() {
    let rank = small();
    assert_eq!(RankLayout::from_bytes(&rank.to_bytes().unwrap()).unwrap().position(), position((1, 2)));
}
