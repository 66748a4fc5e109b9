//! What a check finds, and the sentences that a person reads.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test says so by panicking"
)]

mod common;

use common::{Rank, context, format, name};
use kvreshard::check::{Options, Report, Severity, Strategy, check, check_engines};
use kvreshard::engine::Engine;
use kvreshard::format::Aspect;
use kvreshard::layout::{
    Group, GroupKind, Layer, MemoryKind, Position, RankLayout, RankParts, Region, Segment, Shares, TokensPerState,
};
use kvreshard::plan::{Direction, Plan};
use kvreshard::{Error, Side};

const D: (&str, u64) = ("d", 128);
const N: (&str, u64) = ("n", 16);
const PACKED: &str = "h n k[d] v[d]";
const SHUFFLE: &str = "k[h d/8 n d%8] v[h n/8 d n%8]";

fn rank(notation: &str) -> Rank {
    Rank::new("e", (0, 1), notation, 8, &[N, D])
}

fn run(local: &RankLayout, remote: &RankLayout) -> Report {
    check(local, remote, &Options::default())
}

fn texts(report: &Report, severity: Severity) -> Vec<String> {
    report.of(severity).map(|finding| finding.cause.to_string()).collect()
}

/// What a check calls an error is what planning raises, and the other way round.
fn agrees_with_the_plan(local: &RankLayout, remote: &RankLayout) {
    for direction in [Direction::Read, Direction::Write] {
        let report = check(local, remote, &Options { direction, ..Options::default() });
        match Plan::new(local, remote, direction) {
            Ok(_) => assert_eq!(texts(&report, Severity::Error), Vec::<String>::new()),
            Err(error) => assert!(report.of(Severity::Error).any(|f| f.cause == error), "{error}\n{report}"),
        }
    }
}

#[test]
fn equal_sides_have_nothing_to_report() {
    let report = run(&rank(PACKED).build(), &rank(PACKED).build());
    assert!(report.findings().is_empty(), "{report}");
    assert_eq!((report.advice(), report.raise()), (Strategy::Direct, Ok(())));
    let direct = report.outlook(Strategy::Direct).unwrap();
    assert_eq!((direct.runs_per_page, direct.bytes_per_run), (Some(2), Some(65536)));
    assert_eq!(report.strategies().len(), 3);
}

#[test]
fn everything_is_found_not_only_the_first() {
    let local = Rank { dtype: "bf16", layers: 3, ..rank("h n k[d] v[d]") }.build();
    let remote = Rank { dtype: "f16", layers: 2, heads: Some(16), ..rank("h n k[d] ks[]") };
    let remote = Rank { extents: vec![N, ("d", 64)], ..remote }.build();
    let report = run(&local, &remote);
    assert_eq!(
        texts(&report, Severity::Error)[..6],
        [
            "layer layers.2: no rank of the remote side holds the layer",
            "layer layers.0: total of axis h differs: local 8, remote 16; every rank of both engines must count the members of \
             the whole layer alike",
            "layer layers.0: component ks differs: local absent in `h n k[d] v[d]`, remote present in `h n k[d] ks[]`",
            "layer layers.0: component v differs: local present in `h n k[d] v[d]`, remote absent in `h n k[d] ks[]`",
            "layer layers.0: element type of component k differs: local bf16 (`h n k[d] v[d]`), remote f16 (`h n k[d] ks[]`); \
             values would have to be converted; run both engines with one cache type",
            "layer layers.0: extent of axis d in component k differs: local 128 (`h n k[d] v[d]`), remote 64 (`h n k[d] ks[]`)",
        ]
    );
    // The same five of the second layer; lines that differ in the layer alone are one line of the text.
    assert_eq!(texts(&report, Severity::Error).len(), 11);
    assert_eq!(report.to_string().matches("(and 1 more layers)").count(), 5, "{report}");
    assert_eq!(report.advice(), Strategy::Refuse);
    assert!(matches!(report.raise(), Err(Error::Missing { side: Side::Remote, .. })));
    agrees_with_the_plan(&local, &remote);
}

#[test]
fn encodings_that_share_a_name_are_two() {
    let side = |dtype| Rank { dtype, ..rank(PACKED) }.build();
    let report = run(&side("f8e4m3fn"), &side("f8e4m3fnuz"));
    let Error::Incompatible { layer, field, local, remote, remedy } = report.raise().unwrap_err() else { panic!() };
    assert_eq!((layer.as_deref(), field.as_str()), (Some("layers.0"), "element type of component k"));
    assert!(local.starts_with("f8e4m3fn (") && remote.starts_with("f8e4m3fnuz ("));
    assert!(remedy.unwrap().contains("one cache type"));
    agrees_with_the_plan(&side("f8e4m3fn"), &side("f8e4m3fnuz"));
}

#[test]
fn another_interior_is_convertible_and_refused_only_when_forced_direct() {
    let (local, remote) = (rank(PACKED).build(), rank(SHUFFLE).build());
    let report = run(&local, &remote);
    assert!(report.is_accepted());
    assert_eq!(report.advice(), Strategy::Packed);
    assert_eq!(
        texts(&report, Severity::Note)[0],
        "layer layers.0: page format differs: local `h n k[d] v[d]`, remote `k[h d/8 n d%8] v[h n/8 d n%8]`; the same elements in \
         another arrangement (digits of k: `h n k[d]` against `k[h d/8 n d%8]`; digits of v: `h n v[d]` against \
         `v[h n/8 d n%8]`): 18432 descriptors a page directly, or a conversion (landed, packed)"
    );

    let forced = Options { strategy: Some(Strategy::Direct), ..Options::default() };
    let report = check(&local, &remote, &forced);
    let error = report.raise().unwrap_err();
    let Error::Incompatible { layer: Some(layer), local: ours, remote: theirs, remedy: Some(remedy), .. } = &error
    else {
        panic!("{error}")
    };
    assert_eq!(
        (layer.as_str(), ours.as_str(), theirs.as_str()),
        ("layers.0", &*format!("`{PACKED}`"), &*format!("`{SHUFFLE}`"))
    );
    assert!(remedy.contains("a conversion exists: choose the strategy landed or packed"), "{remedy}");
    assert!(remedy.contains("18432 descriptors a page, over the bound of 1024"), "{remedy}");
    assert_eq!(report.advice(), Strategy::Refuse);
    // The bound is the caller's to raise.
    let patient = Options { max_runs_per_page: 18_432, ..forced.clone() };
    assert_eq!(check(&local, &remote, &patient).advice(), Strategy::Direct);

    // Nobody can convert: direct is what is left, and a conversion that cannot run is refused.
    let alone = Options { landing: false, packing: false, ..Options::default() };
    assert_eq!(check(&local, &remote, &alone).advice(), Strategy::Direct);
    let landed = Options { strategy: Some(Strategy::Landed), ..alone };
    let text = check(&local, &remote, &landed).raise().unwrap_err().to_string();
    assert!(text.contains("the receiver does not scatter"), "{text}");
    let pushed = Options { strategy: Some(Strategy::Landed), direction: Direction::Write, ..Options::default() };
    assert!(check(&local, &remote, &pushed).raise().unwrap_err().to_string().contains("receiver's own read"));
    let pulled = Options { packing: false, ..Options::default() };
    assert_eq!(check(&local, &remote, &pulled).advice(), Strategy::Landed);
    agrees_with_the_plan(&local, &remote);
}

#[test]
fn two_local_heads_look_alike_and_are_not() {
    let side = |notation| Rank { heads: Some(2), ..rank(notation) }.build();
    let (packed, slots) = (side(PACKED), side("k[n h d] v[n h d]"));
    let format = |rank: &RankLayout| rank.layers()[0].segments()[0].format().clone();
    assert_eq!(format(&packed).page_bytes(), format(&slots).page_bytes());
    assert_ne!(format(&packed), format(&slots));
    let report = run(&packed, &slots);
    assert_eq!(report.advice(), Strategy::Packed, "{report}");
    let notes = texts(&report, Severity::Note);
    assert!(notes[0].contains("order of axes of k: `h n k[d]` against `k[n h d]`"), "{}", notes[0]);
}

#[test]
fn what_is_planned_through_is_a_note() {
    let local = rank(PACKED).build();
    let long = Rank { extents: vec![("n", 64), D], pages: 3, gap: 4096, ..rank(PACKED) }.build();
    let report = run(&local, &long);
    assert_eq!(
        texts(&report, Severity::Note),
        [
            "layer layers.0: states in a page differs: local 16, remote 64; tokens are lined up by their place in the sequence"
        ]
    );
    assert!(report.is_accepted());
    // 8 heads of a quarter page.
    assert_eq!(report.outlook(Strategy::Direct).unwrap().runs_per_page, Some(2 * 8));

    let dealt = |rank, interleave| {
        Rank { position: context((rank, 2), interleave), heads: None, ..Rank::new("e", (0, 1), "c[n d]", 1, &[N, D]) }
            .build()
    };
    let report = run(&dealt(0, 16), &dealt(0, 4));
    assert_eq!(report.of(Severity::Error).count(), 0, "{report}");
    assert!(texts(&report, Severity::Note)[0].contains("context-parallel dealing"), "{report}");
    agrees_with_the_plan(&dealt(0, 16), &dealt(0, 4));
    // Other tokens altogether.
    let apart = run(&dealt(0, 16), &dealt(1, 16));
    assert!(texts(&apart, Severity::Note)[0].contains("exchange nothing"), "{apart}");
}

#[test]
fn heads_of_other_ranks_are_no_error() {
    let side = |rank, size| Rank::new("e", (rank, size), PACKED, 8, &[N, D]).build();
    let report = run(&side(0, 2), &side(1, 2));
    let notes = texts(&report, Severity::Note);
    assert!(notes[0].contains("share differs: local h [0, 4), remote h [4, 8)"), "{}", notes[0]);
    assert!(report.is_accepted());
    assert!(run(&side(0, 2), &side(0, 4)).findings().is_empty());
}

#[test]
fn layers_are_matched_by_name() {
    let local = Rank { layers: 8, ..rank(PACKED) }.build();
    let mut parts = local.parts().clone();
    parts.layers.reverse();
    let reversed = RankLayout::new(parts.clone()).unwrap();
    assert!(run(&local, &reversed).findings().is_empty());
    parts.layers.remove(3);
    let lacking = RankLayout::new(parts.clone()).unwrap();
    let report = run(&local, &lacking);
    assert_eq!(texts(&report, Severity::Error), ["layer layers.4: no rank of the remote side holds the layer"]);
    agrees_with_the_plan(&local, &lacking);
    // A stage of a pipeline holds some layers; another may hold the rest.
    parts.position.pp = kvreshard::shard::Place::new(0, 2).unwrap();
    assert!(run(&local, &RankLayout::new(parts).unwrap()).is_accepted());
    // Another naming scheme altogether.
    let other = {
        let mut parts = local.parts().clone();
        let layers = parts.layers.iter().enumerate();
        let renamed = layers
            .map(|(i, l)| Layer::new(format!("model.{i}"), l.segments().to_vec(), 0, l.totals().to_vec()).unwrap());
        parts.layers = renamed.collect();
        RankLayout::new(parts).unwrap()
    };
    let all = texts(&run(&local, &other), Severity::Error);
    assert!(
        all.iter().any(|text| text.contains("every layer name differs: local layers.0, layers.1, layers.2, ...")),
        "{all:?}"
    );
}

#[test]
fn groups_are_compared() {
    let with = |group: Group| {
        let mut parts = rank(PACKED).build().parts().clone();
        parts.groups = vec![group];
        RankLayout::new(parts).unwrap()
    };
    let plain = with(Group::PLAIN);
    let windowed = with(Group::new(GroupKind::Tokens, 2, TokensPerState::ONE, Some(128)).unwrap());
    let report = run(&plain, &windowed);
    assert!(report.is_accepted());
    assert!(
        texts(&report, Severity::Warning)[0].contains("window differs: local all tokens, remote last 128 tokens"),
        "{report}"
    );
    assert!(texts(&report, Severity::Note)[0].contains("pages in a block differs: local 1, remote 2"));
    let pooled = with(Group::new(GroupKind::Tokens, 1, TokensPerState::new(1, 4).unwrap(), None).unwrap());
    assert!(texts(&run(&plain, &pooled), Severity::Error)[0].contains("tokens per state differs: local 1, remote 1/4"));
    agrees_with_the_plan(&plain, &pooled);
}

/// One layer a (notation, offset, page stride, group), all in one region.
fn aliased(layers: &[(&str, u64, u64, u64, usize)]) -> RankLayout {
    let layers = layers.iter().enumerate().map(|(index, (notation, d, offset, stride, group))| {
        let page = format(notation, &[N, ("d", *d)], "u8");
        let segment = Segment::new(0, page, *offset, 8, *stride, Shares::default()).unwrap();
        Layer::new(format!("layers.{index}"), vec![segment], *group, []).unwrap()
    });
    RankLayout::new(RankParts {
        engine: "e".to_owned(),
        generation: 0,
        position: Position::ALONE,
        regions: vec![Region::new(1 << 20, 1 << 24, 0, MemoryKind::Dram).unwrap()],
        groups: vec![Group::PLAIN; 2],
        layers: layers.collect(),
    })
    .unwrap()
}

#[test]
fn aliasing_is_meant_or_reported() {
    let findings = |layers: &[(&str, u64, u64, u64, usize)]| {
        let rank = aliased(layers);
        let (plain, report) = (aliased(&[("c[n d]", 1, 0, 16, 0)]), run(&rank, &rank));
        assert_eq!(run(&plain, &plain).findings(), []);
        report.findings().iter().map(|f| (f.severity, f.layer().unwrap().to_owned())).collect::<Vec<_>>()
    };
    let c = "c[n d]";
    // Rows of two layers, pages beside each other.
    assert_eq!(findings(&[(c, 64, 0, 4096, 0), (c, 64, 1024, 4096, 0)]), []);
    // Two views of one page: pages of 32768 and 19008 bytes from one address.
    assert_eq!(findings(&[(c, 2048, 0, 32768, 0), (c, 1188, 0, 32768, 0)]), []);
    // The same with strides of their own: a block is other bytes in each view.
    let odd = findings(&[(c, 2048, 0, 32768, 0), (c, 1188, 0, 19008, 0)]);
    assert!(odd.iter().all(|(severity, _)| *severity == Severity::Note) && !odd.is_empty(), "{odd:?}");
    // Groups share the pool.
    assert_eq!(findings(&[(c, 64, 0, 4096, 0), (c, 128, 512, 4096, 1)]), []);
    // Layers of one group that overlap by half a page, and around the end of the row.
    assert_eq!(findings(&[(c, 64, 0, 4096, 0), (c, 64, 512, 4096, 0)])[0].0, Severity::Warning);
    assert_eq!(findings(&[(c, 64, 0, 4096, 0), (c, 64, 3584, 4096, 0)])[0].0, Severity::Warning);
    // Other strides, nowhere near each other.
    assert_eq!(findings(&[(c, 64, 0, 4096, 0), (c, 64, 1 << 20, 1024, 0)]), []);
    assert_eq!(findings(&[(c, 64, 0, 4096, 0), (c, 64, 1024, 1024, 0)])[0].0, Severity::Warning);
}

#[test]
fn a_layer_that_overlaps_itself_is_an_error() {
    let part = |notation, offset| {
        Segment::new(0, format(notation, &[N, ("h", 2), D], "bf16"), offset, 4, 16384, Shares::default()).unwrap()
    };
    let layout = |offset| {
        let segments = vec![part("k[h n d]", 0), part("v[h n d]", offset)];
        RankLayout::new(RankParts {
            engine: "e".to_owned(),
            generation: 0,
            position: Position::ALONE,
            regions: vec![Region::new(0, 1 << 20, 0, MemoryKind::Dram).unwrap()],
            groups: vec![Group::PLAIN],
            layers: vec![Layer::new("layers.0", segments, 0, [(name("h"), 2)]).unwrap()],
        })
        .unwrap()
    };
    assert!(run(&layout(8192), &layout(8192)).findings().is_empty());
    let report = run(&layout(0), &layout(8192));
    let error = report.raise().unwrap_err().to_string();
    assert!(
        error.contains("local pages of `k[h n d]`") && error.contains("overlap those of layer layers.0, `v[h n d]`"),
        "{error}"
    );
}

#[test]
fn whole_engines_are_compared() {
    let engine = |size, heads, layers| {
        let of = |rank| Rank { layers, ..Rank::new("e", (rank, size), PACKED, heads, &[N, D]) }.build();
        Engine::new((0..size).map(of).collect()).unwrap()
    };
    let report = check_engines(&engine(2, 8, 2), &engine(4, 8, 2), &Options::default());
    assert!(report.findings().is_empty(), "{report}");
    let report = check_engines(&engine(2, 8, 4), &engine(4, 16, 2), &Options::default());
    let errors = texts(&report, Severity::Error);
    for expected in
        ["layer layers.2: no rank of the remote side holds the layer", "layer layers.3: no rank", "local 8, remote 16"]
    {
        assert!(errors.iter().any(|text| text.contains(expected)), "{expected}\n{report}");
    }
}

#[test]
fn a_report_stays_small() {
    let local = Rank { layers: 3000, pages: 1, ..rank("h n k[d] v[d]") }.build();
    let remote = Rank { layers: 3000, pages: 1, dtype: "f16", ..rank(SHUFFLE) }.build();
    let report = run(&local, &remote);
    assert_eq!(report.findings().len(), kvreshard::check::MAX_FINDINGS);
    assert_eq!(report.omitted(), 6000 - 1024);
    assert!(report.to_string().lines().count() < 10);
}

#[test]
fn differences_are_told_in_words() {
    let d = |a: &str, b: &str, extents: &[(&str, u64)]| {
        let (a, b) = (format(a, extents, "bf16"), format(b, extents, "bf16"));
        let found = a.difference(&b);
        assert_eq!(found.is_empty(), a == b);
        found.into_iter().map(|one| (one.aspect, one.to_string())).collect::<Vec<_>>()
    };
    let all = &[("h", 4), ("n", 32), ("d", 64)];
    let expect = |pairs: &[(Aspect, &str)]| pairs.iter().map(|(a, t)| (*a, (*t).to_owned())).collect::<Vec<_>>();
    assert_eq!(
        d("h n k[d]", "n h k[d]", all),
        expect(&[(Aspect::Order, "order of axes of k: `k[h n d]` against `k[n h d]`")])
    );
    assert_eq!(
        d("h n k[d] v[d]", "k[h n d] v[h n d]", all),
        expect(&[
            (Aspect::Slot, "slots of k: `h n k[d]` against `k[h n d]`"),
            (Aspect::Slot, "slots of v: `h n v[d]` against `v[h n d]`")
        ])
    );
    assert_eq!(
        d("k[n h d/8 d%8]", "k[n/16 h d/8 n%16 d%8]", all),
        expect(&[(Aspect::Digit, "digits of k: `k[n h d]` against `k[n/16 h d/8 n%16 d%8]`")])
    );
    assert_eq!(
        d("k[h n d]", "k[h n d] pad[64]", all),
        expect(&[(Aspect::Padding, "padding: 16384 bytes a page against 16448 bytes a page")])
    );
    assert_eq!(
        d("h (n k[d])", "h (n k[d] pad[32])", all)[0],
        (Aspect::Slot, "slots of k: `k[h n d]` against `h n k[d]`".to_owned())
    );
    assert_eq!(
        d("pad[16] k[h n d]", "k[h n d] pad[16]", all),
        expect(&[(
            Aspect::Padding,
            "padding of k: from byte 16, h by 4096, n by 128, d by 2 against from byte 0, h by 4096, n by 128, d by 2"
        )])
    );
    assert_eq!(d("h n k[d] v[d]", "h n d k[] v[]", all)[0].1, "slots of k: `h n k[d]` against `h n d k[]`");
    assert_eq!(
        d("n/16 k[h d/8 n%16 d%8]", "k[h d/8 n d%8]", &[("h", 4), ("n", 16), ("d", 64)]),
        [],
        "page-16 of one sub-page is the shuffle itself"
    );
    let (one, other) = (format("k[n d]", &[N, D], "bf16"), format("k[n d] v[n d]", &[N, ("d", 64)], "f16"));
    let found: Vec<String> = one.difference(&other).iter().map(ToString::to_string).collect();
    assert_eq!(
        found[..3],
        [
            "component of v: absent against present",
            "element type of k: bf16 against f16",
            "extent of k: d=128 against d=64"
        ]
    );
}

#[test]
fn pages_that_hardly_line_up_take_bounded_work() {
    let side = |notation, states| {
        let rank = Rank::new("e", (0, 1), notation, 1, &[("d", 1024)]);
        Rank { heads: None, dtype: "u8", layers: 1, extents: vec![("n", states), ("d", 1024)], ..rank }.build()
    };
    // 506 pairs of pages in a period, up to 257,024 single bytes between each: not all of them are written out.
    let (local, remote) = (side("k[n d]", 251), side("k[d n]", 256));
    let plan = Plan::new(&local, &remote, Direction::Read).unwrap();
    assert_eq!(plan.summary().unwrap().runs, 251 * 256 * 1024);
    assert!(matches!(plan.prepare(), Err(Error::Limit { limit: 4_194_304, .. })));
    assert!(check(&local, &remote, &Options::default()).is_accepted());
    // A period of 2^32 states and 131,070 pieces.
    let (local, remote) = (side("k[n d]", 65_535), side("k[n d]", 65_536));
    assert!(matches!(Plan::new(&local, &remote, Direction::Read), Err(Error::Limit { limit: 65_536, .. })));
    let report = check(&local, &remote, &Options::default());
    assert!(
        matches!(report.raise(), Err(Error::Limit { what, .. }) if what.starts_with("layer layers.0: pieces")),
        "{report}"
    );
    // An axis that the two sides cut everywhere.
    let axis = |notation| {
        let rank = Rank::new("e", (0, 1), notation, 1, &[]);
        Rank { heads: None, dtype: "u8", layers: 1, extents: vec![("n", 1), ("d", 1 << 20)], ..rank }.build()
    };
    let (local, remote) = (axis("n k[d/2 d%2 2]"), axis("n k[d%2 d/2 2]"));
    assert!(matches!(Plan::new(&local, &remote, Direction::Read), Err(Error::Limit { .. })));
}
