//! Pages that hold one recurrent state: convolution inputs, then the state itself.
//!
//! The convolution parts have their own channel axes, because tensor parallelism shards each of them by itself.

use super::arguments::{Arguments, Kind, Parameter};
use super::{Preset, Recipe};
use crate::error::Result;
use crate::format::ElementType;
use crate::units::{add, mul, sub};

const ROWS: Parameter = Parameter::new(
    "t",
    "rows of the convolution: kernel size less 1, and one for each speculative token",
    Kind::Required,
);
const DTYPE: Parameter = Parameter::new("dtype", "element type of the convolution", Kind::Type(ElementType::Bf16));
const STATE_DTYPE: Parameter = Parameter::new("state_dtype", "element type of the state", Kind::Type(ElementType::F32));
const ORDER: Parameter = Parameter::new(
    "order",
    "channels outermost (ds) or rows outermost (sd), as VLLM_SSM_CONV_STATE_LAYOUT says",
    Kind::Choice(&["ds", "sd"]),
);
const PAGE: Parameter =
    Parameter::new("page_bytes", "bytes that the page is padded to; 0 leaves it as it is", Kind::Default(0));
const CX: Parameter = Parameter::new("cx", "channels of x that this rank holds", Kind::Required);
const HEADS: Parameter = Parameter::new("h", "state heads that this rank holds", Kind::Required);

const GDN: &[Parameter] = &[
    Parameter::new("cq", "channels of Q that this rank holds", Kind::Required),
    Parameter::new("ck", "channels of K that this rank holds", Kind::SameAs("cq")),
    Parameter::new("cv", "channels of V that this rank holds", Kind::Required),
    ROWS,
    HEADS,
    Parameter::new("dv", "rows of a head's state", Kind::Required),
    Parameter::new("dk", "columns of a head's state", Kind::Required),
    DTYPE,
    STATE_DTYPE,
    ORDER,
    PAGE,
];

pub(super) const PRESETS: &[Preset] = &[
    Preset {
        name: "mamba1",
        summary: "convolution of x, then the state of each channel",
        found_in: "vLLM: MAMBA1_ATTN",
        parameters: &[CX, ROWS, Parameter::new("s", "state size", Kind::Required), DTYPE, STATE_DTYPE, ORDER, PAGE],
        recipe: |with| state(with, &[("x", "cx")], &["cx", "s"]),
    },
    Preset {
        name: "mamba2",
        summary: "convolution of x, B and C, then the state of each head",
        found_in: "vLLM: MAMBA2_ATTN",
        parameters: &[
            CX,
            Parameter::new("cb", "channels of B that this rank holds", Kind::Required),
            Parameter::new("cc", "channels of C that this rank holds", Kind::SameAs("cb")),
            ROWS,
            HEADS,
            Parameter::new("p", "head size", Kind::Required),
            Parameter::new("s", "state size", Kind::Required),
            DTYPE,
            STATE_DTYPE,
            ORDER,
            PAGE,
        ],
        recipe: |with| state(with, &[("x", "cx"), ("b", "cb"), ("c", "cc")], &["h", "p", "s"]),
    },
    Preset {
        name: "gdn",
        summary: "convolution of Q, K and V, then the state of each V head",
        found_in: "vLLM: GDN_ATTN",
        parameters: GDN,
        recipe: |with| state(with, &[("q", "cq"), ("k", "ck"), ("v", "cv")], &["h", "dv", "dk"]),
    },
    Preset {
        name: "short-conv",
        summary: "convolution alone",
        found_in: "vLLM: SHORT_CONV_ATTN",
        parameters: &[CX, ROWS, DTYPE, ORDER, PAGE],
        recipe: |with| state(with, &[("x", "cx")], &[]),
    },
    Preset {
        name: "linear-attention",
        summary: "the state of each head alone",
        found_in: "vLLM: LINEAR_ATTN, BAILING_LINEAR_ATTN",
        parameters: &[
            HEADS,
            Parameter::new("dk", "rows of a head's state", Kind::Required),
            Parameter::new("dv", "columns of a head's state", Kind::SameAs("dk")),
            STATE_DTYPE,
            PAGE,
        ],
        recipe: |with| state(with, &[], &["h", "dk", "dv"]),
    },
];

/// Convolution parts, each with its channel axis, and the axes of the state.
fn state(with: &Arguments, parts: &[(&'static str, &'static str)], axes: &[&'static str]) -> Result<Recipe> {
    const BYTES: &str = "the bytes of a state";
    let mut items = Vec::new();
    let mut extents = Vec::new();
    let mut types = Vec::new();
    let mut bytes = 0;
    if !parts.is_empty() {
        let rows_first = with.word("order")? == "sd";
        let dtype = with.dtype("dtype")?;
        let row = if rows_first { "" } else { " t" };
        let written: Vec<_> = parts.iter().map(|(name, axis)| format!("{name}[{axis}{row}]")).collect();
        let written = written.join(" ");
        items.push(if rows_first { format!("(t {written})") } else { written });
        extents.extend(with.extents(&["t"])?);
        for (name, axis) in parts {
            let channels = with.number(axis)?;
            let elements = mul(channels, with.number("t")?, BYTES)?;
            bytes = add(bytes, mul(elements, dtype.bytes(), BYTES)?, BYTES)?;
            extents.push((*axis, channels));
            types.push((*name, dtype));
        }
    }
    if !axes.is_empty() {
        let dtype = with.dtype("state_dtype")?;
        items.push(format!("ssm[{}]", axes.join(" ")));
        types.push(("ssm", dtype));
        let shape = with.extents(axes)?;
        let elements = shape.iter().try_fold(1, |product, (_, extent)| mul(product, *extent, BYTES))?;
        bytes = add(bytes, mul(elements, dtype.bytes(), BYTES)?, BYTES)?;
        extents.extend(shape);
    }
    let page_bytes = with.number("page_bytes")?;
    if page_bytes != 0 && page_bytes < bytes {
        return Err(with.problem(format!("page_bytes is {page_bytes}, but the state alone has {bytes}")));
    }
    if page_bytes > bytes {
        items.push(format!("pad[{}]", sub(page_bytes, bytes, BYTES)?));
    }
    Ok(Recipe { notation: items.join(" "), extents, types })
}
