"""Pages of codes and scales."""

from __future__ import annotations

from typing import Any

from kvreshard import preset
from kvreshard.formats.attention import packed, slots
from kvreshard.formats.case import HEAD_MAJOR, TOKEN_MAJOR, Case, Pages, Unknown, codes_of, whole
from kvreshard.formats.latent import indexer_rows


def flashinfer(case: Case) -> Pages | Unknown:
    if case.mode != "NVFP4":
        return packed(case)
    order = case.settings.nvfp4_scales
    if order is None:
        return Unknown("backend FLASHINFER: whether its NVFP4 V scales are swizzled is not known")
    if case.order is None:
        return Unknown(f"backend FLASHINFER: its NVFP4 pages are not known at layout {case.layout}")
    sizes: dict[str, Any] = {"h": case.heads, "n": case.states, "d": case.head_size}
    if order == "swizzled":
        if case.order != "hnd":
            return Unknown("backend FLASHINFER: swizzled NVFP4 V scales are known in head-major pages only")
        return whole(preset("nvfp4-flashinfer-swizzled", **sizes), "nvfp4-flashinfer-swizzled")
    return whole(preset("nvfp4-flashinfer", order=case.order, **sizes), "nvfp4-flashinfer")


def triton_attn(case: Case) -> Pages | Unknown:
    codes = codes_of(case)
    if codes is None:
        return packed(case)
    if isinstance(codes, Unknown):
        return codes
    if case.order is None:
        return Unknown(f"backend {case.backend}: per-token-head pages are not known at layout {case.layout}")
    sizes: dict[str, Any] = {"h": case.heads, "n": case.states, "d": case.head_size}
    return whole(preset("per-token-head", dtype=codes, order=case.order, **sizes), "per-token-head")


def minimax(case: Case) -> Pages | Unknown:
    if "MLAAttentionSpec" in {kind.__name__ for kind in type(case.spec).__mro__}:
        return indexer_rows(case)
    if case.mode == "NVFP4":
        if case.slots != 2 * case.heads or case.layout not in HEAD_MAJOR:
            return Unknown(f"backend {case.backend}: NVFP4 pages of {case.slots} slots at {case.layout} are not known")
        return whole(preset("nvfp4-msa", h=case.heads, n=case.states, d=case.head_size), "nvfp4-msa")
    return slots(case, "page-16") if case.slots == 2 else packed(case)


def turboquant(case: Case) -> Pages | Unknown:
    if not case.mode.startswith("TURBOQUANT_"):
        return packed(case)  # The layers that such a model leaves unquantised.
    soa = case.settings.turboquant_soa
    scheme = {"K8V4": "k8v4", "4BIT_NC": "4bit", "K3V4_NC": "k3v4", "3BIT_NC": "3bit"}[case.mode.split("_", 1)[1]]
    if soa is None:
        return Unknown("backend TURBOQUANT: whether metadata is stored apart from codes is not known")
    if case.layout not in TOKEN_MAJOR:
        return Unknown(f"backend TURBOQUANT: its pages are not known at layout {case.layout}")
    sizes: dict[str, Any] = {"h": case.heads, "n": case.states, "d": case.head_size, "scheme": scheme}
    if scheme == "k8v4":
        if case.settings.turboquant_keys is None:
            return Unknown("backend TURBOQUANT: which fp8 encoding its keys have is not known")
        sizes["keys"] = case.settings.turboquant_keys
    name = "turboquant-soa" if soa else "turboquant-aos"
    return whole(preset(name, **sizes), name)


def ultraquant(case: Case) -> Pages | Unknown:
    if case.mode != "ULTRAQUANT_4BIT":
        return packed(case)
    if case.layout not in TOKEN_MAJOR:
        return Unknown(f"backend ULTRAQUANT: its pages are not known at layout {case.layout}")
    return whole(preset("ultraquant", h=case.heads, n=case.states, d=case.head_size), "ultraquant")


def octave(case: Case) -> Pages | Unknown:
    scheme = case.settings.cache_dtype or ""
    if not scheme.startswith("octave_"):
        return Unknown(f"backend ROCM_OCTAVE: cache dtype {case.settings.cache_dtype} is not known")
    if case.order is None:
        return Unknown(f"backend ROCM_OCTAVE: its pages are not known at layout {case.layout}")
    sizes: dict[str, Any] = {"h": case.heads, "n": case.states, "d": case.head_size, "order": case.order}
    if scheme == "octave_k3v3_compact":
        return whole(preset("octave-compact", value_bits=3, **sizes), "octave-compact")
    if case.settings.octave_rope is None:
        return Unknown("backend ROCM_OCTAVE: how many channels are rotary is not known")
    bits = 4 if scheme == "octave_k3v4" else 3
    return whole(preset("octave", value_bits=bits, rope=case.settings.octave_rope, **sizes), "octave")
