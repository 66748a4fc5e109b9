//! Pages of latent rows (MLA) and of the indexers beside them. None has a head axis: every rank holds the same bytes.

use super::arguments::{Arguments, Kind, Parameter};
use super::attention::N;
use super::{Preset, Recipe};
use crate::error::Result;
use crate::format::ElementType;
use crate::units::{add, mul, rem, sub};

const ROW: Parameter = Parameter::new("r", "elements of a row", Kind::Default(576));
const FP8: Parameter = Parameter::new(
    "dtype",
    "encoding of the fp8 part",
    Kind::TypeOf(&[ElementType::F8E4m3fn, ElementType::F8E4m3fnuz]),
);
const INDEX_D: Parameter = Parameter::new("d", "head size of the indexer", Kind::Default(128));
const KERNEL_N: Parameter = Parameter::new(
    "kernel_n",
    "states of one kernel page, where the page given to a connector holds several",
    Kind::SameAs("n"),
);

pub(super) const PRESETS: &[Preset] = &[
    Preset {
        name: "mla",
        summary: "one latent row a token, of one element type",
        found_in: "vLLM: every MLA backend with a 16-bit or plain fp8 cache (r is 576 for DeepSeek); rows of another make with dtype u8 and their bytes as r",
        parameters: &[N, ROW, Parameter::new("dtype", "element type of the row", Kind::Type(ElementType::Bf16))],
        recipe: |with| {
            Ok(Recipe {
                notation: "c[n r]".to_owned(),
                extents: with.extents(&["n", "r"])?,
                types: vec![("c", with.dtype("dtype")?)],
            })
        },
    },
    Preset {
        name: "mla-fp8-ds",
        summary: "rows of 512 fp8, 4 fp32 scales, 64 bf16",
        found_in: "vLLM: sparse MLA with cache type fp8_ds_mla",
        parameters: &[N, FP8],
        recipe: |with| {
            Ok(Recipe {
                notation: "n q[512] sc[4] r[64]".to_owned(),
                extents: with.extents(&["n"])?,
                types: vec![("q", with.dtype("dtype")?), ("sc", ElementType::F32), ("r", ElementType::Bf16)],
            })
        },
    },
    Preset {
        name: "mla-nvfp4-ds",
        summary: "rows of 512 fp4 in 256 bytes, 64 fp8, 32 fp8 scales in 4 interleaved runs",
        found_in: "vLLM: sparse MLA with cache type nvfp4_ds_mla",
        parameters: &[N],
        recipe: |with| {
            let mut extents = with.extents(&["n"])?;
            extents.push(("s", 32));
            let fp8 = ElementType::F8E4m3fn;
            Ok(Recipe {
                notation: "n q[256] r[64] sc[s%4 s/4]".to_owned(),
                extents,
                types: vec![("q", ElementType::Fp4x2), ("r", fp8), ("sc", fp8)],
            })
        },
    },
    Preset {
        name: "mla-per-token-head",
        summary: "rows of codes with 8 bytes of scales",
        found_in: "vLLM: MLA with a per-token-head quantised cache",
        parameters: &[
            N,
            ROW,
            Parameter::new(
                "dtype",
                "type of the codes; r counts its elements",
                Kind::TypeOf(&[ElementType::I8, ElementType::F8E4m3fn, ElementType::F8E4m3fnuz, ElementType::I4x2]),
            ),
        ],
        recipe: |with| {
            Ok(Recipe {
                notation: "n c[r] cs[8]".to_owned(),
                extents: with.extents(&["n", "r"])?,
                types: vec![("c", with.dtype("dtype")?), ("cs", ElementType::U8)],
            })
        },
    },
    Preset {
        name: "deepseek-v4",
        summary: "rows of 576 bytes (448 fp8, 64 bf16), then 8 scale bytes a row, rounded up to 576 bytes",
        found_in: "vLLM: DeepSeek-V4 latent caches",
        parameters: &[
            N,
            Parameter::new(
                "dtype",
                "encoding of the fp8 part; rows are counted in bytes",
                Kind::TypeOf(&[ElementType::F8E4m3fn, ElementType::F8E4m3fnuz]),
            ),
            KERNEL_N,
        ],
        recipe: deepseek_v4,
    },
    Preset {
        name: "deepseek-v4.1",
        summary: "rows of 512 fp8 and 16 scale bytes",
        found_in: "vLLM: DeepSeek-V4.1 latent caches on SM100",
        parameters: &[N],
        recipe: |with| {
            Ok(Recipe {
                notation: "n c[512] cs[16]".to_owned(),
                extents: with.extents(&["n"])?,
                types: vec![("c", ElementType::F8E4m3fn), ("cs", ElementType::F8E8m0)],
            })
        },
    },
    Preset {
        name: "dsa-indexer",
        summary: "all rows of the indexer, then a 4-byte scale a row",
        found_in: "vLLM: DeepSeek-V3.2 and V4 indexers; on ROCm where rows are plain",
        parameters: &[
            N,
            INDEX_D,
            FP8,
            Parameter::new(
                "scales",
                "an fp32 scale, or the same power of two in 4 bytes (SM100)",
                Kind::Choice(&["f32", "ue8m0"]),
            ),
            KERNEL_N,
        ],
        recipe: |with| {
            let (scale, scale_type) =
                if with.word("scales")? == "f32" { ("", ElementType::F32) } else { (" 4", ElementType::F8E8m0) };
            let (outer, row) = kernel_pages(with)?;
            Ok(Recipe {
                notation: format!("{outer}k[{row} d] ks[{row}{scale}]"),
                extents: with.extents(&["n", "d"])?,
                types: vec![("k", with.dtype("dtype")?), ("ks", scale_type)],
            })
        },
    },
    Preset {
        name: "dsa-indexer-rocm",
        summary: "dsa-indexer with its rows in tiles of 16 tokens by 16 channels",
        found_in: "vLLM on ROCm: DeepSeek-V3.2 indexers with pages of more than one token",
        parameters: &[N, INDEX_D, FP8],
        recipe: |with| {
            with.multiple("n", 16, "a tile has 16 tokens")?;
            with.multiple("d", 16, "a tile has 16 channels")?;
            Ok(Recipe {
                notation: "k[n/16 d/16 n%16 d%16] ks[n]".to_owned(),
                extents: with.extents(&["n", "d"])?,
                types: vec![("k", with.dtype("dtype")?), ("ks", ElementType::F32)],
            })
        },
    },
    Preset {
        name: "indexer-rows",
        summary: "one plain row of the indexer a token",
        found_in: "vLLM: MiniMax-M3 indexers",
        parameters: &[N, INDEX_D, Parameter::new("dtype", "element type of the row", Kind::Type(ElementType::Bf16))],
        recipe: |with| {
            Ok(Recipe {
                notation: "k[n d]".to_owned(),
                extents: with.extents(&["n", "d"])?,
                types: vec![("k", with.dtype("dtype")?)],
            })
        },
    },
];

/// The loop over kernel pages, where there are several, and the loop over the rows of one.
fn kernel_pages(with: &Arguments) -> Result<(String, String)> {
    let kernel = with.number("kernel_n")?;
    if kernel == with.number("n")? {
        return Ok((String::new(), "n".to_owned()));
    }
    with.multiple("n", kernel, "that is kernel_n, and a page holds whole kernel pages")?;
    Ok((format!("n/{kernel} "), format!("n%{kernel}")))
}

fn deepseek_v4(with: &Arguments) -> Result<Recipe> {
    const PAGE: &str = "the bytes of a page";
    const ROW_BYTES: u64 = 576;
    const SCALE_BYTES: u64 = 8;
    let (outer, row) = kernel_pages(with)?;
    let bytes = mul(with.number("kernel_n")?, add(ROW_BYTES, SCALE_BYTES, PAGE)?, PAGE)?;
    let over = rem(bytes, ROW_BYTES, PAGE)?;
    let mut notation = format!("{outer}c[{row} r] cs[{row} s]");
    let mut extents = with.extents(&["n"])?;
    extents.extend([("r", ROW_BYTES), ("s", SCALE_BYTES)]);
    if over != 0 {
        notation.push_str(" pad[p]");
        extents.push(("p", sub(ROW_BYTES, over, PAGE)?));
    }
    Ok(Recipe { notation, extents, types: vec![("c", with.dtype("dtype")?), ("cs", ElementType::F8E8m0)] })
}
