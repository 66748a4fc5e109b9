"""Page formats of vLLM 0.33 from its own objects: the layer's cache spec, its attention backend, the cache layout.

The spec says how large a page is and how many slots it has; the backend's kernels say what a slot holds. Some kernels
choose an interior by a setting that no spec shows; :class:`Settings` carries those. Neither vLLM nor torch is imported
here: specs, backends and dtypes are looked at by name.
"""

from __future__ import annotations

from typing import Any

from kvreshard import FormatError
from kvreshard.formats.attention import cpu_attn, flash_attn, packed, rocm_attn, two_slots
from kvreshard.formats.case import Case, Describe, Pages, Settings, Unknown
from kvreshard.formats.latent import indexer, indexer_rows, mla, summaries
from kvreshard.formats.quantised import flashinfer, minimax, octave, triton_attn, turboquant, ultraquant
from kvreshard.formats.state import state


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
        describe = state
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


def opaque(case: Case) -> Unknown:
    return Unknown(f"backend {case.backend}: its pages are in a library's own order")


def known_backends() -> frozenset[str]:
    """The names of backends whose pages are known; what holds recurrent states is known by its spec instead."""
    return frozenset(_BACKENDS)


_BACKENDS: dict[str, Describe] = {
    "FLASH_ATTN": flash_attn,
    "FLASH_ATTN_DIFFKV": packed,
    "TRITON_ATTN_DIFFKV": packed,
    "FLASHINFER": flashinfer,
    "TRITON_ATTN": triton_attn,
    "TRITON_FLASH_ATTN": packed,
    "TRITON_FLASHINFER": packed,
    "FLEX_ATTENTION": packed,
    "HPC_ATTN": packed,
    "ROCM_AITER_UNIFIED_ATTN": packed,
    "ROCM_ATTN": rocm_attn,
    "ROCM_SEGMENTED_ATTN": two_slots,
    "B12X": two_slots,
    "TURBOQUANT": turboquant,
    "ULTRAQUANT": ultraquant,
    "ROCM_OCTAVE": octave,
    "CPU_ATTN": cpu_attn,
    "MINIMAX_M3_SPARSE": minimax,
    "MINIMAX_M3_SPARSE_INDEXER": indexer_rows,
    "STEP5_DSA": packed,
    "STEP5_CSA_SUMMARY": summaries,
    "QWEN4_EXP_QSA_TRITON": packed,
    "QWEN4_EXP_EXP_QSA_STATE": indexer_rows,
    "INKLING_SCONV_SWA": packed,
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
        mla,
    ),
    "DEEPSEEK_V32_INDEXER": indexer,
    "DEEPSEEK_V4_INDEXER": indexer,
    "DEEPSEEK_V41_INDEXER": indexer,
    "DEEPSEEK_V41_SPARSE_INDEXER": indexer,
    "DEEPSEEK_V41_ROCM_MXFP4_INDEXER": opaque,
    "DEEPSEEK_V4_ROCM_MXFP4_INDEXER": opaque,
}
