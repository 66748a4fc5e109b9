"""Page formats from vLLM's specs, against the formulas of the kernels that write such pages. Needs no vLLM."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kvreshard.demo import formulas
from kvreshard.formats import Case, Pages, Settings, Unknown, from_vllm_spec, register_backend
from tests.vllm.specs import BYTES, HEADS, SHAPE, SIZE, TOKENS, attention, rows, slots

_FP8 = Settings(cache_dtype="fp8", fp8="f8e4m3fn")
_KV = {"k": "d", "v": "d"}
_CODED = {"k": "b", "ks": "s", "v": "b", "vs": "s"}
_NVFP4 = attention("uint8", mode="NVFP4", num_head_slots=2 * HEADS, state_content_bytes=SIZE // 2 + SIZE // 16)

# Backend, layout, spec, settings, the writer's formulas, and the content axis of each component.
KNOWN: list[tuple[str, str, Any, Settings, Any, dict[str, str]]] = [
    ("FLASH_ATTN", "LBHNC", attention(), Settings(), formulas.packed_hnd(SHAPE), _KV),
    ("FLASH_ATTN", "BLHNC", attention(), Settings(), formulas.packed_hnd(SHAPE), _KV),
    ("FLASH_ATTN", "LBNHC", attention(), Settings(), formulas.packed_nhd(SHAPE), _KV),
    ("FLASHINFER", "BLNHC", attention("float16"), Settings(), formulas.packed_nhd(SHAPE), _KV),
    ("TRITON_ATTN", "LBHNC", attention("uint8", mode="FP8_PER_TENSOR"), _FP8, formulas.packed_hnd(BYTES), _KV),
    ("FLASH_ATTN", "LBHNC", slots(), Settings(), formulas.aiter_shuffle(SHAPE), _KV),
    ("B12X", "LBHNC", slots(), Settings(), formulas.two_slot_nhd(SHAPE), _KV),
    ("ROCM_SEGMENTED_ATTN", "LBHNC", slots(), Settings(), formulas.two_slot_nhd(SHAPE), _KV),
    ("ROCM_ATTN", "LBHNC", slots(), Settings(interleaved_v=False), formulas.rocm_attn(SHAPE), _KV),
    ("ROCM_ATTN", "LBHNC", slots(), Settings(interleaved_v=True), formulas.aiter_shuffle(SHAPE), _KV),
    ("MINIMAX_M3_SPARSE", "LBHNC", slots(), Settings(), formulas.page16(SHAPE), _KV),
    ("MINIMAX_M3_SPARSE", "LBHNC", attention(), Settings(), formulas.packed_hnd(SHAPE), _KV),
    ("MINIMAX_M3_SPARSE", "LBHNC", _NVFP4, Settings(), formulas.nvfp4_msa(SHAPE), _CODED),
    ("CPU_ATTN", "LBHNC", attention(), Settings(cpu_isa="amx"), formulas.cpu_amx(SHAPE), _KV),
    ("CPU_ATTN", "LBHNC", attention("float16"), Settings(cpu_isa="vec"), formulas.cpu_vec(SHAPE), _KV),
    ("FLASHINFER", "LBHNC", _NVFP4, Settings(nvfp4_scales="linear"), formulas.nvfp4_flashinfer(SHAPE), _CODED),
    (
        "FLASHINFER",
        "LBHNC",
        _NVFP4,
        Settings(nvfp4_scales="swizzled"),
        formulas.nvfp4_flashinfer(SHAPE, swizzled=True),
        _CODED,
    ),
    (
        "FLASHINFER",
        "LBNHC",
        _NVFP4,
        Settings(nvfp4_scales="linear"),
        formulas.nvfp4_flashinfer(SHAPE, token_major=True),
        _CODED,
    ),
    (
        "TRITON_ATTN",
        "LBHNC",
        attention("int8", mode="INT8_PER_TOKEN_HEAD", state_content_bytes=2 * (SIZE + 4)),
        Settings(),
        formulas.per_token_head(SHAPE),
        {"k": "d", "v": "d"},
    ),
    ("TRITON_MLA", "LBHNC", rows(), Settings(), formulas.mla_rows(TOKENS), {"c": "r"}),
    *(
        (
            "TURBOQUANT",
            "LBNHC",
            attention("uint8", mode="TURBOQUANT_K8V4", state_content_bytes=196),
            Settings(turboquant_soa=soa, turboquant_keys="f8e4m3fn"),
            writer(SHAPE),
            {"k": "d", "v": "vb"},
        )
        for soa, writer in ((False, formulas.turboquant_aos), (True, formulas.turboquant_soa))
    ),
    (
        "ULTRAQUANT",
        "LBNHC",
        attention("uint8", mode="ULTRAQUANT_4BIT", state_content_bytes=136),
        Settings(),
        formulas.ultraquant(SHAPE),
        _CODED,
    ),
    (
        "DEEPSEEK_V32_INDEXER",
        "LBHNC",
        rows("uint8", head_size=132),
        Settings(fp8="f8e4m3fn", indexer_scales="f32", indexer_tiled=False),
        formulas.dsa_indexer(TOKENS),
        {"k": "d"},
    ),
    (
        "DEEPSEEK_V32_INDEXER",
        "LBHNC",
        rows("uint8", head_size=132),
        Settings(fp8="f8e4m3fn", indexer_scales="f32", indexer_tiled=True),
        formulas.dsa_indexer(TOKENS, tiled=True),
        {"k": "d"},
    ),
    (
        "FLASHMLA_SPARSE_DSV4",
        "BLHNC",
        rows("uint8", head_size=512, state_content_bytes=584, alignment=576, model_version="deepseek_v4"),
        Settings(cache_dtype="fp8_ds_mla", fp8="f8e4m3fn"),
        formulas.deepseek_v4(TOKENS),
        {"c": "r"},
    ),
]


@pytest.mark.parametrize(
    ("backend", "layout", "spec", "settings", "page", "axes"), KNOWN, ids=[f"{row[0]} {row[4].name}" for row in KNOWN]
)
def test_as_the_kernels_write(
    backend: str, layout: str, spec: Any, settings: Settings, page: Any, axes: dict[str, str]
) -> None:
    """The format puts elements where the kernel's formula does."""
    found = from_vllm_spec(spec, backend, layout, settings=settings)
    assert isinstance(found, Pages), found
    (form,) = found.formats
    assert form.page_bytes == page.page_bytes
    draw = random.Random(backend + page.name)
    for name, axis in axes.items():
        table = page.component(name).offsets
        for _ in range(200):
            at = tuple(draw.randrange(extent) for extent in table.shape)
            index = {"n": at[1], axis: at[2]}
            if "h" in form.extents:
                index["h"] = at[0]
            assert form.offset(name, **index) == table[at]


@pytest.mark.parametrize(
    ("backend", "layout", "spec", "settings", "said"),
    [
        ("NO_SUCH_ATTN", "LBHNC", attention(), Settings(), "not among those"),
        ("ROCM_ATTN", "LBHNC", slots(), Settings(), "interleaves V"),
        ("CPU_ATTN", "LBHNC", attention(), Settings(), "instruction set"),
        ("CPU_ATTN", "LBHNC", attention(), Settings(cpu_isa="neon"), "neon"),
        ("FLASHINFER", "LBHNC", _NVFP4, Settings(), "swizzled"),
        ("FLASHINFER", "LHBNC", _NVFP4, Settings(nvfp4_scales="linear"), "LHBNC"),
        (
            "TRITON_ATTN",
            "LBHNC",
            attention("uint8", mode="FP8_PER_TENSOR"),
            Settings(cache_dtype="fp8"),
            "fp8 encoding",
        ),
        ("FLEX_ATTENTION", "LBNHC", slots(), Settings(), "not its packed pages"),
        ("B12X", "LBHNC", attention(), Settings(), "head slots"),
        ("FLASHMLA_SPARSE", "LBHNC", rows("uint8", state_content_bytes=700), Settings(), "700 bytes"),
        ("DEEPSEEK_V32_INDEXER", "LBHNC", rows("uint8", head_size=132), Settings(), "not known"),
        ("DEEPSEEK_V4_ROCM_MXFP4_INDEXER", "LBHNC", rows(), Settings(), "library"),
    ],
)
def test_unknown_says_why(backend: str, layout: str, spec: Any, settings: Settings, said: str) -> None:
    """What is not known is not guessed, and the reason says what is missing."""
    found = from_vllm_spec(spec, backend, layout, settings=settings)
    assert isinstance(found, Unknown)
    assert said in found.reason


def test_planes() -> None:
    """Slots that are planes have a format each: a head, or a side."""
    heads = from_vllm_spec(attention(), "FLASH_ATTN", "LHBNC")
    sides = from_vllm_spec(slots(), "FLASH_ATTN", "LHBNC")
    assert isinstance(heads, Pages)
    assert heads.planes
    assert len(heads.formats) == HEADS
    assert isinstance(sides, Pages)
    assert [form.components for form in sides.formats] == [["k"], ["v"]]
    assert not heads.standard
    assert not sides.standard


@pytest.mark.parametrize(
    ("backend", "layout", "spec", "standard"),
    [
        ("FLASH_ATTN", "LBHNC", attention(), True),
        ("FLASH_ATTN", "LBNHC", attention("float16"), True),
        ("TRITON_MLA", "LBHNC", rows(), True),
        ("FLASH_ATTN", "LBHNC", attention("float32"), False),
        ("FLASH_ATTN", "LBHNC", slots(), False),
        ("FLASH_ATTN", "LHBNC", attention(), False),
    ],
)
def test_standard(backend: str, layout: str, spec: Any, standard: bool) -> None:
    """Only packed pages and MLA rows of 16-bit elements may be taken for granted."""
    found = from_vllm_spec(spec, backend, layout)
    assert isinstance(found, Pages)
    assert found.standard is standard


def test_same_bytes_of_two_names() -> None:
    """Pages of 16 tokens are the same bytes as page-16 and as AITER shuffle: formats are compared, not names."""
    spec = slots()
    spec.block_size = 16
    one, other = (from_vllm_spec(spec, name, "LBHNC") for name in ("FLASH_ATTN", "MINIMAX_M3_SPARSE"))
    assert isinstance(one, Pages)
    assert isinstance(other, Pages)
    assert one.formats == other.formats


def test_register_backend() -> None:
    """A backend outside vLLM is described by whoever knows it, once."""
    packed = from_vllm_spec(attention(), "FLASH_ATTN", "LBHNC")
    assert isinstance(packed, Pages)

    def describe(case: Case) -> Pages | Unknown:
        return packed if case.heads == HEADS else Unknown("other heads")

    register_backend("SOME_FORK_ATTN", describe)
    assert from_vllm_spec(attention(), "SOME_FORK_ATTN", "LBHNC") is packed
    with pytest.raises(ValueError, match="known already"):
        register_backend("SOME_FORK_ATTN", describe)
