//! Pages of codes and scales.

use super::arguments::{Arguments, Kind, Parameter};
use super::attention::{D, H, N};
use super::{Preset, Recipe};
use crate::error::Result;
use crate::format::ElementType;
use crate::units::{add, div, div_ceil, mul, rem, sub};

const ORDER: Parameter =
    Parameter::new("order", "head-major (hnd) or token-major (nhd)", Kind::Choice(&["hnd", "nhd"]));
const SCHEME: Parameter = Parameter::new(
    "scheme",
    "bits of K and V: fp8 and 4, 4 and 4, 3 and 4, 3 and 3",
    Kind::Choice(&["k8v4", "4bit", "k3v4", "3bit"]),
);
const KEYS: Parameter = Parameter::new(
    "keys",
    "encoding of fp8 keys (scheme k8v4 only); devices before SM 8.9 store f8e4m3b15",
    Kind::TypeOf(&[ElementType::F8E4m3fn, ElementType::F8E4m3b15]),
);
const VALUE_BITS: Parameter = Parameter::new("value_bits", "bits of a V code: 3 or 4", Kind::Default(4));

pub(super) const PRESETS: &[Preset] = &[
    Preset {
        name: "nvfp4-flashinfer",
        summary: "K codes, K scales, V codes, V scales as four parts; a scale for 16 codes",
        found_in: "vLLM: FLASHINFER with an nvfp4 cache on the FA2 path",
        parameters: &[H, N, D, ORDER],
        recipe: |with| {
            let rows = row_loops(with)?;
            nvfp4(with, &format!("k[{rows} b] ks[{rows} s] v[{rows} b] vs[{rows} s]"))
        },
    },
    Preset {
        name: "nvfp4-flashinfer-swizzled",
        summary: "nvfp4-flashinfer, head-major, with the V scales of 4 tokens interleaved",
        found_in: "vLLM: FLASHINFER with an nvfp4 cache on the trtllm-gen path (SM100 family)",
        parameters: &[H, N, D],
        recipe: |with| {
            with.multiple("n", 4, "V scales are interleaved over 4 tokens")?;
            with.multiple("d", 64, "the scales of a row, one for 16 channels, are split in 4")?;
            nvfp4(with, "k[h n b] ks[h n s] v[h n b] vs[h n/4 s n%4]")
        },
    },
    Preset {
        name: "nvfp4-msa",
        summary: "head by head: K codes, K scales, V codes, V scales",
        found_in: "vLLM: MiniMax-M3 sparse attention on SM100 with an nvfp4 cache (reported as MINIMAX_M3_SPARSE)",
        parameters: &[H, N, D],
        recipe: |with| nvfp4(with, "h k[n b] ks[n s] v[n b] vs[n s]"),
    },
    Preset {
        name: "per-token-head",
        summary: "packed, with an fp32 scale behind the K and the V of each token and head",
        found_in: "vLLM: TRITON_ATTN with a per-token-head quantised cache",
        parameters: &[
            H,
            N,
            D,
            Parameter::new(
                "dtype",
                "type of the codes",
                Kind::TypeOf(&[ElementType::I8, ElementType::F8E4m3fn, ElementType::F8E4m3fnuz, ElementType::I4x2]),
            ),
            ORDER,
        ],
        recipe: per_token_head,
    },
    Preset {
        name: "turboquant-aos",
        summary: "token-major slots of K codes, K norm, V codes, V scale, V zero",
        found_in: "vLLM: TURBOQUANT, by default",
        parameters: &[H, N, D, SCHEME, KEYS],
        recipe: |with| {
            let turbo = Turbo::new(with)?;
            let pad = if turbo.odd { " pad[1]" } else { "" };
            let norm = if turbo.norm { " kn[]" } else { "" };
            turbo.recipe(with, format!("n h {}{norm} v[vb] vs[] vz[]{pad}", turbo.keys))
        },
    },
    Preset {
        name: "turboquant-soa",
        summary: "all codes token-major, then norms, scales and zeros head by head with tokens innermost",
        found_in: "vLLM: TURBOQUANT on gfx950 with FlyDSL",
        parameters: &[H, N, D, SCHEME, KEYS],
        recipe: |with| {
            let turbo = Turbo::new(with)?;
            let pad = if turbo.odd { " pad[n h]" } else { "" };
            let norm = if turbo.norm { "kn[n] " } else { "" };
            turbo.recipe(with, format!("(n h {} v[vb]) (h {norm}vs[n] vz[n]){pad}", turbo.keys))
        },
    },
    Preset {
        name: "ultraquant",
        summary: "token-major slots of K codes, K scales, V codes, V scales; a scale for 32 codes",
        found_in: "vLLM: ULTRAQUANT",
        parameters: &[H, N, D],
        recipe: |with| {
            with.multiple("d", 32, "a scale stands for 32 channels")?;
            let mut extents = with.extents(&["h", "n"])?;
            let d = with.number("d")?;
            extents.extend([("b", div(d, 2, "d")?), ("s", div(d, 32, "d")?)]);
            Ok(Recipe {
                notation: "n h k[b] ks[s] v[b] vs[s]".to_owned(),
                extents,
                types: coded(ElementType::Fp4x2, ElementType::F8E8m0),
            })
        },
    },
    Preset {
        name: "octave",
        summary: "slots of K rope codes (4 bits), K codes (3 bits), V codes, fp16 scales, padded to 8 bytes",
        found_in: "vLLM: ROCM_OCTAVE",
        parameters: &[
            H,
            N,
            D,
            Parameter::new("rope", "rotary channels of K; may be 0", Kind::Default(0)),
            VALUE_BITS,
            ORDER,
        ],
        recipe: |with| {
            with.multiple("d", 64, "a K scale stands for 64 channels")?;
            octave(with, with.number("rope")?, div(with.number("d")?, 64, "d")?, 8)
        },
    },
    Preset {
        name: "octave-compact",
        summary: "octave without rope codes, with one K scale, padded to 4 bytes",
        found_in: "vLLM: ROCM_OCTAVE, compact",
        parameters: &[H, N, D, VALUE_BITS, ORDER],
        recipe: |with| octave(with, 0, 1, 4),
    },
];

fn row_loops(with: &Arguments) -> Result<&'static str> {
    Ok(if with.word("order")? == "nhd" { "n h" } else { "h n" })
}

fn coded(codes: ElementType, scales: ElementType) -> Vec<(&'static str, ElementType)> {
    vec![("k", codes), ("ks", scales), ("v", codes), ("vs", scales)]
}

fn nvfp4(with: &Arguments, notation: &str) -> Result<Recipe> {
    with.multiple("d", 16, "a scale stands for 16 channels")?;
    let mut extents = with.extents(&["h", "n"])?;
    let d = with.number("d")?;
    extents.extend([("b", div(d, 2, "d")?), ("s", div(d, 16, "d")?)]);
    let types = coded(ElementType::Fp4x2, ElementType::F8E4m3fn);
    Ok(Recipe { notation: notation.to_owned(), extents, types })
}

fn per_token_head(with: &Arguments) -> Result<Recipe> {
    let dtype = with.dtype("dtype")?;
    let mut extents = with.extents(&["h", "n"])?;
    let axis = if dtype == ElementType::I4x2 {
        with.multiple("d", 2, "two codes are a byte")?;
        extents.push(("b", div(with.number("d")?, 2, "d")?));
        "b"
    } else {
        extents.extend(with.extents(&["d"])?);
        "d"
    };
    let rows = row_loops(with)?;
    Ok(Recipe {
        notation: format!("{rows} k[{axis}] ks[] v[{axis}] vs[]"),
        extents,
        types: coded(dtype, ElementType::F32),
    })
}

/// What the two TurboQuant pages have in common.
struct Turbo {
    keys: &'static str,
    key_type: ElementType,
    norm: bool,
    extents: Vec<(&'static str, u64)>,
    /// Whether a slot has an odd number of bytes and is rounded up.
    odd: bool,
}

impl Turbo {
    fn new(with: &Arguments) -> Result<Self> {
        let d = with.number("d")?;
        with.multiple("d", 2, "two 4-bit codes are a byte")?;
        let halves = div(d, 2, "d")?;
        let thirds = div_ceil(mul(3, d, "the bits of a row")?, 8, "the bits of a row")?;
        let mut extents = with.extents(&["h", "n"])?;
        let (keys, key_bytes, value_bytes) = match with.word("scheme")? {
            "k8v4" => ("k[d]", d, halves),
            "4bit" => ("k[kb]", halves, halves),
            "k3v4" => ("k[kb]", thirds, halves),
            _ => ("k[kb]", thirds, thirds),
        };
        let norm = keys != "k[d]";
        extents.extend([(if norm { "kb" } else { "d" }, key_bytes), ("vb", value_bytes)]);
        Ok(Self {
            keys,
            key_type: if norm { ElementType::U8 } else { with.dtype("keys")? },
            norm,
            extents,
            odd: rem(add(key_bytes, value_bytes, "the bytes of a slot")?, 2, "the bytes of a slot")? == 1,
        })
    }

    fn recipe(&self, with: &Arguments, notation: String) -> Result<Recipe> {
        let half = ElementType::F16;
        let mut types = vec![("k", self.key_type), ("v", ElementType::U8), ("vs", half), ("vz", half)];
        if self.norm {
            types.push(("kn", half));
            if with.dtype("keys")? != ElementType::F8E4m3fn {
                return Err(with.problem("keys is for scheme k8v4; the other schemes have no fp8 keys"));
            }
        }
        Ok(Recipe { notation, extents: self.extents.clone(), types })
    }
}

fn octave(with: &Arguments, rope: u64, key_scales: u64, align: u64) -> Result<Recipe> {
    const SLOT: &str = "the bytes of a slot";
    let d = with.number("d")?;
    with.multiple("d", 8, "codes are packed 8 at a time")?;
    if rope > d || rem(rope, 8, "rope")? != 0 {
        return Err(with.problem(format!("rope is {rope}, but must be a multiple of 8 and at most d, {d}")));
    }
    let value_bits = with.number("value_bits")?;
    if value_bits != 3 && value_bits != 4 {
        return Err(with.problem(format!("value_bits is {value_bits}, but takes 3 or 4")));
    }
    let packed = |channels: u64, bits: u64| div(mul(channels, bits, SLOT)?, 8, SLOT);
    let parts = [
        ("kr", "rb", packed(rope, 4)?, ElementType::U8),
        ("k", "kb", packed(sub(d, rope, "d")?, 3)?, ElementType::U8),
        ("v", "vb", packed(d, value_bits)?, ElementType::U8),
        ("ks", "s", key_scales, ElementType::F16),
    ];
    let mut notation = row_loops(with)?.to_owned();
    let mut extents = with.extents(&["h", "n"])?;
    let mut types = vec![("vs", ElementType::F16)];
    let mut bytes = ElementType::F16.bytes();
    for (name, axis, extent, dtype) in parts.into_iter().filter(|part| part.2 != 0) {
        notation.push_str(&format!(" {name}[{axis}]"));
        extents.push((axis, extent));
        types.push((name, dtype));
        bytes = add(bytes, mul(extent, dtype.bytes(), SLOT)?, SLOT)?;
    }
    notation.push_str(" vs[]");
    let over = rem(bytes, align, SLOT)?;
    if over != 0 {
        notation.push_str(&format!(" pad[{}]", sub(align, over, SLOT)?));
    }
    Ok(Recipe { notation, extents, types })
}
