//! Page formats: what parses, what is refused and where, what is equal.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says so by panicking")]

use std::collections::{BTreeMap, HashSet};

use kvreshard::Error;
use kvreshard::format::{ElementType, MAX_COMPONENTS, MAX_LOOPS, MAX_NESTING, MAX_NOTATION_BYTES, PageFormat, Types};
use kvreshard::name::{MAX_NAME_BYTES, Name};

const BF16: ElementType = ElementType::Bf16;

fn extents(given: Axes<'_>) -> BTreeMap<String, u64> {
    given.iter().map(|(axis, extent)| ((*axis).to_owned(), *extent)).collect()
}

fn format(notation: &str, given: Axes<'_>) -> PageFormat {
    PageFormat::new(notation, &extents(given), &Types::all(BF16)).unwrap()
}

fn refused(notation: &str, given: Axes<'_>) -> Error {
    match PageFormat::new(notation, &extents(given), &Types::all(BF16)) {
        Err(error) => error,
        Ok(format) => panic!("not refused: {format}"),
    }
}

/// Extents, or an index of an element.
type Axes<'a> = &'a [(&'a str, u64)];

const HND: Axes<'_> = &[("h", 8), ("n", 16), ("d", 128)];

#[test]
fn a_format_answers_for_its_parts() {
    let packed = format("  n h\tk [ d ]\n v[d]pad[64]", HND);
    assert_eq!(packed.notation(), "n h k[d] v[d] pad[64]");
    assert_eq!(packed.page_bytes(), 16 * 8 * (2 * 256 + 64));
    let names: Vec<_> = packed.components().iter().map(|component| component.name().as_str()).collect();
    assert_eq!(names, ["k", "v"]);
    assert!(packed.component("pad").is_none());
    let value = packed.component("v").unwrap();
    assert_eq!((value.base(), value.dtype()), (256, BF16));
    assert_eq!([value.extent("h"), value.extent("n"), value.extent("x")], [Some(8), Some(16), None]);
    assert_eq!(
        packed.extents().iter().map(|(axis, e)| (axis.as_str(), *e)).collect::<Vec<_>>(),
        [("d", 128), ("h", 8), ("n", 16)]
    );
    assert_eq!(packed.to_string(), "n h k[d] v[d] pad[64] (d=128 h=8 n=16; k v bf16; 73728 bytes)");
}

#[test]
fn digits_are_sorted_and_folded() {
    let shuffled = format("k[h d/8 n d%8]", HND);
    let digits: Vec<_> = shuffled
        .component("k")
        .unwrap()
        .digits()
        .iter()
        .map(|digit| (digit.axis.as_str(), digit.scale, digit.extent, digit.stride))
        .collect();
    assert_eq!(digits, [("d", 1, 8, 2), ("d", 8, 16, 256), ("h", 1, 8, 4096), ("n", 1, 16, 16)]);
    let folded = format("k[h n/4 n%4 d/32 d%32/4 d%4]", HND);
    assert_eq!(folded.component("k").unwrap().digits().len(), 3);
    assert_eq!(folded.canonical(), "k[h n d]");
    assert_eq!(folded, format("h n k[d]", HND));
}

#[test]
fn axes_of_extent_one_stay_known() {
    let one = format("h n k[d]", &[("h", 1), ("n", 16), ("d", 4)]);
    let component = one.component("k").unwrap();
    assert_eq!(component.extent("h"), Some(1));
    let axes: Vec<_> = component.axes().map(|(axis, digits)| (axis.as_str(), digits.len())).collect();
    assert_eq!(axes, [("d", 1), ("h", 0), ("n", 1)]);
    assert_eq!(one.offset("k", &[("d", 3), ("n", 2), ("h", 0)]).unwrap(), (2 * 4 + 3) * 2);
    assert_eq!(one, format("n k[d]", &[("n", 16), ("d", 4)]));
    assert_eq!(one.canonical(), "k[n d]");
}

#[test]
fn numbers_on_a_path_are_one_axis() {
    let split = format("4 n (2 k[3])", &[("n", 5)]);
    let component = split.component("k").unwrap();
    assert_eq!(component.extent(""), Some(24));
    assert_eq!(split.offset("k", &[("n", 4), ("", 23)]).unwrap(), ((3 * 5 + 4) * 6 + 5) * 2);
    assert_eq!(split.canonical(), "k[4 n 6]");
    assert_eq!(format("k[4 2]", &[]), format("k[8]", &[]));
    let plain = format("k[1 n 1]", &[("n", 5)]);
    assert_eq!(plain.component("k").unwrap().extent(""), None);
    assert_eq!(plain.offset("k", &[("n", 4)]).unwrap(), 8);
}

#[test]
fn canonical_text() {
    let cases: &[(&str, &str)] = &[
        ("n h k[d] v[d]", "n h k[d] v[d]"),
        ("(((n h k[d] v[d])))", "n h k[d] v[d]"),
        ("n (h (k[d] v[d]))", "n h k[d] v[d]"),
        ("n/4 n%4 h k[d] v[d]", "n h k[d] v[d]"),
        ("n/4 (n%4 h (k[d])) ", "k[n h d]"),
        ("(k[n h d]) ((v[n h d]) pad[2]) pad[3 n]", "k[n h d] v[n h d] pad[50]"),
        ("(k[n h d]) (n (h v[d]))", "k[n h d] v[n h d]"),
        ("k[n h d] (n h v[d] w[])", "k[n h d] (n h v[d] w[])"),
        ("n/1 n%1 h k[d/128 d%128] v[d]", "n h k[d] v[d]"),
        ("k[n%16/2%4 n/8 n%2 h d] pad[]", "k[n%8/2 n/8 n%2 h d] pad[1]"),
        ("k[n/2/4 n/2%4 n%2 h d/4/2%8/2 d/64 d%16/2/4 d%8]", "k[n h d%64/16 d/64 d%16]"),
        ("n (pad[2]) h[] (pad[d] (pad[3] pad[h])) k[h d]", "n pad[2] h[] pad[139] k[h d]"),
    ];
    for (notation, canonical) in cases {
        let made = format(notation, HND);
        assert_eq!(made.canonical(), *canonical, "{notation}");
        let again = format(canonical, HND);
        assert_eq!(again.canonical(), *canonical);
        assert_eq!(again, made);
    }
}

#[test]
fn equality_is_of_bytes_and_types() {
    let packed = format("n h k[d] v[d]", HND);
    let others = [
        format("h n k[d] v[d]", HND),
        format("n h v[d] k[d]", HND),
        format("n h k[d] w[d]", HND),
        format("n h k[d] v[d] pad[2]", HND),
        format("(n h k[d] v[d]) pad[2]", HND),
        format("n h k[dd] v[d]", &[("h", 8), ("n", 16), ("d", 128), ("dd", 128)]),
        format("n h k[d] v[d]", &[("h", 8), ("n", 16), ("d", 64)]),
        PageFormat::new("n h k[d] v[d]", &extents(HND), &Types::all(ElementType::F16)).unwrap(),
        PageFormat::new("n h k[d] v[d]", &extents(HND), &Types::all(BF16).with("v", ElementType::F16)).unwrap(),
    ];
    let mut fingerprints = HashSet::from([*packed.fingerprint()]);
    for other in &others {
        assert_ne!(packed, *other);
        assert!(!packed.same_bytes_as(other));
        assert!(fingerprints.insert(*other.fingerprint()), "{other}");
    }
    let mut set: HashSet<_> = others.iter().cloned().collect();
    assert!(set.insert(packed));
    assert!(!set.insert(format("(n/2 (n%2 h k[d] v[d]))", HND)));
}

/// Computed apart, from the encoding that [`Fingerprint`](kvreshard::format::Fingerprint) documents.
#[test]
fn fingerprints_never_change() {
    let golden: &[(&str, Axes<'_>, &str)] = &[
        ("n h k[d] v[d]", HND, "8b53bde947c7d94d1171f5cf792a1f72209cfce01f6383a8b31b740dc5727bc7"),
        ("k[h d/8 n d%8] v[h n/8 d n%8]", HND, "43ecffe98d340b1b152af121b998748492271b2dbc9a0c978f600bc1447832f3"),
    ];
    for (notation, given, fingerprint) in golden {
        assert_eq!(format(notation, given).fingerprint().to_string(), *fingerprint, "{notation}");
    }
    let types = Types::each([("q", ElementType::F8E4m3fn), ("sc", ElementType::F32), ("r", BF16)]);
    let mla = PageFormat::new("n q[512] sc[4] r[64]", &extents(&[("n", 64)]), &types).unwrap();
    assert_eq!(mla.fingerprint().to_string(), "ac149188063b2e0b0a4ef4a263021c7295b558baa91c1ac2adeea7da1c155416");
}

#[test]
fn other_extents_of_the_same_nest() {
    let whole = format("k[h d/8 n d%8] v[h n/8 d n%8]", HND);
    let half = whole.with_extents(&extents(&[("h", 4)])).unwrap();
    assert_eq!(half, format("k[h d/8 n d%8] v[h n/8 d n%8]", &[("h", 4), ("n", 16), ("d", 128)]));
    assert!(whole.with_extents(&extents(&[("x", 4)])).unwrap_err().to_string().contains("x: an extent is given"));
    assert!(whole.with_extents(&extents(&[("d", 4)])).unwrap_err().to_string().contains("8 does not divide 4"));
}

#[test]
fn syntax_errors_say_where() {
    let cases: &[(&str, usize, &str, &str)] = &[
        ("", 0, "a loop, a component or `(`", "the end"),
        ("n h", 3, "a loop, a component or `(`", "the end"),
        ("n (h) k[d]", 4, "a loop, a component or `(`", "`)`"),
        ("n ()", 3, "a loop, a component or `(`", "`)`"),
        ("k[d] v[d])", 9, "a component, `(` or the end", "`)`"),
        ("(k[d] v[d]", 10, "a component, `(` or `)`", "the end"),
        ("k[d] n v[d]", 5, "a component, `(` or the end", "the loop `n`; loops come before the items they repeat"),
        ("k[d] 4 v[d]", 5, "a component, `(` or the end", "the loop `4`; loops come before the items they repeat"),
        ("k[d", 3, "a loop or `]`", "the end"),
        ("k[d (v[d])]", 4, "a loop or `]`", "`(`"),
        ("k[v[d]]", 3, "a loop or `]`", "`[`"),
        ("k]", 1, "a loop, a component or `(`", "`]`"),
        ("[d]", 0, "a loop, a component or `(`", "`[`"),
        ("k[d/]", 4, "a divisor", "`]`"),
        ("k[d%n]", 4, "a divisor", "`n`"),
        ("k[d/0]", 4, "a divisor of at least 1", "`0`"),
        ("k[4/2]", 3, "a loop or `]`", "`/`"),
        ("k[0]", 2, "a loop of at least 1", "`0`"),
        ("k[/2]", 2, "a loop or `]`", "`/`"),
        ("k[8d]", 2, "a number or a name", "`8d`"),
        ("k[d] pad", 5, "a component, `(` or the end", "the loop `pad`; loops come before the items they repeat"),
        ("pad k[d]", 0, "a loop or a component", "`pad`, which needs brackets: `pad[..]`"),
        ("k[d,n]", 3, "a name, a number or one of `[ ] ( ) / %`", "','"),
        ("k[d] \u{fc}[d]", 5, "a name, a number or one of `[ ] ( ) / %`", "'\u{fc}'"),
        ("k[d-1]", 3, "a name, a number or one of `[ ] ( ) / %`", "'-'"),
    ];
    for (notation, position, wanted, seen) in cases {
        match refused(notation, HND) {
            Error::Syntax { at, expected, found } => {
                assert_eq!((at, expected.as_str(), found.as_str()), (*position, *wanted, *seen), "{notation}");
            }
            other => panic!("{notation}: {other}"),
        }
    }
    let text = refused("k[d/]", HND).to_string();
    assert_eq!(text, "page format notation, character 4: expected a divisor, found `]`");
}

#[test]
fn misfits_name_axis_and_position() {
    let cases: &[(&str, Axes<'_>, &str, Option<usize>, &str)] = &[
        ("k[n d]", &[("d", 4)], "n", Some(2), "no extent is given"),
        ("k[n d]", &[("n", 0), ("d", 4)], "n", Some(2), "extent 0"),
        ("k[n]", &[("n", 2), ("d", 4)], "d", None, "the axes of the notation are n"),
        ("k[n/16 d n%16]", &[("n", 8), ("d", 4)], "n", Some(3), "16 does not divide 8, the extent of n"),
        ("k[n%16/3 d]", &[("n", 32), ("d", 4)], "n", Some(6), "3 does not divide 16, the extent of n%16"),
        ("k[n/4 d]", &[("n", 8), ("d", 4)], "n", Some(2), "0..8 exactly once, but they are n/4"),
        ("k[d n%4]", &[("n", 8), ("d", 4)], "n", Some(0), "0..8 exactly once, but they are n%4"),
        ("n k[n d]", &[("n", 8), ("d", 4)], "n", Some(4), "but they are n and n"),
        ("k[n/2 n%4]", &[("n", 8)], "n", Some(2), "but they are n%4 and n/2"),
        ("n/2 k[n%2 d] v[d]", &[("n", 8), ("d", 4)], "n", Some(0), "in component v"),
        ("k[n/8 n%2]", &[("n", 16)], "n", Some(2), "but they are n%2 and n/8"),
        ("k[d] v[d] k[d]", &[("d", 4)], "k", Some(10), "is written twice"),
        ("pad[4] pad[d]", &[("d", 4)], "notation", None, "no component besides pad"),
    ];
    for (notation, given, name, position, text) in cases {
        match refused(notation, given) {
            Error::Format { subject, problem, at } => {
                assert_eq!((subject.as_str(), at), (*name, *position), "{notation}: {problem}");
                assert!(problem.contains(text), "{notation}: {problem}");
            }
            other => panic!("{notation}: {other}"),
        }
    }
}

#[test]
fn types_must_fit_the_components() {
    let make = |types: &Types| PageFormat::new("k[d] v[d] pad[2]", &extents(&[("d", 4)]), types);
    let none = make(&Types::each([("k", BF16)])).unwrap_err().to_string();
    assert_eq!(none, "page format: v: this component has no element type (character 5)");
    let unknown = make(&Types::all(BF16).with("w", BF16)).unwrap_err().to_string();
    assert_eq!(unknown, "page format: w: a type is given for it, but the components are k, v");
    let pad = make(&Types::all(BF16).with("pad", BF16)).unwrap_err().to_string();
    assert_eq!(pad, "page format: pad: a type is given for it, but nobody reads a pad");
    let mixed = make(&Types::all(BF16).with("v", ElementType::F8E5m2)).unwrap();
    assert_eq!(mixed.page_bytes(), 8 + 4 + 2);
    assert_eq!(mixed.types(), Types::each([("k", BF16), ("v", ElementType::F8E5m2)]));
}

#[test]
fn element_type_names() {
    for dtype in ElementType::ALL {
        assert_eq!(dtype.name().parse::<ElementType>().unwrap(), *dtype);
        assert_eq!(dtype.to_string(), dtype.name());
        assert!([1, 2, 4, 8].contains(&dtype.bytes()));
    }
    let names: &[(&str, ElementType)] = &[
        ("torch.bfloat16", BF16),
        ("bfloat16", BF16),
        ("BF16", BF16),
        ("torch.float16", ElementType::F16),
        ("np.float32", ElementType::F32),
        ("numpy.float64", ElementType::F64),
        ("float8_e4m3fn", ElementType::F8E4m3fn),
        ("torch.float8_e4m3fnuz", ElementType::F8E4m3fnuz),
        ("torch.float8_e8m0fnu", ElementType::F8E8m0),
        ("float4_e2m1fn_x2", ElementType::Fp4x2),
        ("torch.uint8", ElementType::U8),
        ("int64", ElementType::I64),
        ("torch.bool", ElementType::Bool),
    ];
    for (name, dtype) in names {
        assert_eq!(name.parse::<ElementType>().unwrap(), *dtype, "{name}");
    }
    assert!("fp8".parse::<ElementType>().unwrap_err().to_string().contains("f8e4m3fnuz"));
    for unknown in ["", "bf", "torch.", "int", "torch.torch.int8", "long"] {
        assert!(unknown.parse::<ElementType>().unwrap_err().to_string().contains("is not known"), "{unknown}");
    }
}

#[test]
fn offsets_refuse_wrong_indexes() {
    let packed = format("n h k[d]", HND);
    let problem = |component: &str, index: Axes<'_>| packed.offset(component, index).unwrap_err().to_string();
    assert_eq!(problem("v", &[]), "page format: v: no such component; there are k");
    assert!(problem("k", &[("h", 1), ("n", 1)]).contains("no index is given for axis \"d\""));
    assert!(problem("k", &[("h", 1), ("n", 1), ("d", 1), ("x", 0)]).contains("has no axis \"x\""));
    assert!(problem("k", &[("h", 1), ("n", 1), ("d", 1), ("h", 1)]).contains("axis \"h\" is given twice"));
    assert!(problem("k", &[("h", 8), ("n", 1), ("d", 1)]).contains("index 8 of axis \"h\" is not below 8"));
}

#[test]
fn pads_need_no_cover() {
    let made = format("(n/4 (k[n%4 d] pad[n%4])) pad[p]", &[("n", 8), ("d", 3), ("p", 5)]);
    assert_eq!(made.page_bytes(), 2 * (4 * 3 * 2 + 4) + 5);
    assert_eq!(made.canonical(), "(n/4 k[n%4 d] pad[4]) pad[5]");
}

fn nested(depth: usize) -> String {
    format!("{}k[d]{}", "(".repeat(depth), ")".repeat(depth))
}

#[test]
fn limits_hold_at_the_limit_and_not_above() {
    let at_limit = |refusal: Error, found: u64, limit: u64| match refusal {
        Error::Limit { found: f, limit: l, .. } => assert_eq!((f, l), (found, limit)),
        other => panic!("{other}"),
    };
    let d: Axes<'_> = &[("d", 2)];
    assert_eq!(format(&nested(MAX_NESTING), d).canonical(), "k[d]");
    at_limit(refused(&nested(MAX_NESTING + 1), d), 17, 16);
    at_limit(refused(&"(".repeat(MAX_NOTATION_BYTES), d), 17, 16);

    let ones = "1 ".repeat(MAX_LOOPS - 1);
    assert_eq!(format(&format!("{ones} k[d]"), d).canonical(), "k[d]");
    at_limit(refused(&format!("{ones} k[1 d]"), d), 33, 32);
    at_limit(refused(&format!("{ones} (1 (1 k[d]))"), d), 33, 32);
    assert_eq!(format(&format!("({ones} k[d]) ({ones} v[d])"), d).canonical(), "k[d] v[d]");

    let many = |count: usize| (0..count).map(|index| format!("k{index}[]")).collect::<Vec<_>>().join(" ");
    assert_eq!(format(&many(MAX_COMPONENTS), &[]).components().len(), 64);
    at_limit(refused(&many(MAX_COMPONENTS + 1), &[]), 65, 64);

    let long = |bytes: usize| format!("k[d]{}", " ".repeat(bytes - 4));
    assert_eq!(format(&long(MAX_NOTATION_BYTES), d).notation(), "k[d]");
    at_limit(refused(&long(MAX_NOTATION_BYTES + 1), d), 4097, 4096);

    let name = |bytes: usize| format!("{}[d]", "k".repeat(bytes));
    assert_eq!(format(&name(MAX_NAME_BYTES), d).components().len(), 1);
    at_limit(refused(&name(MAX_NAME_BYTES + 1), d), 65, 64);
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let huge: Axes<'_> = &[("a", 1 << 32), ("b", 1 << 31)];
    assert!(matches!(refused("k[a b]", huge), Error::Overflow { .. }));
    assert_eq!(PageFormat::new("k[a b]", &extents(huge), &Types::all(ElementType::U8)).unwrap().page_bytes(), 1 << 63);
    let two = PageFormat::new("k[a b] v[a b]", &extents(huge), &Types::all(ElementType::U8));
    assert!(matches!(two, Err(Error::Overflow { .. })));
    assert!(matches!(refused("k[18446744073709551616]", &[]), Error::Overflow { .. }));
    assert!(matches!(refused("k[] pad[18446744073709551615]", &[]), Error::Overflow { .. }));
}

#[test]
fn names() {
    for good in ["k", "_", "K9_x", "_0"] {
        assert_eq!(Name::new(good).unwrap(), good);
    }
    for bad in ["", "9", "a-b", "a b", "\u{e9}", "a\u{e9}"] {
        assert!(matches!(Name::new(bad), Err(Error::Format { .. })), "{bad:?}");
    }
    assert!(Name::ANONYMOUS.is_anonymous());
    assert_eq!(Name::ANONYMOUS.as_str(), "");
    assert!(Name::ANONYMOUS < Name::new("A").unwrap());
    assert_eq!(BTreeMap::from([(Name::new("h").unwrap(), 8)]).get("h"), Some(&8));
}
