"""vLLM's attention backends as the command names them, and the cache specs that they publish.

`rocm_aiter_fa:shuffle,layout=LBHNC` is a backend and its settings. Page formats come from
:func:`kvreshard.formats.from_vllm_spec`, given a stand-in for vLLM's spec; vLLM is not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from kvreshard.formats import Pages, Settings, Unknown, from_vllm_spec

BYTES = {"bf16": 2, "f16": 2, "f32": 4, "f8e4m3fn": 1, "f8e4m3fnuz": 1, "f8e5m2": 1}
TORCH = {
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e4m3fnuz": "float8_e4m3fnuz",
    "f8e5m2": "float8_e5m2",
}


@dataclass(frozen=True)
class Shape:
    """What a backend's spec depends on: heads of this rank, states a page, head size, element type."""

    heads: int
    page: int
    head_size: int
    dtype: str


@dataclass(frozen=True)
class Backend:
    """A backend of vLLM 0.33 with some of its settings fixed.

    Attributes:
        name: What it reports, which is all that stock peers compare.
        pages: Sizes of its pages in tokens; the first is its default.
        layouts: The cache layouts it takes; the first is the one a NIXL connector gets.
        settings: What no spec shows.
        slots: Head slots for a number of heads, where it publishes them.
        content: Bytes of a slot and state, where it publishes them.
        mode: The quantisation mode.
        cache: What it calls the cache dtype; the model's where not given.
        connector: Whether it takes KV connectors.
        mla: Whether a row is the same on every rank.
    """

    name: str
    pages: tuple[int, ...] = (16, 32, 64, 128)
    layouts: tuple[str, ...] = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
    settings: Mapping[str, Any] = field(default_factory=dict)
    slots: Callable[[int], int] | None = None
    content: Callable[[Shape], int] | None = None
    mode: str = "NONE"
    cache: str = ""
    connector: bool = True
    mla: bool = False


def _two(shape: Shape) -> int:
    return shape.heads * shape.head_size * BYTES[shape.dtype]


def _nvfp4(shape: Shape) -> int:
    return shape.head_size // 2 + shape.head_size // 16


SLOTS: dict[str, Any] = {"slots": lambda heads: 2, "content": _two}
NVFP4: dict[str, Any] = {"slots": lambda heads: 2 * heads, "content": _nvfp4, "mode": "NVFP4", "cache": "nvfp4"}
HEADS: dict[str, Any] = {"slots": lambda heads: heads}
SHUFFLED = ("LBHNC", "LHBNC")

BACKENDS: dict[str, Backend] = {
    "flash_attn": Backend("FLASH_ATTN"),
    "flashinfer": Backend("FLASHINFER", pages=(16, 32, 64)),
    "flashinfer:nvfp4,scales=swizzled": Backend(
        "FLASHINFER", (16, 32, 64), ("LBHNC", "BLHNC"), {"nvfp4_scales": "swizzled"}, **NVFP4
    ),
    "flashinfer:nvfp4,scales=linear": Backend(
        "FLASHINFER", (16, 32, 64), ("LBHNC", "LBNHC"), {"nvfp4_scales": "linear"}, **NVFP4
    ),
    "triton_attn": Backend("TRITON_ATTN"),
    "triton_attn:int8": Backend(
        "TRITON_ATTN",
        layouts=("LBHNC", "LBNHC"),
        content=lambda shape: 2 * (shape.head_size + 4),
        mode="INT8_PER_TOKEN_HEAD",
        cache="int8_per_token_head",
    ),
    "flex_attention": Backend("FLEX_ATTENTION", layouts=("LBNHC",)),
    "hpc_attn": Backend("HPC_ATTN", pages=(64,), layouts=("LBNHC",)),
    "rocm_aiter_fa": Backend("FLASH_ATTN", pages=(16, 32), layouts=SHUFFLED),
    "rocm_aiter_fa:shuffle": Backend("FLASH_ATTN", (16, 32), SHUFFLED, **SLOTS),
    "rocm_aiter_unified_attn": Backend("ROCM_AITER_UNIFIED_ATTN", layouts=SHUFFLED),
    "rocm_attn": Backend("ROCM_ATTN", (16, 32, 64), SHUFFLED, {"interleaved_v": False}, connector=False, **SLOTS),
    "rocm_attn:fused": Backend("ROCM_ATTN", (16, 32, 64), SHUFFLED, {"interleaved_v": True}, connector=False, **SLOTS),
    "rocm_segmented_attn": Backend("ROCM_SEGMENTED_ATTN", layouts=SHUFFLED, connector=False, **SLOTS),
    "b12x": Backend("B12X", (64, 128), ("LBHNC", "BLHNC"), **SLOTS),
    "cpu_attn:isa=vec": Backend("CPU_ATTN", (32, 64, 128), ("LBHNC",), {"cpu_isa": "vec"}),
    "cpu_attn:isa=amx": Backend("CPU_ATTN", (32, 64, 128), ("LBHNC",), {"cpu_isa": "amx"}),
    "minimax_m3": Backend("MINIMAX_M3_SPARSE", pages=(128,)),
    "minimax_m3:amd": Backend("MINIMAX_M3_SPARSE", (128,), SHUFFLED, **SLOTS),
    "minimax_m3:nvfp4": Backend("MINIMAX_M3_SPARSE", (128,), ("LBHNC",), **NVFP4),
    "turboquant": Backend(
        "TURBOQUANT",
        layouts=("LBNHC",),
        settings={"turboquant_soa": False, "turboquant_keys": "f8e4m3fn", "cache_dtype": "turboquant_k8v4"},
        content=lambda shape: shape.head_size + shape.head_size // 2 + 4,
        mode="TURBOQUANT_K8V4",
        cache="turboquant_k8v4",
        **HEADS,
    ),
    "turboquant:soa": Backend(
        "TURBOQUANT",
        layouts=("LBNHC",),
        settings={"turboquant_soa": True, "turboquant_keys": "f8e4m3fn", "cache_dtype": "turboquant_k8v4"},
        content=lambda shape: shape.head_size + shape.head_size // 2 + 4,
        mode="TURBOQUANT_K8V4",
        cache="turboquant_k8v4",
        **HEADS,
    ),
    "ultraquant": Backend(
        "ULTRAQUANT",
        layouts=("LBNHC",),
        content=lambda shape: shape.head_size + shape.head_size // 16,
        mode="ULTRAQUANT_4BIT",
        cache="ultraquant_4bit",
        **HEADS,
    ),
    "flashmla": Backend("FLASHMLA", pages=(64,), layouts=("LBNHC", "LBHNC", "BLHNC", "BLNHC"), mla=True),
}
"""By the text that picks one; a text with settings after it may add `layout=`."""


@dataclass(frozen=True)
class Choice:
    """A backend and a layout, as picked by a text."""

    key: str
    backend: Backend
    layout: str


def choose(text: str) -> Choice:
    """The backend that a text picks: `flash_attn`, `rocm_aiter_fa:shuffle,layout=LHBNC`.

    Raises:
        ValueError: There is none, or it does not take the layout.
    """
    name, _, rest = text.partition(":")
    settings = [part for part in rest.split(",") if part]
    layouts = [part.removeprefix("layout=") for part in settings if part.startswith("layout=")]
    others = sorted(part for part in settings if not part.startswith("layout="))
    for key, backend in BACKENDS.items():
        known, _, fixed = key.partition(":")
        if known == name and sorted(part for part in fixed.split(",") if part) == others:
            layout = layouts[-1] if layouts else backend.layouts[0]
            if layout not in backend.layouts:
                raise ValueError(f"{key} does not take layout {layout}; it takes {', '.join(backend.layouts)}")
            return Choice(key, backend, layout)
    close = [key for key in BACKENDS if key.partition(":")[0] == name]
    raise ValueError(f"no backend {text!r}; {'there are' if close else 'known are'} {', '.join(close or BACKENDS)}")


def pages_of(choice: Choice, shape: Shape) -> Pages:
    """How a rank's pages are built.

    Raises:
        ValueError: That is not known.
    """
    found = from_vllm_spec(
        _spec(choice.backend, shape), choice.backend.name, choice.layout, settings=Settings(**choice.backend.settings)
    )
    if isinstance(found, Unknown):
        raise ValueError(found.reason)
    return found


def _spec(backend: Backend, shape: Shape) -> Any:
    """A stand-in for vLLM's spec: the attributes that :mod:`kvreshard.formats` looks at."""
    content = None if backend.content is None else backend.content(shape)
    slots = None if backend.slots is None or backend.content is None else backend.slots(shape.heads)
    heads = 1 if backend.mla else shape.heads
    sides = 1 if backend.mla else 2
    width = content if content is not None else sides * shape.head_size * BYTES[shape.dtype]
    return SimpleNamespace(
        block_size=shape.page,
        tokens_per_state=1,
        dtype=TORCH[shape.dtype],
        num_kv_heads=heads,
        head_size=shape.head_size,
        head_size_v=0 if backend.mla else shape.head_size,
        num_head_slots=slots,
        num_heads=slots if slots is not None else heads,
        state_content_bytes=content,
        state_content_size_bytes=width,
        kv_quant_mode=SimpleNamespace(name=backend.mode),
    )
