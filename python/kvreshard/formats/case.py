"""One layer to describe, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvreshard import PageFormat

# Layouts by where the head slots of a block lie: together in one piece, head-major or token-major, or each in a plane.
HEAD_MAJOR = ("LBHNC", "BLHNC")
TOKEN_MAJOR = ("LBNHC", "BLNHC")
PLANES = ("LHBNC", "BHLNC")

SIXTEEN_BIT = ("bf16", "f16")
TORCH_TYPES = {
    "float16": "f16",
    "half": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float": "f32",
    "float8_e4m3fn": "f8e4m3fn",
    "float8_e4m3fnuz": "f8e4m3fnuz",
    "float8_e5m2": "f8e5m2",
    "float8_e5m2fnuz": "f8e5m2fnuz",
}


@dataclass(frozen=True)
class Pages:
    """How the pages of one layer are built on one rank.

    Attributes:
        formats: One format for whole pages; or, where every head slot has a plane of its own, one for each slot.
        planes: Whether `formats` has one entry a slot.
        shards: The axes that tensor parallelism shards; none where every rank holds the same bytes.
        standard: Whether a peer without a tag may be believed to hold such pages: packed head-major or token-major
            pages, or MLA rows, of 16-bit elements.
        label: A short name for messages.
    """

    formats: tuple[PageFormat, ...]
    planes: bool
    shards: tuple[str, ...]
    standard: bool
    label: str

    @property
    def states(self) -> int:
        """States in one page: the extent of axis `n`, 1 without one."""
        return self.formats[0].extents.get("n", 1)


@dataclass(frozen=True)
class Unknown:
    """Pages whose interior is not known. `reason` says what is missing."""

    reason: str


@dataclass(frozen=True)
class Settings:
    """What changes the interior of a page without showing in the spec. `None` is: not known.

    Attributes:
        cache_dtype: vLLM's resolved cache dtype, such as `auto`, `fp8_e4m3` or `turboquant_k8v4`.
        fp8: What `fp8` and `fp8_e4m3` store on this platform: `f8e4m3fn` or `f8e4m3fnuz`.
        interleaved_v: Whether ROCM_ATTN's fused qk-norm, rope and cache pass is on (V as in the AITER shuffle).
        nvfp4_scales: Order of FlashInfer's NVFP4 V scales: `swizzled` (trtllm-gen) or `linear` (FA2).
        cpu_isa: The instruction set that CPU_ATTN picked: `amx`, `vec`, ...
        turboquant_soa: Whether TurboQuant stores metadata apart from codes.
        turboquant_keys: What TurboQuant's fp8 keys are: `f8e4m3fn` or `f8e4m3b15`.
        indexer_scales: What an indexer's 4 scale bytes are: `f32` or `ue8m0`.
        indexer_tiled: Whether an indexer's rows are tiled (ROCm).
        octave_rope: Rotary channels of ROCM_OCTAVE's keys.
        kernel_states: States in one page of the kernel, where a page holds several (compressed caches); the page's own
            number where not given.
        conv_channels: Channels of each part of a Mamba convolution on this rank, in order.
        conv_first: Whether the convolution has channels outermost (`ds`).
    """

    cache_dtype: str | None = None
    fp8: str | None = None
    interleaved_v: bool | None = None
    nvfp4_scales: str | None = None
    cpu_isa: str | None = None
    turboquant_soa: bool | None = None
    turboquant_keys: str | None = None
    indexer_scales: str | None = None
    indexer_tiled: bool | None = None
    octave_rope: int | None = None
    kernel_states: int | None = None
    conv_channels: tuple[int, ...] | None = None
    conv_first: bool | None = None


@dataclass(frozen=True)
class Case:
    """One layer to describe: what a :func:`register_backend` function is given.

    Attributes:
        spec: vLLM's spec of the layer.
        backend: The backend's name.
        layout: The cache layout's name.
        states: States in one page.
        settings: The settings.
    """

    spec: Any
    backend: str
    layout: str
    states: int
    settings: Settings

    @property
    def heads(self) -> int:
        """KV heads on this rank."""
        return int(self.spec.num_kv_heads)

    @property
    def head_size(self) -> int:
        """Channels of K (and of an MLA row)."""
        return int(self.spec.head_size)

    @property
    def content(self) -> int | None:
        """Bytes of one slot and state, where the backend published them."""
        published = getattr(self.spec, "state_content_bytes", None)
        return None if published is None else int(published)

    @property
    def slots(self) -> int | None:
        """Head slots, where the backend published them."""
        published = getattr(self.spec, "num_head_slots", None)
        return None if published is None else int(published)

    @property
    def mode(self) -> str:
        """The quantisation mode by name; `NONE` where there is none."""
        return str(getattr(getattr(self.spec, "kv_quant_mode", None), "name", "NONE"))

    @property
    def order(self) -> str | None:
        """`hnd` or `nhd`; `None` where slots are planes and there are several."""
        if self.layout in TOKEN_MAJOR:
            return "nhd"
        return "hnd" if self.layout in HEAD_MAJOR else None


Describe = Callable[[Case], "Pages | Unknown"]


def element_of(case: Case) -> str | Unknown:
    """The element type of K and V, where a slot holds plain elements."""
    name = str(case.spec.dtype).removeprefix("torch.")
    if case.mode == "NONE" and name in TORCH_TYPES:
        return TORCH_TYPES[name]
    if case.mode not in ("NONE", "FP8_PER_TENSOR"):
        return Unknown(f"backend {case.backend}: quantisation {case.mode} is not known here")
    if name in TORCH_TYPES:
        return TORCH_TYPES[name]
    if name == "uint8":
        return fp8_of(case)
    return Unknown(f"backend {case.backend}: element type {name} is not known")


def fp8_of(case: Case) -> str | Unknown:
    if case.settings.cache_dtype == "fp8_e5m2":
        return "f8e5m2"
    if case.settings.cache_dtype in ("fp8", "fp8_e4m3", "fp8_ds_mla", "fp8_per_token_head") and case.settings.fp8:
        return case.settings.fp8
    return Unknown(
        f"backend {case.backend}: which fp8 encoding cache dtype {case.settings.cache_dtype} stores is not known"
    )


def planes(case: Case, formats: list[PageFormat], label: str) -> Pages:
    return Pages(tuple(formats), planes=True, shards=("h",), standard=False, label=label)


def whole(form: PageFormat, label: str, *, shards: tuple[str, ...] = ("h",), standard: bool = False) -> Pages:
    return Pages((form,), planes=False, shards=shards, standard=standard, label=label)


def codes_of(case: Case) -> str | Unknown | None:
    """The codes of a per-token-head mode; `None` in any other mode."""
    if case.mode == "INT8_PER_TOKEN_HEAD":
        return "i8"
    if case.mode == "INT4_PER_TOKEN_HEAD":
        return "i4x2"
    return fp8_of(case) if case.mode == "FP8_PER_TOKEN_HEAD" else None
