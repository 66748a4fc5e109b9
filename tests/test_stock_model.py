"""The model of stock vLLM 0.33 says of every pair in tests/vllm what real engines did, and counts as was measured."""

from __future__ import annotations

from typing import Any

import pytest

from kvreshard.cli.backends import choose, pages_of
from kvreshard.cli.sides import Side
from kvreshard.cli.stock import right_share, verdict
from kvreshard.cli.vllm import BACKENDS, Shape
from tests.vllm.cases import ROWS, Row

# The harness's names of page formats, as backends.
BACKEND = {
    "packed": "rocm_aiter_fa",
    "nhd": "triton_attn",
    "rocm_attn": "rocm_attn",
    "aiter_shuffle": "rocm_aiter_fa:shuffle",
    "b12x": "b12x",
    "page16": "minimax_m3_sparse:amd",
    "cpu_vec": "cpu_attn:isa=vec",
    "cpu_amx": "cpu_attn:isa=amx",
    "nvfp4": "flashinfer:nvfp4,scales=linear",
}
DTYPE = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}


def side(engine: str, given: dict[str, Any], rest: dict[str, Any]) -> Side:
    name = BACKEND[given["format"]]
    text = f"{name}{',' if ':' in name else ':'}layout={given['layout']}"
    dtype = DTYPE[rest.get("dtype", "float16")]
    return Side(engine, text, rest.get("heads", 4), 64, given["page"], given["tp"], dtype=dtype)


@pytest.mark.parametrize("mode", ["pull", "push"])
@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_the_model_says_what_real_engines_did(row: Row, mode: str) -> None:
    """`make test-vllm` holds the same rows against engines of vLLM."""
    prefill, decode = side("prefill", row.prefill, row.rest), side("decode", row.decode, row.rest)
    # The harness gives layers their backend directly, so no selector refuses it.
    found = verdict(prefill, decode, push=mode == "push", hit=row.rest.get("hit", 0), vetoes=False)
    assert found.outcome == row.expected("stock", mode), found.why


def small(text: str, engine: str, tp: int, page: int = 16) -> Side:
    return Side(engine, text, heads=4, head_size=32, page=page, tp=tp)


@pytest.mark.parametrize(
    ("text", "tps", "share"),
    [
        ("rocm_aiter_fa", (1, 2), 1.0),
        ("rocm_aiter_fa", (2, 1), 1.0),
        ("b12x", (1, 2), 0.03),
        ("b12x", (2, 1), 0.03),
        ("rocm_aiter_fa:shuffle", (1, 2), 0.5),
        ("rocm_aiter_fa:shuffle", (2, 1), 0.5),
        # Of four decode ranks the two in the middle get nothing right.
        ("rocm_aiter_fa:shuffle", (1, 4), 0.0),
        ("rocm_attn", (1, 2), 0.5),
        ("cpu_attn:isa=vec", (1, 2), 1.0),
    ],
)
def test_unequal_tensor_parallelism(text: str, tps: tuple[int, int], share: float) -> None:
    found = right_share(small(text, "prefill", tps[0]), small(text, "decode", tps[1]))
    assert found == pytest.approx(share, abs=0.005)


@pytest.mark.parametrize(
    ("text", "pages", "share"),
    [
        ("rocm_aiter_fa", (16, 64), 1.0),
        ("b12x", (16, 64), 1.0),
        ("minimax_m3_sparse:amd", (16, 64), 1.0),
        ("rocm_aiter_fa:shuffle", (16, 64), 0.156),
        ("rocm_attn", (16, 64), 0.033),
        ("cpu_attn:isa=vec", (16, 64), 0.133),
        ("cpu_attn:isa=amx", (16, 64), 0.25),
    ],
)
def test_unequal_pages(text: str, pages: tuple[int, int], share: float) -> None:
    found = right_share(small(text, "prefill", 1, pages[0]), small(text, "decode", 1, pages[1]))
    assert found == pytest.approx(share, abs=0.001)


@pytest.mark.parametrize(
    ("one", "other", "share"),
    [
        ("rocm_aiter_fa:shuffle", "rocm_aiter_fa", 0.003),
        ("rocm_attn", "rocm_aiter_fa:shuffle", 0.516),
        ("b12x", "rocm_aiter_fa", 0.016),
        ("rocm_aiter_fa:shuffle", "minimax_m3_sparse:amd", 1.0),
    ],
)
def test_one_format_read_as_another(one: str, other: str, share: float) -> None:
    found = right_share(small(one, "prefill", 1), small(other, "decode", 1))
    assert found == pytest.approx(share, abs=0.002)


def test_one_name_two_encodings() -> None:
    sides = [
        Side(engine, "flash_attn", dtype=dtype) for engine, dtype in (("prefill", "f8e4m3fn"), ("decode", "f8e4m3fnuz"))
    ]
    found = verdict(*sides)
    assert found.outcome == "wrong"
    assert "f8e4m3fn and f8e4m3fnuz under one name" in found.why


def test_a_veto_is_believed() -> None:
    sides = Side("prefill", "rocm_attn"), Side("decode", "rocm_attn")
    assert verdict(*sides).outcome == "refused"
    assert verdict(*sides, vetoes=False).outcome == "right"


@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_has_pages(name: str) -> None:
    choice = choose(name)
    for layout in choice.backend.layouts:
        if layout in ("BHLNC", "LHBNC") and choice.backend.mode != "NONE":
            continue
        built = pages_of(
            choose(f"{name}{',' if ':' in name else ':'}layout={layout}"),
            Shape(4, choice.backend.pages[0], 128, "bf16"),
        )
        assert built.formats
