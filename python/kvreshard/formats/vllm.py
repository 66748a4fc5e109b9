"""Page formats of vLLM 0.33 from its own objects: the layer's cache spec, its attention backend, the cache layout.

The spec says how large a page is and how many slots it has; the backend's kernels say what a slot holds. Some kernels
choose an interior by a setting that no spec shows; :class:`Settings` carries those. Neither vLLM nor torch is imported
here: specs, backends and dtypes are looked at by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvreshard import FormatError, PageFormat, preset

# Layouts by where the head slots of a block lie: together in one piece, head-major or token-major, or each in a plane.
_HEAD_MAJOR = ("LBHNC", "BLHNC")
_TOKEN_MAJOR = ("LBNHC", "BLNHC")
_PLANES = ("LHBNC", "BHLNC")

_SIXTEEN_BIT = ("bf16", "f16")
_TORCH_TYPES = {
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
        if self.layout in _TOKEN_MAJOR:
            return "nhd"
        return "hnd" if self.layout in _HEAD_MAJOR else None


Describe = Callable[[Case], "Pages | Unknown"]


def from_vllm_spec(
    spec: Any, backend: Any, layout: str, *, states: int | None = None, settings: Settings | None = None
) -> Pages | Unknown:
    """How the pages of one layer are built.

    Args:
        spec: vLLM's cache spec of the layer on this rank, as the backend customised it.
        backend: The layer's attention backend class, or its name.
        layout: The resolved cache layout's name, such as `LBHNC`.
        states: States in one page of the kernel (its `[B, H, N, C]` view's N); the spec's block size, in states, where
            not given.
        settings: What changes an interior without showing in the spec.

    Returns:
        The pages, or what is not known about them.
    """
    name = backend if isinstance(backend, str) else str(backend.get_name())
    kinds = {kind.__name__ for kind in type(spec).__mro__}
    if states is None:
        states = 1 if "MambaSpec" in kinds else int(spec.block_size // spec.tokens_per_state)
    case = Case(spec=spec, backend=name, layout=layout, states=states, settings=settings or Settings())
    describe = _BACKENDS.get(name)
    if "CircularBufferSpec" in kinds:
        return Unknown(f"backend {name}: a circular buffer, whose slots are no tokens")
    if "MambaSpec" in kinds:
        describe = _state
    elif "HiddenStateCacheSpec" in kinds:
        return Unknown(f"backend {name}: a cache of hidden states")
    if describe is None:
        return Unknown(f"backend {name} is not among those whose pages are known")
    try:
        pages = describe(case)
    except FormatError as problem:
        return Unknown(f"backend {name}: {problem}")
    if isinstance(pages, Unknown):
        return pages
    expected = _page_bytes(spec, states, kinds)
    total = sum(form.page_bytes for form in pages.formats)
    if expected is not None and total != expected:
        return Unknown(f"backend {name}: the spec's page has {expected} bytes, {pages.label} would have {total}")
    return pages


def register_backend(name: str, describe: Describe) -> None:
    """Teaches :func:`from_vllm_spec` the pages of a backend outside vLLM.

    Args:
        name: What the backend's `get_name` returns.
        describe: Gives the pages of one :class:`Case`.

    Raises:
        ValueError: The name is taken.
    """
    if name in _BACKENDS:
        raise ValueError(f"the pages of backend {name} are known already")
    _BACKENDS[name] = describe


def _page_bytes(spec: Any, states: int, kinds: set[str]) -> int | None:
    """Bytes of a page of `states` by the spec, without padding; `None` where padding belongs to the format."""
    if "MambaSpec" in kinds:
        return int(spec.page_size_bytes)
    if getattr(spec, "alignment", None) is not None:
        return None
    return int(spec.num_heads) * states * int(spec.state_content_size_bytes)


def _element(case: Case) -> str | Unknown:
    """The element type of K and V, where a slot holds plain elements."""
    name = str(case.spec.dtype).removeprefix("torch.")
    if case.mode == "NONE" and name in _TORCH_TYPES:
        return _TORCH_TYPES[name]
    if case.mode not in ("NONE", "FP8_PER_TENSOR"):
        return Unknown(f"backend {case.backend}: quantisation {case.mode} is not known here")
    if name in _TORCH_TYPES:
        return _TORCH_TYPES[name]
    if name == "uint8":
        return _fp8(case)
    return Unknown(f"backend {case.backend}: element type {name} is not known")


def _fp8(case: Case) -> str | Unknown:
    if case.settings.cache_dtype == "fp8_e5m2":
        return "f8e5m2"
    if case.settings.cache_dtype in ("fp8", "fp8_e4m3", "fp8_ds_mla", "fp8_per_token_head") and case.settings.fp8:
        return case.settings.fp8
    return Unknown(
        f"backend {case.backend}: which fp8 encoding cache dtype {case.settings.cache_dtype} stores is not known"
    )


def _planes(case: Case, formats: list[PageFormat], label: str) -> Pages:
    return Pages(tuple(formats), planes=True, shards=("h",), standard=False, label=label)


def _whole(form: PageFormat, label: str, *, shards: tuple[str, ...] = ("h",), standard: bool = False) -> Pages:
    return Pages((form,), planes=False, shards=shards, standard=standard, label=label)


def _packed(case: Case) -> Pages | Unknown:
    """F1 to F3: K and V of a head and token side by side."""
    element = _element(case)
    if isinstance(element, Unknown):
        return element
    if case.slots is not None or case.content is not None:
        return Unknown(
            f"backend {case.backend}: {case.slots} head slots of {case.content} bytes are not its packed pages"
        )
    sizes = {"n": case.states, "d": case.head_size, "dv": int(case.spec.head_size_v), "dtype": element}
    if case.order is None and case.heads > 1:
        plane = preset("packed-plane", **sizes)
        return _planes(case, [plane] * case.heads, "packed, a plane a head")
    name = "packed-nhd" if case.order == "nhd" else "packed-hnd"
    form = preset(name, h=case.heads, **sizes)
    return _whole(form, name, standard=element in _SIXTEEN_BIT and case.order is not None)


def _slots(case: Case, name: str) -> Pages | Unknown:
    """F4 to F7: two slots, all K and all V."""
    element = _element(case)
    if isinstance(element, Unknown):
        return element
    if case.slots != 2:
        return Unknown(f"backend {case.backend}: {case.slots} head slots, and {name} pages have 2")
    sizes = {"h": case.heads, "n": case.states, "d": case.head_size, "dtype": element}
    if case.layout in _PLANES:
        return _planes(case, [preset(name, side=side, **sizes) for side in ("k", "v")], f"{name}, a plane a side")
    if case.layout in _TOKEN_MAJOR:
        return Unknown(f"backend {case.backend}: {name} slots are not known at layout {case.layout}")
    return _whole(preset(name, **sizes), name)


def _flash_attn(case: Case) -> Pages | Unknown:
    # CUDA's FlashAttention and ROCm's AITER share a name; only AITER's shuffle publishes two slots.
    return _slots(case, "aiter-shuffle") if case.slots == 2 else _packed(case)


def _two_slots(case: Case) -> Pages | Unknown:
    return _slots(case, "two-slot-nhd")


def _rocm_attn(case: Case) -> Pages | Unknown:
    if case.settings.interleaved_v is None:
        return Unknown("backend ROCM_ATTN: whether its fused cache pass interleaves V is not known")
    return _slots(case, "aiter-shuffle" if case.settings.interleaved_v else "rocm-attn")


def _cpu_attn(case: Case) -> Pages | Unknown:
    isa = case.settings.cpu_isa
    element = _element(case)
    if isinstance(element, Unknown):
        return element
    sizes: dict[str, Any] = {"h": case.heads, "n": case.states, "d": case.head_size, "dtype": element}
    if case.layout not in _HEAD_MAJOR:
        return Unknown(f"backend CPU_ATTN: its pages are not known at layout {case.layout}")
    if isa == "amx":
        return _whole(preset("cpu-amx", **sizes), "cpu-amx")
    if isa in ("vec", "vec16", "rvv", "vsx", "vxe"):
        return _whole(preset("cpu-vec", **sizes), "cpu-vec")
    if isa is None:
        return Unknown("backend CPU_ATTN: which instruction set it picked is not known")
    return Unknown(f"backend CPU_ATTN: how its {isa} kernels pack a page is not known")


def _flashinfer(case: Case) -> Pages | Unknown:
    if case.mode != "NVFP4":
        return _packed(case)
    order = case.settings.nvfp4_scales
    if order is None:
        return Unknown("backend FLASHINFER: whether its NVFP4 V scales are swizzled is not known")
    if case.order is None:
        return Unknown(f"backend FLASHINFER: its NVFP4 pages are not known at layout {case.layout}")
    sizes = {"h": case.heads, "n": case.states, "d": case.head_size}
    if order == "swizzled":
        if case.order != "hnd":
            return Unknown("backend FLASHINFER: swizzled NVFP4 V scales are known in head-major pages only")
        return _whole(preset("nvfp4-flashinfer-swizzled", **sizes), "nvfp4-flashinfer-swizzled")
    return _whole(preset("nvfp4-flashinfer", order=case.order, **sizes), "nvfp4-flashinfer")


def _triton_attn(case: Case) -> Pages | Unknown:
    codes = _codes(case)
    if codes is None:
        return _packed(case)
    if isinstance(codes, Unknown):
        return codes
    if case.order is None:
        return Unknown(f"backend {case.backend}: per-token-head pages are not known at layout {case.layout}")
    sizes = {"h": case.heads, "n": case.states, "d": case.head_size}
    return _whole(preset("per-token-head", dtype=codes, order=case.order, **sizes), "per-token-head")


def _codes(case: Case) -> str | Unknown | None:
    """The codes of a per-token-head mode; `None` in any other mode."""
    if case.mode == "INT8_PER_TOKEN_HEAD":
        return "i8"
    if case.mode == "INT4_PER_TOKEN_HEAD":
        return "i4x2"
    return _fp8(case) if case.mode == "FP8_PER_TOKEN_HEAD" else None


def _minimax(case: Case) -> Pages | Unknown:
    if "MLAAttentionSpec" in {kind.__name__ for kind in type(case.spec).__mro__}:
        return _indexer_rows(case)
    if case.mode == "NVFP4":
        if case.slots != 2 * case.heads or case.layout not in _HEAD_MAJOR:
            return Unknown(f"backend {case.backend}: NVFP4 pages of {case.slots} slots at {case.layout} are not known")
        return _whole(preset("nvfp4-msa", h=case.heads, n=case.states, d=case.head_size), "nvfp4-msa")
    return _slots(case, "page-16") if case.slots == 2 else _packed(case)


def _turboquant(case: Case) -> Pages | Unknown:
    if not case.mode.startswith("TURBOQUANT_"):
        return _packed(case)  # The layers that such a model leaves unquantised.
    soa = case.settings.turboquant_soa
    scheme = {"K8V4": "k8v4", "4BIT_NC": "4bit", "K3V4_NC": "k3v4", "3BIT_NC": "3bit"}[case.mode.split("_", 1)[1]]
    if soa is None:
        return Unknown("backend TURBOQUANT: whether metadata is stored apart from codes is not known")
    if case.layout not in _TOKEN_MAJOR:
        return Unknown(f"backend TURBOQUANT: its pages are not known at layout {case.layout}")
    sizes: dict[str, Any] = {"h": case.heads, "n": case.states, "d": case.head_size, "scheme": scheme}
    if scheme == "k8v4":
        if case.settings.turboquant_keys is None:
            return Unknown("backend TURBOQUANT: which fp8 encoding its keys have is not known")
        sizes["keys"] = case.settings.turboquant_keys
    name = "turboquant-soa" if soa else "turboquant-aos"
    return _whole(preset(name, **sizes), name)


def _ultraquant(case: Case) -> Pages | Unknown:
    if case.mode != "ULTRAQUANT_4BIT":
        return _packed(case)
    if case.layout not in _TOKEN_MAJOR:
        return Unknown(f"backend ULTRAQUANT: its pages are not known at layout {case.layout}")
    return _whole(preset("ultraquant", h=case.heads, n=case.states, d=case.head_size), "ultraquant")


def _octave(case: Case) -> Pages | Unknown:
    scheme = case.settings.cache_dtype or ""
    if not scheme.startswith("octave_"):
        return Unknown(f"backend ROCM_OCTAVE: cache dtype {case.settings.cache_dtype} is not known")
    if case.order is None:
        return Unknown(f"backend ROCM_OCTAVE: its pages are not known at layout {case.layout}")
    sizes: dict[str, Any] = {"h": case.heads, "n": case.states, "d": case.head_size, "order": case.order}
    if scheme == "octave_k3v3_compact":
        return _whole(preset("octave-compact", value_bits=3, **sizes), "octave-compact")
    if case.settings.octave_rope is None:
        return Unknown("backend ROCM_OCTAVE: how many channels are rotary is not known")
    bits = 4 if scheme == "octave_k3v4" else 3
    return _whole(preset("octave", value_bits=bits, rope=case.settings.octave_rope, **sizes), "octave")


def _mla(case: Case) -> Pages | Unknown:
    """F15: one latent row a token, the same on every rank."""
    if int(case.spec.num_heads) != 1:
        return Unknown(f"backend {case.backend}: {case.spec.num_heads} slots, and MLA rows have 1")
    if getattr(case.spec, "model_version", None) is not None:
        return _deepseek(case)
    cache = getattr(case.spec, "cache_dtype_str", None) or case.settings.cache_dtype
    if case.content == 656 and cache == "fp8_ds_mla":
        codes = case.settings.fp8
        if codes is None:
            return Unknown(f"backend {case.backend}: which fp8 encoding its rows have is not known")
        return _whole(preset("mla-fp8-ds", n=case.states, dtype=codes), "mla-fp8-ds", shards=())
    if case.content == 352 and cache == "nvfp4_ds_mla":
        return _whole(preset("mla-nvfp4-ds", n=case.states), "mla-nvfp4-ds", shards=())
    codes = _codes(case)
    if isinstance(codes, Unknown):
        return codes
    if codes is not None:
        elements = case.head_size // 2 if codes == "i4x2" else case.head_size
        form = preset("mla-per-token-head", n=case.states, r=elements, dtype=codes)
        return _whole(form, "mla-per-token-head", shards=())
    if case.content is not None:
        return Unknown(f"backend {case.backend}: rows of {case.content} bytes ({cache}) are not known")
    element = _element(case)
    if isinstance(element, Unknown):
        return element
    form = preset("mla", n=case.states, r=case.head_size, dtype=element)
    return _whole(form, "mla", shards=(), standard=element in _SIXTEEN_BIT)


def _deepseek(case: Case) -> Pages | Unknown:
    """F16: latent pages of DeepSeek-V4 and V4.1."""
    kernel = case.settings.kernel_states or case.states
    if case.content == 584 and getattr(case.spec, "alignment", None) == 576:
        codes = case.settings.fp8
        if codes is None:
            return Unknown(f"backend {case.backend}: which fp8 encoding its rows have is not known")
        form = preset("deepseek-v4", n=case.states, dtype=codes, kernel_n=kernel)
        return _whole(form, "deepseek-v4", shards=())
    if case.content == 528:
        return _whole(preset("deepseek-v4.1", n=case.states), "deepseek-v4.1", shards=())
    if case.content is not None:
        return Unknown(f"backend {case.backend}: latent rows of {case.content} bytes are not known")
    element = _element(case)
    if isinstance(element, Unknown):
        return element
    return _whole(preset("mla", n=case.states, r=case.head_size, dtype=element), "mla", shards=())


def _indexer(case: Case) -> Pages | Unknown:
    """F17: rows of a DSA indexer with a scale a row behind them."""
    scales = case.settings.indexer_scales
    tiled = case.settings.indexer_tiled
    codes = case.settings.fp8
    width = case.content or case.head_size * _bytes(case.spec.dtype)
    if scales is None or tiled is None or codes is None:
        return Unknown(f"backend {case.backend}: the encoding of its rows and scales is not known")
    sizes: dict[str, Any] = {"n": case.states, "d": width - 4, "dtype": codes}
    if tiled and case.states > 1:
        return _whole(preset("dsa-indexer-rocm", **sizes), "dsa-indexer-rocm", shards=())
    kernel = case.settings.kernel_states or case.states
    return _whole(preset("dsa-indexer", scales=scales, kernel_n=kernel, **sizes), "dsa-indexer", shards=())


def _indexer_rows(case: Case) -> Pages | Unknown:
    element = _element(case)
    if isinstance(element, Unknown):
        return element
    form = preset("indexer-rows", n=case.states, d=case.head_size, dtype=element)
    return _whole(form, "indexer-rows", shards=())


def _bytes(dtype: Any) -> int:
    return int(dtype.itemsize)


def _state(case: Case) -> Pages | Unknown:
    """F18: one recurrent state a page, its parts back to back."""
    kind = str(getattr(case.spec.mamba_type, "name", case.spec.mamba_type))
    channels = case.settings.conv_channels
    names = [_TORCH_TYPES.get(str(dtype).removeprefix("torch.")) for dtype in case.spec.dtypes]
    if case.spec.tp_replicated:
        return Unknown(f"state {kind}: held whole by every rank")
    if None in names:
        return Unknown(f"state {kind}: element types {case.spec.dtypes} are not known")
    shapes = [tuple(int(extent) for extent in shape) for shape in case.spec.shapes]
    page: dict[str, Any] = {"page_bytes": int(case.spec.page_size_bytes)}
    if kind in ("LINEAR", "LINEAR_ATTN", "BAILING_LINEAR") and len(shapes) == 1 and len(shapes[0]) == 3:
        h, dk, dv = shapes[0]
        form = preset("linear-attention", h=h, dk=dk, dv=dv, state_dtype=names[0], **page)
        return _whole(form, "linear-attention")
    if channels is None or case.settings.conv_first is None:
        return Unknown(f"state {kind}: how its convolution is split is not known")
    order = "ds" if case.settings.conv_first else "sd"
    rows = shapes[0][1] if case.settings.conv_first else shapes[0][0]
    if sum(channels) * rows != shapes[0][0] * shapes[0][1]:
        return Unknown(f"state {kind}: convolution parts of {channels} channels are not the {shapes[0]} of the spec")
    common = {"t": rows, "dtype": names[0], "order": order, **page}
    if kind == "MAMBA1" and len(channels) == 1 and len(shapes) == 2:
        return _whole(
            preset("mamba1", cx=channels[0], s=shapes[1][1], state_dtype=names[1], **common), "mamba1", shards=("cx",)
        )
    if len(channels) != 3 or len(shapes) != 2 or len(shapes[1]) != 3:
        return Unknown(f"state {kind}: a convolution in {len(channels)} parts with states {shapes[1:]} is not known")
    h, p, s = shapes[1]
    first, second, third = channels
    if kind == "MAMBA2":
        form = preset("mamba2", cx=first, cb=second, cc=third, h=h, p=p, s=s, state_dtype=names[1], **common)
        return _whole(form, "mamba2", shards=("cx", "cb", "cc", "h"))
    if kind == "GDN_ATTN":
        form = preset("gdn", cq=first, ck=second, cv=third, h=h, dv=p, dk=s, state_dtype=names[1], **common)
        return _whole(form, "gdn", shards=("cq", "ck", "cv", "h"))
    return Unknown(f"state {kind} is not known")


def _opaque(case: Case) -> Unknown:
    return Unknown(f"backend {case.backend}: its pages are in a library's own order")


_BACKENDS: dict[str, Describe] = {
    "FLASH_ATTN": _flash_attn,
    "FLASH_ATTN_DIFFKV": _packed,
    "TRITON_ATTN_DIFFKV": _packed,
    "FLASHINFER": _flashinfer,
    "TRITON_ATTN": _triton_attn,
    "TRITON_FLASH_ATTN": _packed,
    "TRITON_FLASHINFER": _packed,
    "FLEX_ATTENTION": _packed,
    "HPC_ATTN": _packed,
    "ROCM_AITER_UNIFIED_ATTN": _packed,
    "ROCM_ATTN": _rocm_attn,
    "ROCM_SEGMENTED_ATTN": _two_slots,
    "B12X": _two_slots,
    "TURBOQUANT": _turboquant,
    "ULTRAQUANT": _ultraquant,
    "ROCM_OCTAVE": _octave,
    "CPU_ATTN": _cpu_attn,
    "MINIMAX_M3_SPARSE": _minimax,
    "MINIMAX_M3_SPARSE_INDEXER": _indexer_rows,
    "STEP5_DSA": _packed,
    "QWEN4_EXP_QSA_TRITON": _packed,
    "INKLING_SCONV_SWA": _packed,
    **dict.fromkeys(
        (
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
            "FLASHMLA_SPARSE_DSV4",
            "FLASHMLA_SPARSE_DSV41",
            "FLASHMLA_MEGA_ATTN_DSV41",
            "FLASHINFER_MLA_SPARSE_DSV4",
            "FLASHINFER_MLA_SPARSE_DSV41",
            "ROCM_FLASHMLA_SPARSE_DSV4",
            "ROCM_FLASHMLA_SPARSE_DSV41",
            "XPU_V4_MLA_SPARSE",
            "DEEPSEEK_SPARSE_SWA",
        ),
        _mla,
    ),
    "DEEPSEEK_V32_INDEXER": _indexer,
    "DEEPSEEK_V4_INDEXER": _indexer,
    "DEEPSEEK_V41_INDEXER": _indexer,
    "DEEPSEEK_V41_ROCM_MXFP4_INDEXER": _opaque,
    "DEEPSEEK_V4_ROCM_MXFP4_INDEXER": _opaque,
}
