"""Pages of plain K and V: packed, two slots, and what CPU kernels make of them."""

from __future__ import annotations

from typing import Any

from kvreshard import preset
from kvreshard.formats.case import (
    HEAD_MAJOR,
    PLANES,
    SIXTEEN_BIT,
    TOKEN_MAJOR,
    Case,
    Pages,
    Unknown,
    element_of,
    planes,
    whole,
)


def packed(case: Case) -> Pages | Unknown:
    """F1 to F3: K and V of a head and token side by side."""
    element = element_of(case)
    if isinstance(element, Unknown):
        return element
    if case.slots is not None or case.content is not None:
        return Unknown(
            f"backend {case.backend}: {case.slots} head slots of {case.content} bytes are not its packed pages"
        )
    sizes: dict[str, Any] = {"n": case.states, "d": case.head_size, "dv": int(case.spec.head_size_v), "dtype": element}
    if case.order is None and case.heads > 1:
        plane = preset("packed-plane", **sizes)
        return planes(case, [plane] * case.heads, "packed, a plane a head")
    name = "packed-nhd" if case.order == "nhd" else "packed-hnd"
    form = preset(name, h=case.heads, **sizes)
    return whole(form, name, standard=element in SIXTEEN_BIT and case.order is not None)


def slots(case: Case, name: str) -> Pages | Unknown:
    """F4 to F7: two slots, all K and all V."""
    element = element_of(case)
    if isinstance(element, Unknown):
        return element
    if case.slots != 2:
        return Unknown(f"backend {case.backend}: {case.slots} head slots, and {name} pages have 2")
    sizes: dict[str, Any] = {"h": case.heads, "n": case.states, "d": case.head_size, "dtype": element}
    if case.layout in PLANES:
        return planes(case, [preset(name, side=side, **sizes) for side in ("k", "v")], f"{name}, a plane a side")
    if case.layout in TOKEN_MAJOR:
        return Unknown(f"backend {case.backend}: {name} slots are not known at layout {case.layout}")
    return whole(preset(name, **sizes), name)


def flash_attn(case: Case) -> Pages | Unknown:
    # CUDA's FlashAttention and ROCm's AITER share a name; only AITER's shuffle publishes two slots.
    return slots(case, "aiter-shuffle") if case.slots == 2 else packed(case)


def two_slots(case: Case) -> Pages | Unknown:
    return slots(case, "two-slot-nhd")


def rocm_attn(case: Case) -> Pages | Unknown:
    if case.settings.interleaved_v is None:
        return Unknown("backend ROCM_ATTN: whether its fused cache pass interleaves V is not known")
    return slots(case, "aiter-shuffle" if case.settings.interleaved_v else "rocm-attn")


def cpu_attn(case: Case) -> Pages | Unknown:
    isa = case.settings.cpu_isa
    element = element_of(case)
    if isinstance(element, Unknown):
        return element
    sizes: dict[str, Any] = {"h": case.heads, "n": case.states, "d": case.head_size, "dtype": element}
    if case.layout not in HEAD_MAJOR:
        return Unknown(f"backend CPU_ATTN: its pages are not known at layout {case.layout}")
    if isa == "amx":
        return whole(preset("cpu-amx", **sizes), "cpu-amx")
    if isa in ("vec", "vec16", "rvv", "vsx", "vxe"):
        return whole(preset("cpu-vec", **sizes), "cpu-vec")
    if isa is None:
        return Unknown("backend CPU_ATTN: which instruction set it picked is not known")
    return Unknown(f"backend CPU_ATTN: how its {isa} kernels pack a page is not known")
