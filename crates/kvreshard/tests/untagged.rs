//! Peers that do not say how their pages are built: hostile handshakes, what may be assumed, and the rows of an audit.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    reason = "a test says so by panicking"
)]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::Rank;
use kvreshard::check::audit::{Facts, ROWS, audit};
use kvreshard::check::untagged::{Untagged, UntaggedPeer, check_untagged};
use kvreshard::check::{Options, Report, Severity, StockHandshake};
use kvreshard::layout::Position;
use kvreshard::shard::Place;
use kvreshard::{Error, plan::Plan};
use proptest::prelude::*;
use rmp_serde::encode::to_vec_named;
use serde::Serialize;

#[derive(Clone, Serialize)]
struct Stock {
    engine_id: String,
    kv_caches_base_addr: Vec<u64>,
    device_id: u64,
    num_blocks: u64,
    block_lens: Vec<u64>,
    block_strides: Vec<u64>,
    kv_cache_layout: String,
    block_size: u64,
    ssm_sizes: (u64, u64),
    attn_backend_name: String,
    physical_blocks_per_logical_kv_block: u64,
    region_names: Option<Vec<String>>,
    region_mem_types: Option<Vec<String>>,
    dcp_size: u64,
    pcp_size: u64,
    region_members: Vec<Vec<String>>,
    packed_member_layouts: BTreeMap<String, (u64, u64)>,
    a_field_of_another_version: Option<(u64, String)>,
}

fn stock() -> Stock {
    Stock {
        engine_id: "stock".to_owned(),
        kv_caches_base_addr: vec![1 << 20, 1 << 30],
        device_id: 0,
        num_blocks: 8,
        block_lens: vec![65536; 2],
        block_strides: vec![65536; 2],
        kv_cache_layout: "LBHNC".to_owned(),
        block_size: 16,
        ssm_sizes: (0, 0),
        attn_backend_name: "FLASH_ATTN".to_owned(),
        physical_blocks_per_logical_kv_block: 1,
        region_names: None,
        region_mem_types: None,
        dcp_size: 1,
        pcp_size: 1,
        region_members: Vec::new(),
        packed_member_layouts: BTreeMap::new(),
        a_field_of_another_version: Some((1, "ignored".to_owned())),
    }
}

fn read(change: impl FnOnce(&mut Stock)) -> Result<StockHandshake, Error> {
    let mut fields = stock();
    change(&mut fields);
    StockHandshake::from_bytes(&to_vec_named(&fields).unwrap())
}

fn peer(change: impl FnOnce(&mut Stock)) -> UntaggedPeer {
    UntaggedPeer { handshake: read(change).unwrap(), position: Position::ALONE }
}

fn local(notation: &str) -> Rank {
    Rank::new("here", (0, 1), notation, 8, &[("n", 16), ("d", 128)])
}

fn checked(rank: &Rank, peer: &UntaggedPeer, policy: Untagged) -> Report {
    check_untagged(&rank.build(), peer, policy, &Options::default())
}

#[test]
fn what_contradicts_itself_is_refused() {
    for (change, field) in [
        ((|s: &mut Stock| s.block_lens.truncate(1)) as fn(&mut Stock), "block_lens"),
        (|s| s.block_strides.push(1), "block_strides"),
        (|s| s.region_names = Some(vec![]), "region_names"),
        (|s| s.region_mem_types = Some(vec!["VRAM".to_owned(); 3]), "region_mem_types"),
        (|s| s.block_size = 0, "block_size"),
        (|s| s.num_blocks = 0, "num_blocks"),
        (|s| s.dcp_size = 0, "dcp_size"),
        (|s| s.physical_blocks_per_logical_kv_block = 0, "physical_blocks_per_logical_kv_block"),
    ] {
        let Error::Wire { at, .. } = read(change).unwrap_err() else { panic!("{field}") };
        assert_eq!(at, format!("handshake, {field}"));
    }
    let shares = peer(|s| {
        s.region_members = vec![vec!["layers.0".to_owned(), "layers.1".to_owned()]; 2];
    });
    let error = checked(&local("h n k[d] v[d]"), &shares, Untagged::IfStandard).raise().unwrap_err();
    assert!(error.to_string().contains("nothing says where each begins"), "{error}");
}

#[test]
fn regions_without_names_go_by_the_natural_order_of_layers() {
    let mut rank = local("h n k[d] v[d]");
    rank.layers = 12;
    let many = peer(|s| {
        s.kv_caches_base_addr = (1..=12).map(|at| at << 30).collect();
        s.block_lens = vec![65536; 12];
        s.block_strides = vec![65536; 12];
    });
    let assumed = many.assume(&rank.build(), Untagged::IfStandard).unwrap();
    let layer = assumed.layer("layers.10").unwrap();
    assert_eq!(assumed.regions()[layer.segments()[0].region()].base(), 11 << 30);
    let error = peer(|_| ()).assume(&rank.build(), Untagged::IfStandard).unwrap_err();
    assert!(matches!(error, Error::Layout { field, .. } if field == "regions of the peer"));
}

#[test]
fn only_standard_pages_are_assumed() {
    let packed = local("h n k[d] v[d]");
    let one = peer(|_| ());
    let report = checked(&packed, &one, Untagged::IfStandard);
    assert_eq!((report.of(Severity::Error).count(), report.of(Severity::Warning).count()), (0, 1), "{report}");
    assert!(!checked(&packed, &one, Untagged::Refuse).is_accepted());
    for (notation, dtype, why) in [
        ("k[h d/8 n d%8] v[h n/8 d n%8]", "bf16", "another interior"),
        ("k[h n d] v[h n d]", "bf16", "slots"),
        ("h n k[d] v[d]", "f8e4m3fn", "8-bit elements"),
        ("h n k[d] v[d]", "f32", "32-bit elements"),
        ("h n v[d] k[d]", "bf16", "V before K"),
        ("h n k[d] v[d] ks[]", "bf16", "a third component"),
    ] {
        let rank = Rank { dtype, ..local(notation) };
        let report = checked(&rank, &one, Untagged::IfStandard);
        assert!(matches!(report.raise(), Err(Error::Untagged { layer: Some(_), .. })), "{why}: {report}");
        assert_eq!(report.of(Severity::Error).count(), 2, "one a layer: {report}");
    }
    // Heads in planes are no page of their own.
    let report = checked(&packed, &peer(|s| s.kv_cache_layout = "LHBNC".to_owned()), Untagged::IfStandard);
    assert!(report.raise().unwrap_err().to_string().contains("without heads and tokens"), "{report}");
    // Token-major by the layout's name: planned, with the other order.
    let report = checked(&packed, &peer(|s| s.kv_cache_layout = "LBNHC".to_owned()), Untagged::IfStandard);
    assert!(report.is_accepted() && report.to_string().contains("order of axes"), "{report}");
}

#[test]
fn the_peers_place_decides_its_heads() {
    let rank = local("h n k[d] v[d]").build();
    let half = |change: fn(&mut Stock)| UntaggedPeer {
        position: Position { tp: Place::new(1, 2).unwrap(), ..Position::ALONE },
        ..peer(change)
    };
    let error = half(|_| ()).assume(&rank, Untagged::IfStandard).unwrap_err();
    assert!(
        error.to_string().contains("32768 as standard pages") && error.to_string().contains("65536 in the peer's"),
        "{error}"
    );
    let assumed = half(|s| s.block_lens = vec![32768; 2]).assume(&rank, Untagged::IfStandard).unwrap();
    let plan = Plan::new(&rank, &assumed, kvreshard::plan::Direction::Read).unwrap();
    assert_eq!(plan.summary().unwrap().bytes, 2 * 32768);
    let dealt = peer(|s| s.dcp_size = 2).assume(&rank, Untagged::IfStandard).unwrap_err();
    assert!(matches!(dealt, Error::Layout { field, .. } if field.contains("context-parallel")));
}

#[test]
fn hostile_handshakes_are_refused() {
    let bytes = to_vec_named(&stock()).unwrap();
    for end in 0..bytes.len() {
        assert!(StockHandshake::from_bytes(&bytes[..end]).is_err(), "cut at {end}");
    }
    let rank = local("h n k[d] v[d]").build();
    for at in 0..bytes.len() {
        for flip in [1, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] ^= flip;
            if let Ok(handshake) = StockHandshake::from_bytes(&changed) {
                let peer = UntaggedPeer { handshake, position: Position::ALONE };
                check_untagged(&rank, &peer, Untagged::IfStandard, &Options::default());
            }
        }
    }
    let wraps = peer(|s| s.block_strides = vec![u64::MAX; 2]).assume(&rank, Untagged::IfStandard).unwrap_err();
    assert!(matches!(wraps, Error::Overflow { .. }), "{wraps}");
    let wraps =
        peer(|s| s.kv_caches_base_addr = vec![u64::MAX - 5; 2]).assume(&rank, Untagged::IfStandard).unwrap_err();
    assert!(matches!(wraps, Error::Overflow { .. }), "{wraps}");
    assert!(matches!(read(|s| s.engine_id = "x".repeat(2000)), Err(Error::Wire { .. })));
    assert!(matches!(StockHandshake::from_bytes(&vec![0; 1 << 23]), Err(Error::Limit { .. })));
}

proptest! {
    #[test]
    fn random_handshakes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(StockHandshake::from_bytes(&bytes).is_err());
    }
}

/// Rows of an audit, errors and warnings apart, row 12's standing advice to list all backends left out.
fn rows(
    local: (&StockHandshake, &Facts),
    remote: (&StockHandshake, &Facts),
) -> (BTreeSet<&'static str>, BTreeSet<&'static str>) {
    let report = audit(local, remote);
    let of = |severity| report.of(severity).filter_map(|f| f.row).collect();
    (of(Severity::Error), of(Severity::Warning))
}

fn facts(backend: &str) -> Facts {
    Facts { backends: vec![backend.to_owned()], heads: Some(8), ..Facts::default() }
}

#[test]
fn every_row_is_named() {
    type Change = fn(&mut Stock);
    let none: Change = |_| ();
    let tp = |size| Place::new(0, size).unwrap();
    let flash = |shuffle| Facts { platform: Some("gfx942".to_owned()), shuffle: Some(shuffle), ..facts("FLASH_ATTN") };
    let on = |platform: &str, facts: Facts| Facts { platform: Some(platform.to_owned()), ..facts };
    let typed = |dtype: &str, facts: Facts| Facts { cache_dtype: dtype.to_owned(), ..facts };
    let planes: Change = |s| s.kv_cache_layout = "LHBNC".to_owned();
    let mamba: Change = |s| s.ssm_sizes = (15360, 1 << 20);
    let three = |second: &str| Facts { backends: ["MLA", second, second].map(str::to_owned).to_vec(), ..facts("MLA") };
    let table: Vec<(&str, Change, Facts, Change, Facts)> = vec![
        ("1a", none, flash(true), none, flash(false)),
        ("1a", none, flash(true), none, on("sm90", facts("FLASH_ATTN"))),
        (
            "1b",
            none,
            Facts { shuffle: Some(true), ..on("gfx950", facts("MINIMAX_M3_SPARSE")) },
            none,
            on("sm90", facts("MINIMAX_M3_SPARSE")),
        ),
        ("1c", none, Facts { hash_enforced: false, ..facts("B12X") }, none, on("sm120", facts("FLASH_ATTN"))),
        ("2", none, Facts { tp: tp(2), ..facts("B12X") }, none, facts("B12X")),
        ("2", none, Facts { tp: tp(4), ..flash(true) }, none, flash(true)),
        ("3", planes, Facts { heads: Some(2), ..flash(true) }, planes, Facts { heads: Some(2), ..flash(false) }),
        (
            "4",
            none,
            on("sm100", typed("nvfp4", facts("FLASHINFER"))),
            none,
            on("sm90", typed("nvfp4", facts("FLASHINFER"))),
        ),
        (
            "4a",
            none,
            Facts { sparse_indexer: true, ..on("sm90", facts("FLASHMLA_SPARSE")) },
            none,
            Facts { sparse_indexer: true, ..on("sm100", facts("FLASHMLA_SPARSE")) },
        ),
        (
            "5",
            none,
            typed("fp8", on("gfx942", facts("TRITON_ATTN"))),
            none,
            typed("fp8", on("gfx950", facts("TRITON_ATTN"))),
        ),
        (
            "6",
            none,
            typed("turboquant_k8v4", on("gfx950", facts("TURBOQUANT"))),
            none,
            typed("turboquant_k8v4", on("sm90", facts("TURBOQUANT"))),
        ),
        (
            "6",
            none,
            typed("turboquant_k8v4", on("sm80", facts("TURBOQUANT"))),
            none,
            typed("turboquant_k8v4", on("sm90", facts("TURBOQUANT"))),
        ),
        (
            "7",
            none,
            Facts { isa: Some("amx".to_owned()), ..facts("CPU_ATTN") },
            none,
            Facts { isa: Some("vec".to_owned()), ..facts("CPU_ATTN") },
        ),
        ("8", |s| s.block_size = 64, flash(true), none, flash(true)),
        ("8", |s| s.block_size = 64, facts("DEEPSEEK_V32_INDEXER"), none, facts("DEEPSEEK_V32_INDEXER")),
        (
            "9",
            mamba,
            Facts { mamba_groups: Some(2), tp: tp(4), ..facts("MAMBA2_ATTN") },
            mamba,
            Facts { mamba_groups: Some(2), ..facts("MAMBA2_ATTN") },
        ),
        ("10", mamba, facts("MAMBA2_ATTN"), |s| s.ssm_sizes = (20480, 1 << 20), facts("MAMBA2_ATTN")),
        (
            "10",
            mamba,
            Facts { conv_rows: Some(3), ..facts("MAMBA2_ATTN") },
            mamba,
            Facts { conv_rows: Some(4), ..facts("MAMBA2_ATTN") },
        ),
        (
            "11",
            |s| s.dcp_size = 2,
            Facts { cp_interleave: Some(16), ..facts("FLASHMLA") },
            |s| s.dcp_size = 2,
            Facts { cp_interleave: Some(1), ..facts("FLASHMLA") },
        ),
        (
            "12",
            none,
            Facts { isa: Some("amx".to_owned()), ..three("CPU_ATTN") },
            none,
            Facts { isa: Some("vec".to_owned()), ..three("CPU_ATTN") },
        ),
        (
            "15",
            none,
            Facts { fused_cache_pass: Some(true), ..facts("ROCM_ATTN") },
            none,
            Facts { fused_cache_pass: Some(false), ..facts("ROCM_ATTN") },
        ),
    ];
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for (row, ours, our_facts, theirs, their_facts) in &table {
        let (a, b) = (read(ours).unwrap(), read(theirs).unwrap());
        for (local, remote) in [((&a, our_facts), (&b, their_facts)), ((&b, their_facts), (&a, our_facts))] {
            let (errors, warnings) = rows(local, remote);
            assert_eq!(
                errors,
                BTreeSet::from([*row]),
                "row {row}: {our_facts:?} with {their_facts:?}: also {warnings:?}"
            );
        }
        seen.insert(row);
    }
    // Two rows can only be suspected.
    let one = read(mamba).unwrap();
    let wide = Facts { tp: tp(16), mamba_groups: Some(16), ..facts("MAMBA2_ATTN") };
    let (_, warnings) = rows((&one, &Facts { mamba_groups: Some(16), ..facts("MAMBA2_ATTN") }), (&one, &wide));
    assert!(warnings.contains("13"));
    let (_, warnings) = rows((&one, &Facts { push: true, ..facts("MAMBA2_ATTN") }), (&one, &facts("MAMBA2_ATTN")));
    assert!(warnings.contains("14"));
    seen.extend(["13", "14"]);
    assert_eq!(seen, ROWS.iter().map(|(row, _)| *row).collect());
}

#[test]
fn what_is_not_known_is_asked_for() {
    let one = read(|_| ()).unwrap();
    let report = audit((&one, &Facts::default()), (&one, &Facts::default()));
    assert_eq!(report.of(Severity::Error).count(), 0, "{report}");
    let text = report.to_string();
    assert!(text.contains("row 1a") && text.contains("FLASH_ATTN of layer 0 (packed or AITER shuffle)"), "{text}");
    assert!(text.contains("row 12") && text.contains("list the backend of every layer"), "{text}");
    let known = Facts { platform: Some("sm90".to_owned()), ..facts("FLASH_ATTN") };
    assert!(audit((&one, &known), (&one, &known)).findings().is_empty());
    // Names that differ are refused by the stock hash; that is a note.
    let report = audit((&one, &known), (&one, &facts("B12X")));
    assert_eq!(report.of(Severity::Note).count(), report.findings().len());
}
