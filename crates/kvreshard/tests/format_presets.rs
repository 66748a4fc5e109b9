//! Presets against the address formulas of the kernels that write such pages.
//!
//! Worked offsets are those of one element, (h, n, d) = (3, 5, 70) unless said; formulas are checked at every element.
#![allow(clippy::unwrap_used, clippy::panic, clippy::arithmetic_side_effects, reason = "a test says so by panicking")]

use std::collections::{BTreeMap, BTreeSet};

use kvreshard::Error;
use kvreshard::format::{ElementType, Kind, PageFormat, Types, Value, preset, presets};

fn parameters(given: &[(&str, Value)]) -> BTreeMap<String, Value> {
    given.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
}

macro_rules! preset {
    ($name:literal $(, $parameter:ident = $value:expr)* $(,)?) => {
        preset($name, &parameters(&[$((stringify!($parameter), Value::from($value))),*])).unwrap()
    };
}

macro_rules! refused {
    ($name:literal $(, $parameter:ident = $value:expr)* $(,)?) => {
        match preset($name, &parameters(&[$((stringify!($parameter), Value::from($value))),*])) {
            Err(error) => error.to_string(),
            Ok(format) => panic!("not refused: {format}"),
        }
    };
}

fn offsets<const P: usize>(format: &PageFormat, elements: [(&str, &[(&str, u64)]); P]) -> [u64; P] {
    elements.map(|(component, index)| format.offset(component, index).unwrap())
}

const HND: &[(&str, u64)] = &[("h", 3), ("n", 5), ("d", 70)];
const ND: &[(&str, u64)] = &[("n", 5), ("d", 70)];
const LATER: &[(&str, u64)] = &[("h", 3), ("n", 21), ("d", 70)];

#[test]
fn packed() {
    let hnd = preset!("packed-hnd", h = 8, n = 16, d = 128);
    assert_eq!(hnd.notation(), "h n k[d] v[d]");
    assert_eq!(offsets(&hnd, [("k", HND), ("v", HND)]), [27276, 27532]);
    assert_eq!(hnd.page_bytes(), 65536);
    let nhd = preset!("packed-nhd", h = 8, n = 16, d = 128);
    assert_eq!(nhd.notation(), "n h k[d] v[d]");
    assert_eq!(offsets(&nhd, [("k", HND), ("v", HND)]), [22156, 22412]);
    assert_eq!(nhd.page_bytes(), 65536);
    let plane = preset!("packed-plane", n = 16, d = 128);
    assert_eq!(offsets(&plane, [("k", ND), ("v", ND)]), [2700, 2956]);
    assert_eq!(plane.page_bytes(), 8192);
}

#[test]
fn packed_with_other_head_size_of_v() {
    let format = preset!("packed-hnd", h = 2, n = 16, d = 192, dv = 128, dtype = "f8e4m3fn");
    assert_eq!(format.notation(), "h n k[d] v[dv]");
    assert_eq!(offsets(&format, [("v", &[("h", 1), ("n", 5), ("dv", 70)])]), [(16 + 5) * (192 + 128) + 192 + 70]);
    assert_eq!(format.page_bytes(), 2 * 16 * 320);
}

#[test]
fn two_slots() {
    let format = preset!("two-slot-nhd", h = 8, n = 16, d = 128);
    assert_eq!(offsets(&format, [("k", HND), ("v", HND)]), [11148, 43916]);
    assert_eq!(format.page_bytes(), 65536);
}

#[test]
fn aiter_shuffle() {
    let format = preset!("aiter-shuffle", h = 8, n = 16, d = 128, dtype = "bf16");
    assert_eq!(format.notation(), "k[h d/8 n d%8] v[h n/8 d n%8]");
    assert_eq!(offsets(&format, [("k", HND), ("v", HND)]), [14428, 46186]);
    assert_eq!(format.page_bytes(), 65536);
    let fp8 = preset!("aiter-shuffle", h = 8, n = 16, d = 128, dtype = ElementType::F8E4m3fn);
    assert_eq!(fp8.notation(), "k[h d/16 n d%16] v[h n/16 d n%16]");
    assert_eq!(offsets(&fp8, [("k", HND), ("v", HND)]), [7254, 23653]);
    assert_eq!(fp8.page_bytes(), 32768);
}

#[test]
fn planes_hold_one_slot() {
    let whole = preset!("aiter-shuffle", h = 8, n = 16, d = 128);
    for side in ["k", "v"] {
        let plane = preset!("aiter-shuffle", h = 8, n = 16, d = 128, side = side);
        let slot = if side == "v" { 32768 } else { 0 };
        assert_eq!(plane.components().len(), 1);
        assert_eq!(plane.page_bytes(), 32768);
        assert_eq!(plane.offset(side, HND).unwrap() + slot, whole.offset(side, HND).unwrap());
    }
}

#[test]
fn rocm_attn() {
    let format = preset!("rocm-attn", h = 8, n = 16, d = 128);
    assert_eq!(offsets(&format, [("k", HND), ("v", HND)]), [14428, 47306]);
    assert_eq!(format.page_bytes(), 65536);
}

#[test]
fn page_16() {
    let format = preset!("page-16", h = 8, n = 128, d = 128);
    assert_eq!(format.notation(), "k[n/16 h d/8 n%16 d%8] v[n/16 h n%16/8 d n%8]");
    assert_eq!(offsets(&format, [("k", LATER), ("v", LATER)]), [47196, 308330]);
    assert_eq!(format.page_bytes(), 524288);
}

#[test]
fn page_16_with_16_tokens_is_aiter_shuffle() {
    for dtype in ["bf16", "f8e4m3fnuz", "f32"] {
        let page = preset!("page-16", h = 8, n = 16, d = 128, dtype = dtype);
        let shuffle = preset!("aiter-shuffle", h = 8, n = 16, d = 128, dtype = dtype);
        assert_eq!(page, shuffle);
        assert!(page.same_bytes_as(&shuffle));
        assert_eq!(page.fingerprint(), shuffle.fingerprint());
        assert_eq!(page.canonical(), shuffle.canonical());
        assert_ne!(page.notation(), shuffle.notation());
        let more = preset!("page-16", h = 8, n = 32, d = 128, dtype = dtype);
        assert_ne!(more, preset!("aiter-shuffle", h = 8, n = 32, d = 128, dtype = dtype));
    }
}

#[test]
fn look_alikes_differ() {
    // Two local heads: equal shape, strides and bytes, other bytes inside.
    let all: Vec<_> = ["packed-hnd", "packed-nhd", "two-slot-nhd", "aiter-shuffle", "rocm-attn", "page-16"]
        .iter()
        .map(|name| {
            let given = [("h", 2.into()), ("n", 32.into()), ("d", 128.into())];
            preset(name, &parameters(&given)).unwrap()
        })
        .collect();
    let fingerprints: BTreeSet<_> = all.iter().map(|format| *format.fingerprint()).collect();
    assert_eq!(fingerprints.len(), all.len());
    assert!(all.iter().all(|format| format.page_bytes() == 2 * 2 * 32 * 128 * 2));
}

#[test]
fn cpu() {
    let vec = preset!("cpu-vec", h = 8, n = 32, d = 128);
    assert_eq!(offsets(&vec, [("k", HND), ("v", HND)]), [53642, 58764]);
    assert_eq!(vec.page_bytes(), 131072);
    let amx = preset!("cpu-amx", h = 8, n = 32, d = 128);
    assert_eq!(amx.notation(), "h k[n/16 d/2 n%16 d%2] v[d/16 n/2 d%16 n%2]");
    assert_eq!(offsets(&amx, [("k", HND), ("v", HND)]), [51412, 61594]);
    assert_eq!(amx.page_bytes(), 131072);
}

const DATA: &[(&str, u64)] = &[("h", 3), ("n", 5), ("b", 35)];
const SCALE: &[(&str, u64)] = &[("h", 3), ("n", 5), ("s", 4)];

#[test]
fn nvfp4_flashinfer() {
    let linear = preset!("nvfp4-flashinfer", h = 8, n = 16, d = 128);
    let four = [("k", DATA), ("ks", SCALE), ("v", DATA), ("vs", SCALE)];
    assert_eq!(offsets(&linear, four), [3427, 8620, 12643, 17836]);
    assert_eq!(linear.page_bytes(), 18432);
    let swizzled = preset!("nvfp4-flashinfer-swizzled", h = 8, n = 16, d = 128);
    assert_eq!(offsets(&swizzled, four), [3427, 8620, 12643, 17841]);
    assert_eq!(swizzled.page_bytes(), 18432);
    let nhd = preset!("nvfp4-flashinfer", h = 8, n = 16, d = 128, order = "nhd");
    assert_eq!(offsets(&nhd, [("k", DATA)]), [(5 * 8 + 3) * 64 + 35]);
}

#[test]
fn swizzled_scales_at_every_element() {
    let format = preset!("nvfp4-flashinfer-swizzled", h = 2, n = 8, d = 256);
    let scales = 16;
    let start = format.page_bytes() - 2 * 8 * scales;
    for (h, n, s) in (0..2).flat_map(|h| (0..8).flat_map(move |n| (0..scales).map(move |s| (h, n, s)))) {
        let row = (n / 4) * 4 + s / (scales / 4);
        let column = (s % (scales / 4)) * 4 + n % 4;
        let expected = start + (h * 8 + row) * scales + column;
        assert_eq!(format.offset("vs", &[("h", h), ("n", n), ("s", s)]).unwrap(), expected);
    }
}

#[test]
fn nvfp4_msa() {
    let format = preset!("nvfp4-msa", h = 4, n = 128, d = 128);
    let data: &[(&str, u64)] = &[("h", 3), ("n", 21), ("b", 35)];
    let scale: &[(&str, u64)] = &[("h", 3), ("n", 21), ("s", 4)];
    let four = [("k", data), ("ks", scale), ("v", data), ("vs", scale)];
    assert_eq!(offsets(&format, four), [56675, 63660, 65891, 72876]);
    assert_eq!(format.page_bytes(), 73728);
}

#[test]
fn per_token_head() {
    let row: &[(&str, u64)] = &[("h", 3), ("n", 5)];
    let i8 = preset!("per-token-head", h = 8, n = 16, d = 128);
    assert_eq!(i8.notation(), "h n k[d] ks[] v[d] vs[]");
    assert_eq!(offsets(&i8, [("k", HND), ("ks", row), ("v", HND), ("vs", row)]), [14062, 14120, 14194, 14252]);
    assert_eq!(i8.page_bytes(), 33792);
    let i4 = preset!("per-token-head", h = 8, n = 16, d = 128, dtype = "i4x2");
    assert_eq!(offsets(&i4, [("k", DATA), ("ks", row), ("v", DATA), ("vs", row)]), [7243, 7272, 7311, 7340]);
    assert_eq!(i4.page_bytes(), 17408);
    let nhd = preset!("per-token-head", h = 8, n = 16, d = 128, order = "nhd");
    assert_eq!(offsets(&nhd, [("k", HND)]), [(5 * 8 + 3) * 264 + 70]);
}

#[test]
fn turboquant() {
    let value: &[(&str, u64)] = &[("h", 3), ("n", 5), ("vb", 35)];
    let row: &[(&str, u64)] = &[("h", 3), ("n", 5)];
    let four = [("k", HND), ("v", value), ("vs", row), ("vz", row)];
    let aos = preset!("turboquant-aos", h = 8, n = 16, d = 128);
    assert_eq!(offsets(&aos, four), [8498, 8591, 8620, 8622]);
    assert_eq!(aos.page_bytes(), 25088);
    let soa = preset!("turboquant-soa", h = 8, n = 16, d = 128);
    assert_eq!(offsets(&soa, four), [8326, 8419, 24778, 24810]);
    assert_eq!(soa.page_bytes(), 25088);
    assert_ne!(aos, preset!("turboquant-aos", h = 8, n = 16, d = 128, keys = "f8e4m3b15"));
}

#[test]
fn turboquant_slots() {
    for (scheme, slot) in [("k8v4", 196), ("4bit", 134), ("k3v4", 118), ("3bit", 102)] {
        for name in ["turboquant-aos", "turboquant-soa"] {
            let given = [("h", 3.into()), ("n", 16.into()), ("d", 128.into()), ("scheme", scheme.into())];
            let format = preset(name, &parameters(&given)).unwrap();
            assert_eq!(format.page_bytes(), 3 * 16 * slot, "{name} {scheme}");
            // An odd slot: 8 * 7 channels in 21 + 28 bytes, 6 of metadata, 1 to be even.
            let given = [("h", 3.into()), ("n", 16.into()), ("d", 56.into()), ("scheme", "k3v4".into())];
            assert_eq!(preset(name, &parameters(&given)).unwrap().page_bytes(), 3 * 16 * 56, "{name}");
        }
    }
    let norm = preset!("turboquant-soa", h = 8, n = 16, d = 128, scheme = "k3v4");
    let (h, n, db) = (3, 5, 48 + 64);
    for (part, name) in ["kn", "vs", "vz"].into_iter().enumerate() {
        let part = u64::try_from(part).unwrap();
        let expected = 16 * 8 * db + (h * 3 * 16 + part * 16 + n) * 2;
        assert_eq!(norm.offset(name, &[("h", h), ("n", n)]).unwrap(), expected);
    }
}

#[test]
fn ultraquant() {
    for (d, slot) in [(128, 136), (256, 272)] {
        let format = preset!("ultraquant", h = 2, n = 16, d = d);
        assert_eq!(format.page_bytes(), 2 * 16 * slot);
        let scale = format.offset("vs", &[("h", 1), ("n", 5), ("s", 3)]).unwrap();
        assert_eq!(scale, (5 * 2 + 1) * slot + d / 2 + d / 32 + d / 2 + 3);
    }
}

#[test]
fn octave() {
    let format = preset!("octave", h = 8, n = 16, d = 128, rope = 64);
    assert_eq!(format.page_bytes(), 8 * 16 * 128);
    assert_eq!(format.notation(), "h n kr[rb] k[kb] v[vb] ks[s] vs[] pad[2]");
    let slot = (3 * 16 + 5) * 128;
    let row: &[(&str, u64)] = &[("h", 3), ("n", 5)];
    let scale: &[(&str, u64)] = &[("h", 3), ("n", 5), ("s", 1)];
    let value: &[(&str, u64)] = &[("h", 3), ("n", 5), ("vb", 7)];
    let expected = [slot + 32 + 24 + 64 + 2, slot + 32 + 24 + 64 + 4, slot + 32 + 24 + 7];
    assert_eq!(offsets(&format, [("ks", scale), ("vs", row), ("v", value)]), expected);
    // 48 bytes of K, 48 of V, 2 scales, no pad.
    let compact = preset!("octave-compact", h = 8, n = 16, d = 128, value_bits = 3, order = "nhd");
    assert_eq!(compact.notation(), "n h k[kb] v[vb] ks[s] vs[]");
    assert_eq!(compact.page_bytes(), 8 * 16 * 100);
    let all_rope = preset!("octave", h = 1, n = 1, d = 64, rope = 64);
    assert_eq!(all_rope.notation(), "h n kr[rb] v[vb] ks[s] vs[] pad[4]");
}

#[test]
fn latent_rows() {
    let format = preset!("mla", n = 64);
    assert_eq!(format.page_bytes(), 73728);
    assert_eq!(offsets(&format, [("c", &[("n", 5), ("r", 70)])]), [5900]);
    for (r, dtype, row) in [(576, "bf16", 1152), (320, "f16", 640), (512, "bf16", 1024), (576, "f8e4m3fn", 576)] {
        assert_eq!(preset!("mla", n = 1, r = r, dtype = dtype).page_bytes(), row);
    }
    let fp8 = preset!("mla-fp8-ds", n = 64);
    assert_eq!(fp8.page_bytes(), 64 * 656);
    assert_eq!(
        offsets(&fp8, [("sc", &[("n", 5), ("", 3)]), ("r", &[("n", 5), ("", 9)])]),
        [5 * 656 + 512 + 12, 5 * 656 + 512 + 16 + 18]
    );
    assert_eq!(preset!("mla-per-token-head", n = 16).page_bytes(), 16 * 584);
}

#[test]
fn latent_nvfp4_scales_at_every_element() {
    let format = preset!("mla-nvfp4-ds", n = 2);
    assert_eq!(format.page_bytes(), 2 * 352);
    for s in 0..32 {
        let expected = 352 + 256 + 64 + (8 * (s & 3) + (s >> 2));
        assert_eq!(format.offset("sc", &[("n", 1), ("s", s)]).unwrap(), expected);
    }
}

#[test]
fn deepseek() {
    let format = preset!("deepseek-v4", n = 64);
    assert_eq!(format.notation(), "c[n r] cs[n s] pad[p]");
    assert_eq!(format.page_bytes(), 37440);
    assert_eq!(
        offsets(&format, [("c", &[("n", 5), ("r", 70)]), ("cs", &[("n", 5), ("s", 7)])]),
        [5 * 576 + 70, 64 * 576 + 5 * 8 + 7]
    );
    // 72 rows fill 73 times 576 bytes.
    assert_eq!(preset!("deepseek-v4", n = 72).notation(), "c[n r] cs[n s]");
    let several = preset!("deepseek-v4", n = 256, kernel_n = 64);
    assert_eq!(several.page_bytes(), 4 * 37440);
    assert_eq!(offsets(&several, [("cs", &[("n", 69), ("s", 7)])]), [37440 + 64 * 576 + 5 * 8 + 7]);
    let v41 = preset!("deepseek-v4.1", n = 64);
    assert_eq!(v41.page_bytes(), 64 * 528);
    assert_eq!(offsets(&v41, [("cs", &[("n", 5), ("", 9)])]), [5 * 528 + 512 + 9]);
}

#[test]
fn indexers() {
    let format = preset!("dsa-indexer", n = 64);
    assert_eq!(format.notation(), "k[n d] ks[n]");
    assert_eq!(format.page_bytes(), 8448);
    assert_eq!(offsets(&format, [("k", ND), ("ks", &[("n", 5)])]), [5 * 128 + 70, 64 * 128 + 5 * 4]);
    let powers = preset!("dsa-indexer", n = 64, scales = "ue8m0");
    assert_eq!(powers.page_bytes(), 8448);
    assert_ne!(powers, format);
    let several = preset!("dsa-indexer", n = 256, kernel_n = 64);
    assert_eq!(several.page_bytes(), 4 * 8448);
    assert_eq!(offsets(&several, [("ks", &[("n", 69)])]), [8448 + 64 * 128 + 5 * 4]);
    assert_eq!(preset!("indexer-rows", n = 128).page_bytes(), 128 * 256);
}

#[test]
fn rocm_indexer_at_every_element() {
    let format = preset!("dsa-indexer-rocm", n = 64, d = 128);
    assert_eq!(format.page_bytes(), 8448);
    for (n, d) in (0..64).flat_map(|n| (0..128).map(move |d| (n, d))) {
        let expected = (n / 16) * 16 * 128 + (n % 16) * 16 + (d / 16) * 256 + d % 16;
        assert_eq!(format.offset("k", &[("n", n), ("d", d)]).unwrap(), expected);
    }
}

#[test]
fn mamba() {
    // TP 4 of I=8192, 8 groups, S=128, 128 heads, P=64, kernel 4.
    let format =
        preset!("mamba2", cx = 2048, cb = 256, t = 3, h = 32, p = 64, s = 128, page_bytes = 15360 + 1_048_576 + 64);
    assert_eq!(format.notation(), "x[cx t] b[cb t] c[cc t] ssm[h p s] pad[64]");
    let bases: Vec<_> = format.components().iter().map(|component| component.base()).collect();
    assert_eq!(bases, [0, 12288, 12288 + 1536, 15360]);
    assert_eq!(format.page_bytes(), 15360 + 1_048_576 + 64);
    assert_eq!(offsets(&format, [("b", &[("cb", 9), ("t", 2)])]), [12288 + (9 * 3 + 2) * 2]);
    let state: &[(&str, u64)] = &[("h", 3), ("p", 5), ("s", 70)];
    assert_eq!(offsets(&format, [("ssm", state)]), [15360 + ((3 * 64 + 5) * 128 + 70) * 4]);
    let rows_first = preset!("mamba2", cx = 2048, cb = 256, t = 3, h = 32, p = 64, s = 128, order = "sd");
    assert_eq!(offsets(&rows_first, [("b", &[("cb", 9), ("t", 2)])]), [(2 * 2560 + 2048 + 9) * 2]);
    assert_eq!(rows_first.page_bytes(), 15360 + 1_048_576);
}

#[test]
fn other_states() {
    let one = preset!("mamba1", cx = 64, t = 3, s = 16);
    assert_eq!(offsets(&one, [("ssm", &[("cx", 5), ("s", 7)])]), [64 * 3 * 2 + (5 * 16 + 7) * 4]);
    let gdn = preset!("gdn", cq = 32, cv = 64, t = 3, h = 4, dv = 16, dk = 8, state_dtype = "bf16");
    assert_eq!(gdn.notation(), "q[cq t] k[ck t] v[cv t] ssm[h dv dk]");
    assert_eq!(gdn.page_bytes(), (128 * 3 + 4 * 16 * 8) * 2);
    assert_eq!(preset!("short-conv", cx = 64, t = 2, order = "sd").canonical(), "x[t cx]");
    let linear = preset!("linear-attention", h = 4, dk = 16);
    assert_eq!(linear.page_bytes(), 4 * 16 * 16 * 4);
}

#[test]
fn every_preset_with_least_parameters() {
    let names: BTreeSet<_> = presets().iter().map(|preset| preset.name).collect();
    assert_eq!(names.len(), presets().len(), "a name is used twice");
    for known in presets() {
        assert!(!known.summary.is_empty() && !known.found_in.is_empty());
        assert!(known.name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.'));
        let required = known.parameters.iter().filter(|parameter| matches!(parameter.kind, Kind::Required));
        let given: BTreeMap<_, _> = required.map(|parameter| (parameter.name.to_owned(), Value::from(64))).collect();
        let format = known.format(&given).unwrap_or_else(|error| panic!("{}: {error}", known.name));
        let by_hand: BTreeMap<_, _> =
            format.extents().iter().map(|(axis, extent)| (axis.to_string(), *extent)).collect();
        assert_eq!(PageFormat::new(format.notation(), &by_hand, &format.types()).unwrap(), format);
        for missing in given.keys() {
            let mut less = given.clone();
            less.remove(missing);
            assert!(matches!(known.format(&less), Err(Error::Format { .. })), "{} without {missing}", known.name);
        }
        let defaults = known.parameters.iter().filter(|parameter| parameter.default().is_none()).count();
        assert_eq!(defaults, given.len());
    }
}

#[test]
fn design_table() {
    let table: &[(PageFormat, &str)] = &[
        (preset!("packed-hnd", h = 8, n = 32, d = 128), "h n k[d] v[d]"),
        (preset!("packed-nhd", h = 8, n = 32, d = 128), "n h k[d] v[d]"),
        (preset!("two-slot-nhd", h = 8, n = 32, d = 128), "k[n h d] v[n h d]"),
        (preset!("aiter-shuffle", h = 8, n = 32, d = 128), "k[h d/8 n d%8] v[h n/8 d n%8]"),
        (preset!("rocm-attn", h = 8, n = 32, d = 128), "k[h d/8 n d%8] v[h d n]"),
        (preset!("page-16", h = 8, n = 32, d = 128), "k[n/16 h d/8 n%16 d%8] v[n/16 h n%16/8 d n%8]"),
        (preset!("cpu-amx", h = 8, n = 32, d = 128), "h k[n/16 d/2 n%16 d%2] v[d/16 n/2 d%16 n%2]"),
        (preset!("nvfp4-flashinfer-swizzled", h = 8, n = 32, d = 128), "k[h n b] ks[h n s] v[h n b] vs[h n/4 s n%4]"),
        (preset!("nvfp4-msa", h = 8, n = 32, d = 128), "h k[n b] ks[n s] v[n b] vs[n s]"),
        (preset!("per-token-head", h = 8, n = 32, d = 128), "h n k[d] ks[] v[d] vs[]"),
        (preset!("mla", n = 32), "c[n r]"),
        (preset!("mla-fp8-ds", n = 32), "n q[512] sc[4] r[64]"),
        (preset!("deepseek-v4", n = 32), "c[n r] cs[n s] pad[p]"),
        (preset!("mamba2", cx = 64, cb = 16, t = 3, h = 2, p = 32, s = 16), "x[cx t] b[cb t] c[cc t] ssm[h p s]"),
    ];
    for (format, notation) in table {
        assert_eq!(format.notation(), *notation);
    }
}

#[test]
fn refusals_name_the_parameter() {
    assert_eq!(
        refused!("aiter-shuffle", h = 8, n = 16, d = 100),
        "page format: preset aiter-shuffle: d is 100, but must be a multiple of 8: that many elements are 16 bytes"
    );
    assert!(refused!("aiter-shuffle", h = 8, n = 8, d = 128, dtype = "i8").contains("n is 8, but must be a multiple"));
    assert!(refused!("page-16", h = 8, n = 24, d = 128).contains("sub-pages have 16 tokens"));
    assert!(refused!("packed-hnd", h = 8, d = 128).contains("needs n: states in one page"));
    assert!(refused!("packed-hnd", h = 0, n = 1, d = 128).contains("h is 0, but takes at least 1"));
    assert!(refused!("packed-hnd", h = "8", n = 1, d = 1).contains("h is \"8\", but takes a number"));
    assert!(refused!("packed-hnd", h = 8, n = 1, d = 1, x = 8).contains("takes no \"x\"; it takes h, n, d, dv, dtype"));
    assert!(refused!("packed-hnd", h = 8, n = 1, d = 1, dtype = 2).contains("takes the name of an element type"));
    assert!(refused!("packed-hnd", h = 8, n = 1, d = 1, dtype = "fp8").contains("say f8e4m3fn, f8e4m3fnuz"));
    assert!(refused!("cpu-amx", h = 8, n = 16, d = 16, dtype = "f32").contains("takes bf16 or f16 or"));
    assert!(refused!("two-slot-nhd", h = 8, n = 1, d = 1, side = "q").contains("side is \"q\", but takes both or k"));
    assert!(refused!("turboquant-aos", h = 8, n = 1, d = 8, scheme = "3bit", keys = "f8e4m3b15").contains("k8v4"));
    assert!(refused!("octave", h = 8, n = 1, d = 64, value_bits = 5).contains("takes 3 or 4"));
    assert!(refused!("octave", h = 8, n = 1, d = 64, rope = 72).contains("at most d, 64"));
    assert!(refused!("dsa-indexer", n = 100, kernel_n = 64).contains("n is 100, but must be a multiple of 64"));
    assert!(refused!("mamba1", cx = 64, t = 3, s = 16, page_bytes = 100).contains("the state alone has 4480"));
    assert!(refused!("packed", h = 8).contains("known are packed-hnd"));
    assert_eq!(refused!("packed-hnd", h = u64::MAX, n = 2, d = 2), "the bytes of a page does not fit 64 bits");
}

#[test]
fn types_follow_the_parameters() {
    let format = preset!("mla-fp8-ds", n = 64, dtype = "torch.float8_e4m3fnuz");
    let expected = Types::each([("q", ElementType::F8E4m3fnuz), ("sc", ElementType::F32), ("r", ElementType::Bf16)]);
    assert_eq!(format.types(), expected);
    assert_ne!(format, preset!("mla-fp8-ds", n = 64));
}
