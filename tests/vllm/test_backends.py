"""Every backend of vLLM 0.33: its pages are known and held against the formula of what writes them, or it is named here
as one that is not.
"""

from __future__ import annotations

import ast
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvreshard import PageFormat
from kvreshard.demo import formulas
from kvreshard.demo.pattern import Page
from kvreshard.formats import Pages, Settings, Unknown, from_vllm_spec, known_backends
from tests.vllm.conftest import NEEDS_VLLM
from tests.vllm.specs import HEADS, SHAPE, SIZE, TOKENS, Dtype, attention, rows, slots
from tests.vllm.test_formats import KNOWN

HEAD_MAJOR = (
    "FLASH_ATTN",
    "TRITON_ATTN",
    "TRITON_FLASH_ATTN",
    "TRITON_FLASHINFER",
    "FLASHINFER",
    "ROCM_AITER_UNIFIED_ATTN",
    "QWEN4_EXP_QSA_TRITON",
    "INKLING_SCONV_SWA",
    "MINIMAX_M3_SPARSE",
)
# TurboQuant and UltraQuant leave some layers as they are.
TOKEN_MAJOR = ("FLEX_ATTENTION", "HPC_ATTN", "STEP5_DSA", "TURBOQUANT", "ULTRAQUANT")
MLA = (
    "FLASHMLA",
    "CUTLASS_MLA",
    "FLASHINFER_MLA",
    "TOKENSPEED_MLA",
    "FLASH_ATTN_MLA",
    "TRITON_MLA",
    "ROCM_AITER_MLA",
    "AITER_TRITON_MLA",
    "CPU_MLA",
    "AMX_MLA",
    "FLASHMLA_SPARSE",
    "FLASHINFER_MLA_SPARSE",
    "FLASHINFER_MLA_SPARSE_SM120",
    "FLASHINFER_MLA_SPARSE_SM90",
    "FLASH_ATTN_MLA_SPARSE",
    "FLASH_ATTN_MLA_SPARSE_FA4",
    "ROCM_AITER_MLA_SPARSE",
    "XPU_MLA_SPARSE",
    "DOTS3_NOTE_PADDED_MLA_SPARSE",
)
DEEPSEEK_V4 = (
    "FLASHMLA_SPARSE_DSV4",
    "FLASHINFER_MLA_SPARSE_DSV4",
    "ROCM_FLASHMLA_SPARSE_DSV4",
    "XPU_V4_MLA_SPARSE",
    "DEEPSEEK_SPARSE_SWA",
)
DEEPSEEK_V41 = (
    "FLASHMLA_SPARSE_DSV41",
    "FLASHMLA_MEGA_ATTN_DSV41",
    "FLASHINFER_MLA_SPARSE_DSV41",
    "ROCM_FLASHMLA_SPARSE_DSV41",
)
INDEXERS = ("DEEPSEEK_V32_INDEXER", "DEEPSEEK_V4_INDEXER", "DEEPSEEK_V41_INDEXER", "DEEPSEEK_V41_SPARSE_INDEXER")
PLAIN_ROWS = ("MINIMAX_M3_SPARSE_INDEXER", "QWEN4_EXP_EXP_QSA_STATE")
OPAQUE = ("DEEPSEEK_V41_ROCM_MXFP4_INDEXER", "DEEPSEEK_V4_ROCM_MXFP4_INDEXER")
# Tests of their own, here or in test_formats.py.
OTHERS = (
    "FLASH_ATTN_DIFFKV",
    "TRITON_ATTN_DIFFKV",
    "ROCM_ATTN",
    "ROCM_SEGMENTED_ATTN",
    "B12X",
    "ROCM_OCTAVE",
    "CPU_ATTN",
    "STEP5_CSA_SUMMARY",
)

# Names in vLLM's source that no page of a registered cache goes by, or whose pages are left unknown.
NOT_AMONG_THEM = {
    "CUTLASS_MSA": "an option of MINIMAX_M3_SPARSE, which reports that name",
    "TRITON_MSA": "an option of MINIMAX_M3_SPARSE, which reports that name",
    "CPU_SDPA_MLA": "prefill alone, without a cache of its own",
    "ZEN_CPU_SDPA_MLA": "prefill alone, without a cache of its own",
    "ROCM_AITER_FA": "prefill alone, without a cache of its own",
    "TRTLLM_RAGGED": "prefill alone, without a cache of its own",
    "CPU_V4_INDEXER": "unknown: DeepSeek-V4 on CPU",
    "CPU_V4_MLA_SPARSE": "unknown: DeepSeek-V4 on CPU",
    "CACHE_ONLY_ATTN": "unknown: hidden states",
    "CompressorBackend": "unknown: a ring, whose slots are no tokens",
    "KPOOL_TAIL": "unknown: a ring, whose slots are no tokens",
    "STEP5_CSA_TAIL_RING": "unknown: a ring, whose slots are no tokens",
    "MAMBA1_ATTN": "known by its spec: recurrent states",
    "MAMBA2_ATTN": "known by its spec: recurrent states",
    "GDN_ATTN": "known by its spec: recurrent states",
    "LINEAR_ATTN": "known by its spec: recurrent states",
    "BAILING_LINEAR_ATTN": "known by its spec: recurrent states",
    "KIMI_K3_KDA": "known by its spec: recurrent states",
    "KIMI_K3_KDA_ROCM": "known by its spec: recurrent states",
    "SHORT_CONV_ATTN": "unknown: short convolutions",
    "PLE_SHORT_CONV_ATTN": "unknown: short convolutions",
}


def _known(spec: Any, backend: str, layout: str = "LBHNC", settings: Settings | None = None) -> PageFormat:
    found = from_vllm_spec(spec, backend, layout, settings=settings)
    assert isinstance(found, Pages), found
    (form,) = found.formats
    return form


def _table(form: PageFormat, component: str) -> Any:
    """Offsets of a component's elements, `[head][token][content]` as the formulas have them, without axes of one."""
    rank = {"h": -2, "n": -1}
    names = [axis for axis, _ in form.axes(component)]
    order = sorted(range(len(names)), key=lambda at: (rank.get(names[at], 0), at))
    return np.squeeze(form.offsets(component).transpose(order))


def _same(form: PageFormat, page: Page, components: dict[str, str] | None = None) -> None:
    """Every element of the page's components, ours by name, lies where the formula says."""
    assert form.page_bytes == page.page_bytes
    for name, ours in (components or {one.name: one.name for one in page.components}).items():
        assert np.array_equal(_table(form, ours), np.squeeze(page.component(name).offsets)), name


@pytest.mark.parametrize("name", HEAD_MAJOR)
def test_packed_head_major(name: str) -> None:
    """K and V of a head and token side by side, heads outermost."""
    _same(_known(attention(), name), formulas.packed_hnd(SHAPE))


@pytest.mark.parametrize("name", TOKEN_MAJOR)
def test_packed_token_major(name: str) -> None:
    """The same, tokens outermost."""
    _same(_known(attention(), name, "LBNHC"), formulas.packed_nhd(SHAPE))


@pytest.mark.parametrize("name", ["FLASH_ATTN_DIFFKV", "TRITON_ATTN_DIFFKV"])
def test_heads_of_two_sizes(name: str) -> None:
    """K of 192 channels beside V of 128."""
    form = _known(attention(head_size=192, head_size_v=128), name)
    h, n, d = np.ogrid[:HEADS, :TOKENS, :192]
    start = (h * TOKENS + n) * 320
    assert np.array_equal(_table(form, "k"), (start + d) * 2)
    assert np.array_equal(_table(form, "v"), (start + 192 + d[..., :128]) * 2)
    assert form.page_bytes == HEADS * TOKENS * 320 * 2


@pytest.mark.parametrize("name", MLA)
def test_mla(name: str) -> None:
    """Rows of 16-bit elements."""
    _same(_known(rows(), name), formulas.mla_rows(TOKENS))


@pytest.mark.parametrize("name", [name for name in MLA if "SPARSE" in name])
def test_mla_of_fp8_with_scales(name: str) -> None:
    """Rows of 656 bytes."""
    spec = rows("uint8", head_size=656, state_content_bytes=656, cache_dtype_str="fp8_ds_mla")
    _same(_known(spec, name, settings=Settings(fp8="f8e4m3fn")), formulas.mla_fp8_ds(TOKENS))


@pytest.mark.parametrize("name", DEEPSEEK_V4)
def test_deepseek_v4(name: str) -> None:
    """Rows with their scales at the end of the page."""
    spec = rows("uint8", head_size=512, state_content_bytes=584, alignment=576, model_version="deepseek_v4")
    page = formulas.deepseek_v4(TOKENS)
    _same(_known(spec, name, "BLHNC", Settings(cache_dtype="fp8_ds_mla", fp8="f8e4m3fn")), page, {"c": "c"})


@pytest.mark.parametrize("name", DEEPSEEK_V41)
def test_deepseek_v41(name: str) -> None:
    """Rows of 528 bytes, their scales behind each."""
    spec = rows("uint8", head_size=512, state_content_bytes=528, alignment=512, model_version="deepseek_v41")
    form = _known(spec, name, "BLHNC")
    assert form.page_bytes == TOKENS * 528
    assert form.offset(form.components[0], **{axis: 0 for axis, _ in form.axes(form.components[0])} | {"n": 3}) == 1584


@pytest.mark.parametrize("name", INDEXERS)
@pytest.mark.parametrize("tiled", [False, True])
def test_indexer(name: str, tiled: bool) -> None:
    """Rows of fp8 with their scales at the end of the page, plain or in ROCm's tiles."""
    settings = Settings(fp8="f8e4m3fn", indexer_scales="f32", indexer_tiled=tiled)
    form = _known(rows("uint8", head_size=132), name, settings=settings)
    _same(form, formulas.dsa_indexer(TOKENS, tiled=tiled), {"k": "k"})


@pytest.mark.parametrize("name", PLAIN_ROWS)
def test_plain_rows(name: str) -> None:
    """One row a token, or one for several tokens."""
    spec = rows(head_size=SIZE, block_size=4 * TOKENS, tokens_per_state=4)
    _same(_known(spec, name), formulas.mla_rows(TOKENS, row=SIZE), {"c": "k"})


def test_summaries() -> None:
    """256 bytes of fp8 for every eight tokens."""
    spec = attention("uint8", num_kv_heads=1, head_size=256, head_size_v=0, block_size=8 * TOKENS, tokens_per_state=8)
    form = _known(spec, "STEP5_CSA_SUMMARY", "BLNHC", Settings(fp8="f8e4m3fn"))
    _same(form, formulas.mla_rows(TOKENS, row=256, element_bytes=1), {"c": "k"})
    assert isinstance(from_vllm_spec(spec, "STEP5_CSA_SUMMARY", "BLNHC"), Unknown)


@pytest.mark.parametrize(("scheme", "slot"), [("octave_k3v4", 128), ("octave_k3v3", 112), ("octave_k3v3_compact", 100)])
def test_octave(scheme: str, slot: int) -> None:
    """Codes of the rotary and the other channels of K, codes of V, scales: one slot a head and token."""
    spec = attention("uint8", state_content_bytes=slot)
    form = _known(spec, "ROCM_OCTAVE", settings=Settings(cache_dtype=scheme, octave_rope=64))
    assert form.page_bytes == HEADS * TOKENS * slot
    first = form.components[0]
    zero = {axis: 0 for axis, _ in form.axes(first)}
    assert form.offset(first, **zero | {"h": 2, "n": 3}) == (2 * TOKENS + 3) * slot


@dataclass
class MambaSpec:
    """vLLM's spec of recurrent states, as far as formats look."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Dtype, ...]
    mamba_type: Any
    page_size_bytes: int
    tp_replicated: bool = False


def test_mamba2() -> None:
    """Parts of the convolution, then the scan's state."""
    sizes = formulas.Mamba2(x=64, b=16, c=16, rows=3, heads=4, head_size=8, state_size=16)
    page = formulas.mamba2(sizes)
    spec = MambaSpec(
        ((96, 3), (4, 8, 16)), (Dtype("bfloat16"), Dtype("float32")), SimpleNamespace(name="MAMBA2"), page.page_bytes
    )
    found = from_vllm_spec(spec, "MAMBA2_ATTN", "LBHNC", settings=Settings(conv_channels=(64, 16, 16), conv_first=True))
    assert isinstance(found, Pages), found
    form = found.formats[0]
    assert form.page_bytes == page.page_bytes
    for one in page.components:
        assert np.array_equal(np.squeeze(form.offsets(one.name)), np.squeeze(one.offsets)), one.name
    assert found.shards == ("cx", "cb", "cc", "h")


@pytest.mark.parametrize("name", OPAQUE)
def test_opaque(name: str) -> None:
    """Pages in a library's own order are not guessed."""
    assert isinstance(from_vllm_spec(rows(), name, "BLHNC"), Unknown)


def test_every_known_name_is_tested() -> None:
    """A backend that is added is added here."""
    tested = {*HEAD_MAJOR, *TOKEN_MAJOR, *MLA, *DEEPSEEK_V4, *DEEPSEEK_V41, *INDEXERS, *PLAIN_ROWS, *OPAQUE, *OTHERS}
    assert known_backends() - {"SOME_FORK_ATTN"} == tested
    elsewhere = {row[0] for row in KNOWN} | {
        "FLASH_ATTN_DIFFKV",
        "TRITON_ATTN_DIFFKV",
        "ROCM_OCTAVE",
        "STEP5_CSA_SUMMARY",
    }
    assert set(OTHERS) <= elsewhere
    assert isinstance(from_vllm_spec(slots(), "B12X", "LBHNC"), Pages)


@pytest.mark.skipif(not os.environ.get("KVRESHARD_TEST_VLLM"), reason=f"KVRESHARD_TEST_VLLM is not {NEEDS_VLLM}")
def test_vllm_has_no_other() -> None:
    """All names that attention backends of the installed vLLM report are known, or listed here with the reason."""
    found = importlib.util.find_spec("vllm")
    assert found is not None
    assert found.origin is not None
    names: set[str] = set()
    for file in Path(found.origin).parent.rglob("*.py"):
        text = file.read_text()
        if "def get_name" in text:
            names |= _names(ast.parse(text))
    assert len(names) > 50
    assert not names - known_backends() - set(NOT_AMONG_THEM)


def _names(tree: ast.AST) -> set[str]:
    """What `get_name` returns in classes that are backends."""
    found = set()
    for kind in ast.walk(tree):
        if not isinstance(kind, ast.ClassDef) or not kind.name.endswith("Backend"):
            continue
        for method in kind.body:
            if isinstance(method, ast.FunctionDef) and method.name == "get_name":
                returned = [node.value for node in ast.walk(method) if isinstance(node, ast.Return)]
                found |= {
                    value.value
                    for value in returned
                    if isinstance(value, ast.Constant) and isinstance(value.value, str)
                }
    return found
