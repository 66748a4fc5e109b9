//! Messages of another implementation: what is understood, and what must be refused and how.

use super::common::format;
use kvreshard::Error;
use kvreshard::format::{MAX_NESTING, MAX_NOTATION_BYTES};
use kvreshard::layout::{MAX_LAYERS, MAX_SEGMENTS_PER_LAYER, MAX_TOTALS, RankLayout};
use kvreshard::wire::{MAX_FORMATS, MAX_MESSAGE_BYTES, VERSION};
use rmp_serde::encode::to_vec_named;
use serde::Serialize;

/// A message as any other implementation might write it.
#[derive(Clone, Serialize)]
struct Message(u64, Body);

#[derive(Clone, Serialize)]
struct Body {
    engine: String,
    generation: u64,
    place: Place,
    regions: Vec<(u64, u64, u32, String)>,
    groups: Vec<WireGroup>,
    formats: Vec<Format>,
    kinds: Vec<Kind>,
    templates: Vec<String>,
    layers: Vec<(Name, u64, Vec<(u64, u64)>)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from_the_future: Option<Vec<(String, Vec<u8>)>>,
}

#[derive(Clone, Serialize)]
#[serde(untagged)]
enum Name {
    Text(String),
    Filled(Vec<u64>),
}

#[derive(Clone, Serialize)]
struct Place {
    tp: (u64, u64),
    pp: (u64, u64),
    cp: (u64, u64, u64),
}

#[derive(Clone, Serialize)]
struct WireGroup {
    kind: String,
    pages_per_block: u64,
    tokens_per_state: (u64, u64),
}

#[derive(Clone, Serialize)]
struct Format {
    notation: String,
    extents: std::collections::BTreeMap<String, u64>,
    types: std::collections::BTreeMap<String, String>,
    fingerprint: serde_bytes_like::Bytes,
}

/// A msgpack bin.
mod serde_bytes_like {
    #[derive(Clone)]
    pub(super) struct Bytes(pub(super) Vec<u8>);
    impl serde::Serialize for Bytes {
        fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            to.serialize_bytes(&self.0)
        }
    }
}

#[derive(Clone, Serialize)]
struct Kind {
    group: u64,
    totals: std::collections::BTreeMap<String, u64>,
    segments: Vec<(u64, u64, u64, std::collections::BTreeMap<String, (u64, u64)>)>,
}

fn message() -> Message {
    let page = format("h n k[d] v[d]", &[("h", 1), ("n", 2), ("d", 2)], "bf16");
    let map = |pairs: &[(&str, u64)]| pairs.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect();
    let types = [("k", "bf16"), ("v", "bf16")].map(|(c, t)| (c.to_owned(), t.to_owned())).into();
    Message(
        1,
        Body {
            engine: "prefill-0".to_owned(),
            generation: 0,
            place: Place { tp: (1, 2), pp: (0, 1), cp: (0, 1, 1) },
            regions: vec![(4096, 64, 0, "DRAM".to_owned())],
            groups: vec![WireGroup { kind: "tokens".to_owned(), pages_per_block: 1, tokens_per_state: (1, 1) }],
            formats: vec![Format {
                notation: page.notation().to_owned(),
                extents: map(&[("h", 1), ("n", 2), ("d", 2)]),
                types,
                fingerprint: serde_bytes_like::Bytes(page.fingerprint().as_bytes().to_vec()),
            }],
            kinds: vec![Kind {
                group: 0,
                totals: map(&[("h", 2)]),
                segments: vec![(0, 4, 16, [("h".to_owned(), (1, 2))].into())],
            }],
            templates: vec!["layers.#".to_owned()],
            layers: vec![(Name::Filled(vec![0, 7]), 0, vec![(0, 0)])],
            from_the_future: None,
        },
    )
}

fn refused(change: impl FnOnce(&mut Message)) -> Error {
    let mut changed = message();
    change(&mut changed);
    RankLayout::from_bytes(&to_vec_named(&changed).unwrap()).unwrap_err()
}

#[test]
fn another_implementation_is_understood_and_unknown_fields_are_ignored() {
    let mut message = message();
    let read = RankLayout::from_bytes(&to_vec_named(&message).unwrap()).unwrap();
    assert_eq!((read.engine(), read.layers()[0].name()), ("prefill-0", "layers.7"));
    message.1.from_the_future = Some(vec![("anything".to_owned(), vec![1, 2, 3])]);
    assert_eq!(RankLayout::from_bytes(&to_vec_named(&message).unwrap()).unwrap(), read);
}

#[test]
fn a_newer_major_version_is_refused_with_both_named() {
    // Nothing after the version is read: a newer message may look like anything.
    for bytes in [vec![0x92, 9, 0xc1], vec![0x92, 0xcd, 1, 0]] {
        let Error::Version { found, supported } = RankLayout::from_bytes(&bytes).unwrap_err() else { panic!() };
        assert!(found > supported && supported == VERSION);
    }
    let text = refused(|m| m.0 = 7).to_string();
    assert!(text.contains("version 7") && text.contains("up to 1") && text.contains("upgrade"), "{text}");
    assert!(matches!(refused(|m| m.0 = 0), Error::Wire { at, .. } if at == "version"));
}

#[test]
fn every_field_is_checked() {
    let wire = |error: Error| match error {
        Error::Wire { at, problem } => format!("{at}: {problem}"),
        other => panic!("{other}"),
    };
    assert!(wire(refused(|m| m.1.formats[0].fingerprint.0[3] ^= 1)).contains("fingerprints differ"));
    assert!(wire(refused(|m| m.1.formats[0].fingerprint.0.truncate(15))).contains("fingerprints differ"));
    assert!(wire(refused(|m| m.1.layers[0].1 = 1)).contains("a kind that is not in the message"));
    assert!(wire(refused(|m| m.1.layers[0].1 = u64::MAX)).contains("a kind that is not in the message"));
    assert!(wire(refused(|m| m.1.kinds[0].segments[0].0 = 1)).contains("a format that is not in the message"));
    assert!(wire(refused(|m| m.1.layers[0].2.push((0, 0)))).contains("another count of segments"));
    assert!(wire(refused(|m| m.1.layers[0].0 = Name::Filled(vec![]))).contains("empty array"));
    assert!(wire(refused(|m| m.1.layers[0].0 = Name::Filled(vec![1, 0]))).contains("a template"));
    assert!(wire(refused(|m| m.1.layers[0].0 = Name::Filled(vec![0]))).contains("another count of numbers"));
    assert!(wire(refused(|m| m.1.layers[0].0 = Name::Filled(vec![0; 40]))).contains("more than 32 numbers"));
    let reversed = |m: &mut Message| m.1.kinds[0].segments[0].3 = [("h".to_owned(), (2, 1))].into();
    assert!(wire(refused(reversed)).contains("ends before it starts"));
    assert!(matches!(refused(|m| m.1.layers[0].2[0].0 = 9), Error::Layout { field, .. } if field == "region"));
    assert!(matches!(refused(|m| m.1.kinds[0].group = 9), Error::Layout { field, .. } if field == "group"));
    assert!(
        matches!(refused(|m| m.1.regions[0].3 = "HBM".to_owned()), Error::Layout { field, .. } if field == "memory kind")
    );
    assert!(matches!(refused(|m| m.1.regions[0].0 = u64::MAX), Error::Overflow { .. }));
    assert!(matches!(refused(|m| m.1.kinds[0].segments[0].1 = u64::MAX), Error::Overflow { .. }));
    assert!(
        matches!(refused(|m| m.1.kinds[0].segments[0].2 = 15), Error::Layout { field, .. } if field == "page_stride")
    );
    assert!(matches!(refused(|m| m.1.layers[0].2[0].1 = 1), Error::Layout { field, .. } if field == "segment end"));
    assert!(matches!(refused(|m| m.1.place.tp = (2, 2)), Error::Layout { field, .. } if field == "parallel rank"));
    assert!(matches!(refused(|m| m.1.groups[0].tokens_per_state = (0, 1)), Error::Layout { .. }));
    assert!(matches!(refused(|m| m.1.formats[0].notation = "h n k[d".to_owned()), Error::Syntax { .. }));
    assert!(matches!(
        refused(|m| m.1.formats[0].types = [("k".to_owned(), "fp8".to_owned())].into()),
        Error::Format { .. }
    ));
    let twice = |m: &mut Message| m.1.layers.push(m.1.layers[0].clone());
    assert!(matches!(refused(twice), Error::Layout { field, .. } if field == "layer name"));
    assert!(matches!(refused(|m| m.1.layers.clear()), Error::Layout { field, .. } if field == "layers"));
}

#[test]
fn bounds_are_enforced_while_reading() {
    let text = |error: Error| error.to_string();
    let many = |m: &mut Message| m.1.layers = vec![m.1.layers[0].clone(); MAX_LAYERS + 1];
    assert!(text(refused(many)).contains("more than 16384 elements"), "{}", text(refused(many)));
    let wide = |m: &mut Message| m.1.layers[0].2 = vec![(0, 0); MAX_SEGMENTS_PER_LAYER + 1];
    assert!(text(refused(wide)).contains("more than 4096 elements"));
    let formats = |m: &mut Message| m.1.formats = vec![m.1.formats[0].clone(); MAX_FORMATS + 1];
    assert!(text(refused(formats)).contains("more than 1024 elements"));
    let axes = |m: &mut Message| m.1.kinds[0].totals = (0..=MAX_TOTALS).map(|axis| (format!("a{axis}"), 1)).collect();
    assert!(text(refused(axes)).contains("more than 8 entries"));
    let notation = |m: &mut Message| m.1.formats[0].notation = "h ".repeat(MAX_NOTATION_BYTES);
    assert!(text(refused(notation)).contains("more than 4096 bytes"));
    let deep = "(".repeat(MAX_NESTING + 2) + "k[]" + &")".repeat(MAX_NESTING + 2);
    assert!(matches!(refused(|m| m.1.formats[0].notation = deep), Error::Limit { limit: 16, .. }));
    let name = |m: &mut Message| m.1.layers[0].0 = Name::Text("x".repeat(1025));
    assert!(text(refused(name)).contains("1024 bytes in a layer name"));
    // A template as long as a name may be, with numbers put in.
    let grown = |m: &mut Message| {
        m.1.templates[0] = format!("#{}", "x".repeat(1023));
        m.1.layers[0].0 = Name::Filled(vec![0, u64::MAX]);
    };
    assert!(matches!(refused(grown), Error::Limit { found: 1043, limit: 1024, .. }));
    let error = RankLayout::from_bytes(&vec![0x92; MAX_MESSAGE_BYTES]).unwrap_err();
    assert!(matches!(error, Error::Wire { .. }), "{error}");
    let error = RankLayout::from_bytes(&vec![0x92; MAX_MESSAGE_BYTES + 1]).unwrap_err();
    assert!(matches!(error, Error::Limit { .. }), "{error}");
}

#[test]
fn another_type_is_refused_with_what_belongs_there() {
    let refused = |field: &str, value: &[u8]| {
        let mut bytes = vec![0x92, 0x01, 0x81, 0xa0 | u8::try_from(field.len()).unwrap()];
        bytes.extend(field.bytes());
        bytes.extend(value);
        RankLayout::from_bytes(&bytes).unwrap_err().to_string()
    };
    let within = |field: &str, inner: &str, value: &[u8]| {
        let mut item = vec![0x91, 0x81, 0xa0 | u8::try_from(inner.len()).unwrap()];
        item.extend(inner.bytes());
        item.extend(value);
        refused(field, &item)
    };
    for (text, expected) in [
        (refused("layers", &[7]), "an array of at most 16384 elements"),
        (refused("engine", &[7]), "a text of at most"),
        (refused("engine", &[0xc4, 1, 0]), "a text of at most"),
        (within("formats", "extents", &[7]), "a map of at most"),
        (within("formats", "fingerprint", &[7]), "a bin of at most"),
        (within("kinds", "segments", &[7]), "an array of at most 4096 elements"),
        (refused("layers", &[0x91, 0x93, 0xa1, b'x', 0, 7]), "an array of at most 4096 elements"),
        (refused("layers", &[0x91, 0x93, 0xc3, 0, 0x90]), "a text, or an array of a template"),
        (refused("regions", &[0x91, 0x94, 0, 1, 0, 7]), "the name of a memory kind"),
    ] {
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn characters_that_do_not_show_are_refused_by_name_and_white_space_of_a_notation_is_none() {
    let text = refused(|m| m.1.engine = "prefill\u{202e}0".to_owned()).to_string();
    assert!(text.contains("202e"), "{text}");
    let text = refused(|m| m.1.engine = "prefill\n0".to_owned()).to_string();
    assert!(text.contains("character \\u{a} in a text"), "{text}");
    let mut spread = message();
    spread.1.formats[0].notation = "h\n  n\n  k[d] v[d]".to_owned();
    let read = RankLayout::from_bytes(&to_vec_named(&spread).unwrap()).unwrap();
    assert_eq!(read, RankLayout::from_bytes(&to_vec_named(&message()).unwrap()).unwrap());
    spread.1.formats[0].notation = "h n\u{7} k[d] v[d]".to_owned();
    let text = RankLayout::from_bytes(&to_vec_named(&spread).unwrap()).unwrap_err().to_string();
    assert!(text.contains("\\u{7}"), "{text}");
}

#[test]
fn claimed_lengths_allocate_nothing() {
    // An array that says it has 2^32 - 1 elements, a map, a text, a bin, each where one belongs and then nothing.
    for claim in [0xdd_u8, 0xdf, 0xdb, 0xc6] {
        for field in ["regions", "layers", "formats", "engine", "unknown"] {
            let mut bytes = vec![0x92, 0x01, 0x8f, 0xa0 | u8::try_from(field.len()).unwrap()];
            bytes.extend(field.bytes());
            bytes.extend([claim, 0xff, 0xff, 0xff, 0xff]);
            let error = RankLayout::from_bytes(&bytes).unwrap_err();
            assert!(matches!(error, Error::Wire { .. }), "{field}: {error}");
        }
    }
    // Nesting, in a field that nobody knows.
    let mut bytes = vec![0x92, 0x01, 0x81, 0xa1, b'x'];
    bytes.extend(vec![0x91; 100_000]);
    assert!(matches!(RankLayout::from_bytes(&bytes).unwrap_err(), Error::Wire { .. }));
}

/// Counted from the first byte of the message on.
#[test]
fn what_is_cut_or_goes_on_is_told_by_the_byte() {
    let whole = to_vec_named(&message()).unwrap();
    let at = |bytes: &[u8]| match RankLayout::from_bytes(bytes).unwrap_err() {
        Error::Wire { at, .. } => at,
        other => panic!("{other}"),
    };
    let mut more = whole.clone();
    more.push(0);
    assert_eq!(at(&more), format!("byte {}", whole.len()));
    assert_eq!((at(&[]), at(&[0x92]), at(&[0x92, 0x01])), ("byte 0".into(), "byte 1".into(), "byte 2".into()));
}

#[test]
fn words_names_and_maps_are_read_up_to_their_bounds() {
    let text = |change: &dyn Fn(&mut Message)| refused(change).to_string();
    let memory = |length: usize| text(&|m: &mut Message| m.1.regions[0].3 = "x".repeat(length));
    assert!(memory(65).contains("more than 64 bytes in a memory kind"), "{}", memory(65));
    assert!(!memory(64).contains("bytes in a memory kind"), "{}", memory(64));
    let axes = |count: u64| {
        text(&|m: &mut Message| m.1.formats[0].extents = (0..count).map(|at| (format!("a{at}"), 1)).collect())
    };
    assert!(axes(2049).contains("more than 2048 entries in a map"), "{}", axes(2049));
    assert!(!axes(2048).contains("entries in a map"), "{}", axes(2048));
    let mut longest = message();
    longest.1.layers[0].0 = Name::Text("x".repeat(1024));
    assert_eq!(RankLayout::from_bytes(&to_vec_named(&longest).unwrap()).unwrap().layers()[0].name().len(), 1024);
    longest.1.templates[0] = format!("#{}", "x".repeat(1023));
    longest.1.layers[0].0 = Name::Filled(vec![0, 7]);
    assert_eq!(RankLayout::from_bytes(&to_vec_named(&longest).unwrap()).unwrap().layers()[0].name().len(), 1024);
}
