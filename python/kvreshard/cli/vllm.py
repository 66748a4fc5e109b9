"""The attention backends of vLLM 0.33: the pages and layouts that each takes, and the spec that it publishes.

Keys are the names of vLLM's registry in small letters, settings behind a colon; a backend may report another name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvreshard import preset

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
        row: Channels of a row, where the model fixes them.
        spec: What else its spec says.
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
    row: int = 0
    spec: Mapping[str, Any] = field(default_factory=dict)


def _two(shape: Shape) -> int:
    return shape.heads * shape.head_size * BYTES[shape.dtype]


def _nvfp4(shape: Shape) -> int:
    return shape.head_size // 2 + shape.head_size // 16


def _turboquant(shape: Shape) -> int:
    return shape.head_size + shape.head_size // 2 + 4


def _octave(shape: Shape) -> int:
    # The slot is padded, and its preset knows how.
    return preset("octave", h=1, n=16, d=shape.head_size, value_bits=4, rope=shape.head_size // 2).page_bytes // 16


SIXTEENS = (16, 32, 64, 128)
SHUFFLED = ("LBHNC", "LHBNC")
TOGETHER = ("LBNHC", "LBHNC", "BLHNC", "BLNHC")
"""Layouts of rows: with one slot a state they are the same pages."""
BLOCKS = ("BLHNC", "BLNHC")

SLOTS: dict[str, Any] = {"slots": lambda heads: 2, "content": _two}
NVFP4: dict[str, Any] = {"slots": lambda heads: 2 * heads, "content": _nvfp4, "mode": "NVFP4", "cache": "nvfp4"}
HEADS: dict[str, Any] = {"slots": lambda heads: heads}
FP8 = {"fp8": "f8e4m3fn"}
FP8_ROWS: dict[str, Any] = {
    "settings": FP8,
    "content": lambda shape: 656,
    "cache": "fp8_ds_mla",
    "row": 576,
    "spec": {"cache_dtype_str": "fp8_ds_mla"},
}
V4: dict[str, Any] = {
    "settings": FP8,
    "content": lambda shape: 584,
    "cache": "fp8_ds_mla",
    "row": 512,
    "spec": {"model_version": "deepseek_v4", "alignment": 576},
}
V41: dict[str, Any] = {
    "content": lambda shape: 528,
    "cache": "fp8_ds_mla",
    "row": 512,
    "spec": {"model_version": "deepseek_v41", "alignment": 512},
}
TURBOQUANT: dict[str, Any] = {"content": _turboquant, "mode": "TURBOQUANT_K8V4", "cache": "turboquant_k8v4", **HEADS}
TURBO = {"turboquant_keys": "f8e4m3fn", "cache_dtype": "turboquant_k8v4"}


def per_token_head(bits: int) -> dict[str, Any]:
    """A code for every element and a scale of 4 bytes for every token and head, in K and in V."""
    return {
        "content": lambda shape: 2 * (shape.head_size * bits // 8 + 4),
        "mode": f"INT{bits}_PER_TOKEN_HEAD",
        "cache": f"int{bits}_per_token_head",
    }


def rows(name: str, *pages: int, **settings: Any) -> Backend:
    """A backend of MLA."""
    return Backend(name, pages, TOGETHER, mla=True, **settings)


BACKENDS: dict[str, Backend] = {
    "flash_attn": Backend("FLASH_ATTN"),
    "flash_attn_diffkv": Backend("FLASH_ATTN_DIFFKV"),
    "flashinfer": Backend("FLASHINFER", (16, 32, 64)),
    "flashinfer:nvfp4,scales=swizzled": Backend(
        "FLASHINFER", (16, 32, 64), ("LBHNC", "BLHNC"), {"nvfp4_scales": "swizzled"}, **NVFP4
    ),
    "flashinfer:nvfp4,scales=linear": Backend(
        "FLASHINFER", (16, 32, 64), ("LBHNC", "LBNHC"), {"nvfp4_scales": "linear"}, **NVFP4
    ),
    "triton_attn": Backend("TRITON_ATTN"),
    "triton_attn:int8": Backend("TRITON_ATTN", layouts=("LBHNC", "LBNHC"), **per_token_head(8)),
    "triton_attn:int4": Backend("TRITON_ATTN", layouts=("LBHNC", "LBNHC"), **per_token_head(4)),
    "triton_attn_diffkv": Backend("TRITON_ATTN_DIFFKV"),
    "triton_flash_attn": Backend("TRITON_FLASH_ATTN"),
    "triton_flashinfer": Backend("TRITON_FLASHINFER", (16, 32, 64)),
    "flex_attention": Backend("FLEX_ATTENTION", layouts=("LBNHC",)),
    "hpc_attn": Backend("HPC_ATTN", (64,), ("LBNHC",)),
    "rocm_aiter_fa": Backend("FLASH_ATTN", (16, 32), SHUFFLED),
    "rocm_aiter_fa:shuffle": Backend("FLASH_ATTN", (16, 32), SHUFFLED, **SLOTS),
    "rocm_aiter_unified_attn": Backend("ROCM_AITER_UNIFIED_ATTN", layouts=SHUFFLED),
    "rocm_attn": Backend("ROCM_ATTN", (16, 32, 64), SHUFFLED, {"interleaved_v": False}, connector=False, **SLOTS),
    "rocm_attn:fused": Backend("ROCM_ATTN", (16, 32, 64), SHUFFLED, {"interleaved_v": True}, connector=False, **SLOTS),
    "rocm_segmented_attn": Backend("ROCM_SEGMENTED_ATTN", layouts=SHUFFLED, connector=False, **SLOTS),
    "rocm_octave": Backend(
        "ROCM_OCTAVE",
        layouts=("LBHNC", "LBNHC"),
        settings={"cache_dtype": "octave_k3v4", "octave_rope": 64},
        content=_octave,
        mode="OCTAVE_K3V4",
        cache="octave_k3v4",
    ),
    "b12x": Backend("B12X", (64, 128), ("LBHNC", "BLHNC"), **SLOTS),
    "cpu_attn:isa=vec": Backend("CPU_ATTN", (32, 64, 128), ("LBHNC",), {"cpu_isa": "vec"}),
    "cpu_attn:isa=amx": Backend("CPU_ATTN", (32, 64, 128), ("LBHNC",), {"cpu_isa": "amx"}),
    "minimax_m3_sparse": Backend("MINIMAX_M3_SPARSE", (128,)),
    "minimax_m3_sparse:amd": Backend("MINIMAX_M3_SPARSE", (128,), SHUFFLED, **SLOTS),
    "minimax_m3_sparse:nvfp4": Backend("MINIMAX_M3_SPARSE", (128,), ("LBHNC",), **NVFP4),
    # Selected by names of their own; layers report their model's.
    "cutlass_msa": Backend("MINIMAX_M3_SPARSE", (128,)),
    "triton_msa": Backend("MINIMAX_M3_SPARSE", (128,)),
    "step5_dsa": Backend("STEP5_DSA", (16, 32, 64), ("BLNHC",)),
    "turboquant": Backend("TURBOQUANT", SIXTEENS, ("LBNHC",), {"turboquant_soa": False, **TURBO}, **TURBOQUANT),
    "turboquant:soa": Backend("TURBOQUANT", SIXTEENS, ("LBNHC",), {"turboquant_soa": True, **TURBO}, **TURBOQUANT),
    "ultraquant": Backend(
        "ULTRAQUANT",
        layouts=("LBNHC",),
        content=lambda shape: shape.head_size + shape.head_size // 16,
        mode="ULTRAQUANT_4BIT",
        cache="ultraquant_4bit",
        **HEADS,
    ),
    "flashmla": rows("FLASHMLA", 64),
    "cutlass_mla": rows("CUTLASS_MLA", 128),
    "flashinfer_mla": rows("FLASHINFER_MLA", 32, 64),
    "tokenspeed_mla": rows("TOKENSPEED_MLA", 32, 64),
    "flash_attn_mla": rows("FLASH_ATTN_MLA", *SIXTEENS),
    "triton_mla": rows("TRITON_MLA", *SIXTEENS),
    "rocm_aiter_mla": rows("ROCM_AITER_MLA", 1, *SIXTEENS),
    "rocm_aiter_triton_mla": rows("AITER_TRITON_MLA", 1, *SIXTEENS),
    "cpu_mla": rows("CPU_MLA", 16),
    "amx_mla": rows("AMX_MLA", 32, 64, 128),
    "flashmla_sparse": rows("FLASHMLA_SPARSE", 64, 128),
    "flashmla_sparse:fp8": rows("FLASHMLA_SPARSE", 64, **FP8_ROWS),
    "flashinfer_mla_sparse": rows("FLASHINFER_MLA_SPARSE", 32, 64, 128),
    "flashinfer_mla_sparse_sm120": rows("FLASHINFER_MLA_SPARSE_SM120", 64, 128),
    "flashinfer_mla_sparse_sm90": rows("FLASHINFER_MLA_SPARSE_SM90", 64, 128),
    "flash_attn_mla_sparse": rows("FLASH_ATTN_MLA_SPARSE", 64, 128),
    "flash_attn_mla_sparse_fa4": rows("FLASH_ATTN_MLA_SPARSE_FA4", 64, 128),
    "rocm_aiter_mla_sparse": rows("ROCM_AITER_MLA_SPARSE", 1, *SIXTEENS),
    "xpu_mla_sparse": rows("XPU_MLA_SPARSE", *SIXTEENS),
    "flashmla_sparse_dsv4": Backend("FLASHMLA_SPARSE_DSV4", (256,), BLOCKS, mla=True, **V4),
    "flashinfer_mla_sparse_dsv4": Backend("FLASHINFER_MLA_SPARSE_DSV4", (256,), BLOCKS, mla=True, **V4),
    "rocm_flashmla_sparse_dsv4": Backend("ROCM_FLASHMLA_SPARSE_DSV4", (256,), BLOCKS, mla=True, **V4),
    "flashmla_sparse_dsv41": Backend("FLASHMLA_SPARSE_DSV41", (128, 64), BLOCKS, mla=True, **V41),
    "flashinfer_mla_sparse_dsv41": Backend("FLASHINFER_MLA_SPARSE_DSV41", (128,), BLOCKS, mla=True, **V41),
    "rocm_flashmla_sparse_dsv41": Backend("ROCM_FLASHMLA_SPARSE_DSV41", (64, 128), BLOCKS, mla=True, **V4),
    "flashmla_mega_attn_dsv41": Backend("FLASHMLA_MEGA_ATTN_DSV41", (128,), BLOCKS, mla=True, **V41),
}
"""By the text that picks one; a text with settings after it may add `layout=`."""

WITHOUT_PAGES = ("TORCH_SDPA", "NO_ATTENTION", "CUSTOM")
"""Names in vLLM's registry that keep no pages. States of Mamba and of linear attention have a registry of their own."""
