//! Pages of whole K and V elements: packed, two slots, and the orders that kernels shuffle them into.

use super::arguments::{Arguments, Kind, Parameter};
use super::{Preset, Recipe};
use crate::error::Result;
use crate::format::ElementType;
use crate::units::div;

pub(super) const H: Parameter = Parameter::new("h", "KV heads that this rank holds", Kind::Required);
pub(super) const N: Parameter = Parameter::new("n", "states in one page (tokens, mostly)", Kind::Required);
pub(super) const D: Parameter =
    Parameter::new("d", "head size of K, and of V unless dv says otherwise", Kind::Required);
const DV: Parameter = Parameter::new("dv", "head size of V", Kind::SameAs("d"));
const DTYPE: Parameter = Parameter::new("dtype", "element type of K and V", Kind::Type(ElementType::Bf16));
const SIDE: Parameter = Parameter::new(
    "side",
    "the slots that lie in one page: both, or one where K and V are planes of their own (LHBNC)",
    Kind::Choice(&["both", "k", "v"]),
);

const PACKED: &[Parameter] = &[H, N, D, DV, DTYPE];
const SLOTS: &[Parameter] = &[H, N, D, DTYPE, SIDE];

pub(super) const PRESETS: &[Preset] = &[
    Preset {
        name: "packed-hnd",
        summary: "head-major; K and V of a head and token side by side",
        found_in: "vLLM layouts LBHNC and BLHNC: FLASH_ATTN, FLASHINFER, TRITON_ATTN and most others",
        parameters: PACKED,
        recipe: |with| packed(with, "h n ", &["h", "n", "d"]),
    },
    Preset {
        name: "packed-nhd",
        summary: "token-major; K and V of a token and head side by side",
        found_in: "vLLM layouts LBNHC and BLNHC: FLEX_ATTENTION, HPC_ATTN, STEP5_DSA, others by choice",
        parameters: PACKED,
        recipe: |with| packed(with, "n h ", &["h", "n", "d"]),
    },
    Preset {
        name: "packed-plane",
        summary: "the page of one head, where each head has a plane of its own",
        found_in: "vLLM layout LHBNC, packed backends; one segment a head",
        parameters: &[N, D, DV, DTYPE],
        recipe: |with| packed(with, "n ", &["n", "d"]),
    },
    Preset {
        name: "two-slot-nhd",
        summary: "all K, then all V, both token-major",
        found_in: "vLLM: B12X, ROCM_SEGMENTED_ATTN",
        parameters: SLOTS,
        recipe: |with| slots(with, "k[n h d]", "v[n h d]"),
    },
    Preset {
        name: "aiter-shuffle",
        summary: "all K, then all V; K in 16-byte vectors of channels, V in 16-byte vectors of tokens",
        found_in: "vLLM: ROCM_AITER_FA (reported as FLASH_ATTN) with VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT; ROCM_ATTN after the fused cache pass",
        parameters: SLOTS,
        recipe: |with| {
            let x = vector(with)?;
            with.multiple("d", x, VECTOR)?;
            with.multiple("n", x, VECTOR)?;
            slots(with, &format!("k[h d/{x} n d%{x}]"), &format!("v[h n/{x} d n%{x}]"))
        },
    },
    Preset {
        name: "rocm-attn",
        summary: "all K in 16-byte vectors of channels, then all V with tokens innermost",
        found_in: "vLLM: ROCM_ATTN without the fused cache pass",
        parameters: SLOTS,
        recipe: |with| {
            let x = vector(with)?;
            with.multiple("d", x, VECTOR)?;
            slots(with, &format!("k[h d/{x} n d%{x}]"), "v[h d n]")
        },
    },
    Preset {
        name: "page-16",
        summary: "aiter-shuffle in sub-pages of 16 tokens within each slot",
        found_in: "vLLM: MiniMax-M3 on AMD with AITER's sparse attention (reported as MINIMAX_M3_SPARSE)",
        parameters: SLOTS,
        recipe: |with| {
            let x = vector(with)?;
            with.multiple("d", x, VECTOR)?;
            with.multiple("n", 16, "sub-pages have 16 tokens")?;
            let key = format!("k[n/16 h d/{x} n%16 d%{x}]");
            slots(with, &key, &format!("v[n/16 h n%16/{x} d n%{x}]"))
        },
    },
    Preset {
        name: "cpu-vec",
        summary: "head-major; all K of a head with tokens innermost, then all V of it",
        found_in: "vLLM: CPU_ATTN with the vec, vec16, NEON, RVV, VSX and VXE kernels",
        parameters: &[H, N, D, DTYPE],
        recipe: |with| cpu(with, "k[d n]", "v[n d]"),
    },
    Preset {
        name: "cpu-amx",
        summary: "head-major; K and V of a head in tiles of 16 by 4 bytes",
        found_in: "vLLM: CPU_ATTN with the AMX kernels",
        parameters: &[
            H,
            N,
            D,
            Parameter::new(
                "dtype",
                "element type of K and V, at most 4 bytes",
                Kind::TypeOf(&[
                    ElementType::Bf16,
                    ElementType::F16,
                    ElementType::F8E4m3fn,
                    ElementType::F8E5m2,
                    ElementType::I8,
                ]),
            ),
        ],
        recipe: |with| {
            let w = div(4, with.dtype("dtype")?.bytes(), "elements in 4 bytes")?;
            with.multiple("n", 16, "a tile has 16 tokens")?;
            with.multiple("d", 16, "a tile has 16 channels")?;
            cpu(with, &format!("k[n/16 d/{w} n%16 d%{w}]"), &format!("v[d/16 n/{w} d%16 n%{w}]"))
        },
    },
];

const VECTOR: &str = "that many elements are 16 bytes";

/// How many elements are 16 bytes.
fn vector(with: &Arguments) -> Result<u64> {
    div(16, with.dtype("dtype")?.bytes(), "elements in 16 bytes")
}

/// One axis `d` when both head sizes are equal, so that such formats match others that were written with one.
fn packed(with: &Arguments, loops: &str, axes: &[&'static str]) -> Result<Recipe> {
    let mut extents = with.extents(axes)?;
    let value_axis = if with.number("d")? == with.number("dv")? { "d" } else { "dv" };
    if value_axis == "dv" {
        extents.extend(with.extents(&["dv"])?);
    }
    let dtype = with.dtype("dtype")?;
    Ok(Recipe { notation: format!("{loops}k[d] v[{value_axis}]"), extents, types: vec![("k", dtype), ("v", dtype)] })
}

fn slots(with: &Arguments, key: &str, value: &str) -> Result<Recipe> {
    let dtype = with.dtype("dtype")?;
    let (notation, types) = match with.word("side")? {
        "k" => (key.to_owned(), vec![("k", dtype)]),
        "v" => (value.to_owned(), vec![("v", dtype)]),
        _ => (format!("{key} {value}"), vec![("k", dtype), ("v", dtype)]),
    };
    Ok(Recipe { notation, extents: with.extents(&["h", "n", "d"])?, types })
}

fn cpu(with: &Arguments, key: &str, value: &str) -> Result<Recipe> {
    let dtype = with.dtype("dtype")?;
    Ok(Recipe {
        notation: format!("h {key} {value}"),
        extents: with.extents(&["h", "n", "d"])?,
        types: vec![("k", dtype), ("v", dtype)],
    })
}
