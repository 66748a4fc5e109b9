"""Pages as the attention backends write them, from closed formulas.

Each function gives the byte offset of every element of a page, computed from the formula of the kernel that writes
such pages: `K(h, n, d) = ...`. They know neither the notation of page formats nor the planner, which is what makes
them a fair judge of both: `Page.fill` writes as the backend would, `Page.check` reads as it would.

Symbols: H heads held by the rank, N tokens in a page, D head size of K, Dv of V, e bytes of an element, x = 16 / e.
Offsets are int64 [H, N, content...], in bytes from the start of the page. Component names are those that the
notations of the same pages use (`k`, `v`, `ks` and `vs` for scales, `c` for a latent row).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from kvreshard.demo.pattern import Component, Ints, Page


@dataclass(frozen=True)
class Geometry:
    """Extents of an attention page on one rank.

    `heads` H, `tokens` N, `head_size` D, `element_bytes` e, and `head_size_v` Dv where V's head size is another.
    Formats that fix their own element sizes (packed 4-bit codes, scales) ignore e.
    """

    heads: int
    tokens: int
    head_size: int
    element_bytes: int = 2
    head_size_v: int | None = None

    @property
    def value_size(self) -> int:
        """Dv, the head size of V."""
        return self.head_size if self.head_size_v is None else self.head_size_v

    @property
    def x(self) -> int:
        """Elements in 16 bytes, the width of the shuffled formats' inner digit."""
        return 16 // self.element_bytes


def _hn(g: Geometry) -> tuple[Ints, Ints]:
    """h as [H, 1, 1] and n as [1, N, 1]."""
    return np.arange(g.heads, dtype=np.int64)[:, None, None], np.arange(g.tokens, dtype=np.int64)[None, :, None]


def _last(extent: int) -> Ints:
    """A content index as [1, 1, extent]."""
    return np.arange(extent, dtype=np.int64)[None, None, :]


def _divides(what: str, extent: int, by: int) -> None:
    if extent % by:
        raise ValueError(f"{what} of {extent} is no multiple of {by}")


def _round_up(value: int, to: int) -> int:
    return (value + to - 1) // to * to


@functools.cache
def packed_hnd(g: Geometry) -> Page:
    """F1, [H][N][K D | V Dv]: most backends at LBHNC."""
    (h, n), e, row = _hn(g), g.element_bytes, g.head_size + g.value_size
    base = (h * g.tokens + n) * row
    k = Component("k", (base + _last(g.head_size)) * e, e)
    v = Component("v", (base + g.head_size + _last(g.value_size)) * e, e)
    return Page("packed HND", (k, v), g.heads * g.tokens * row * e)


@functools.cache
def packed_nhd(g: Geometry) -> Page:
    """F2, [N][H][K D | V Dv]: most backends at LBNHC."""
    (h, n), e, row = _hn(g), g.element_bytes, g.head_size + g.value_size
    base = (n * g.heads + h) * row
    k = Component("k", (base + _last(g.head_size)) * e, e)
    v = Component("v", (base + g.head_size + _last(g.value_size)) * e, e)
    return Page("packed NHD", (k, v), g.heads * g.tokens * row * e)


@functools.cache
def head_plane(g: Geometry) -> Page:
    """F3, [N][K D | V Dv]: one head's block inside its plane (LHBNC). Needs H = 1; each head has its own plane."""
    if g.heads != 1:
        raise ValueError("a plane holds one head")
    (h, n), e, row = _hn(g), g.element_bytes, g.head_size + g.value_size
    k = Component("k", (n * row + _last(g.head_size) + h) * e, e)
    v = Component("v", (n * row + g.head_size + _last(g.value_size) + h) * e, e)
    return Page("head plane", (k, v), g.tokens * row * e)


@functools.cache
def two_slot_nhd(g: Geometry) -> Page:
    """F4, a K slot and a V slot of [N][H][D]: B12X."""
    (h, n), e, d = _hn(g), g.element_bytes, _last(g.head_size)
    inside, slot = (n * g.heads + h) * g.head_size + d, g.tokens * g.heads * g.head_size
    return _sides("two slots, token-major", inside, slot, e)


@functools.cache
def two_slot_hnd(g: Geometry) -> Page:
    """A K slot and a V slot of [H][N][D]."""
    (h, n), e, d = _hn(g), g.element_bytes, _last(g.head_size)
    inside, slot = (h * g.tokens + n) * g.head_size + d, g.tokens * g.heads * g.head_size
    return _sides("two slots, head-major", inside, slot, e)


def _sides(name: str, inside: Ints, slot: int, e: int) -> Page:
    """K and V slots of `slot` elements with the same interior."""
    return Page(name, (Component("k", inside * e, e), Component("v", (slot + inside) * e, e)), 2 * slot * e)


@functools.cache
def aiter_shuffle(g: Geometry) -> Page:
    """F5, K slot [H][D/x][N][x], V slot [H][N/x][D][x]: ROCM_AITER_FA shuffled. x divides N and D."""
    (h, n), e, d, x = _hn(g), g.element_bytes, _last(g.head_size), g.x
    _divides("head size", g.head_size, x)
    _divides("page", g.tokens, x)
    nd = g.tokens * g.head_size
    k = h * nd + d // x * g.tokens * x + n * x + d % x
    v = g.heads * nd + h * nd + n // x * g.head_size * x + d * x + n % x
    return Page("AITER shuffle", (Component("k", k * e, e), Component("v", v * e, e)), 2 * g.heads * nd * e)


@functools.cache
def rocm_attn(g: Geometry) -> Page:
    """F6, K slot as AITER shuffle, V slot [H][D][N]: ROCM_ATTN. x divides D."""
    (h, n), e, d, x = _hn(g), g.element_bytes, _last(g.head_size), g.x
    _divides("head size", g.head_size, x)
    nd = g.tokens * g.head_size
    k = h * nd + d // x * g.tokens * x + n * x + d % x
    v = g.heads * nd + h * nd + d * g.tokens + n
    return Page("ROCM_ATTN", (Component("k", k * e, e), Component("v", v * e, e)), 2 * g.heads * nd * e)


@functools.cache
def page16(g: Geometry) -> Page:
    """F7, each slot cut into sub-pages of 16 tokens with the interior of AITER shuffle: MiniMax-M3 on AMD."""
    (h, n), e, d, x = _hn(g), g.element_bytes, _last(g.head_size), g.x
    _divides("head size", g.head_size, x)
    _divides("page", g.tokens, 16)
    q, m, size = n // 16, n % 16, g.head_size
    sub = q * g.heads * 16 * size + h * 16 * size
    slot = g.tokens * g.heads * size
    k = sub + d // x * 16 * x + m * x + d % x
    v = slot + sub + m // x * size * x + d * x + m % x
    return Page("page-16", (Component("k", k * e, e), Component("v", v * e, e)), 2 * slot * e)


@functools.cache
def cpu_vec(g: Geometry) -> Page:
    """F8, a slot a head with all of K as [D][N], then all of V as [N][D]: CPU_ATTN with plain vector instructions."""
    (h, n), e, d = _hn(g), g.element_bytes, _last(g.head_size)
    nd = g.tokens * g.head_size
    k = h * 2 * nd + d * g.tokens + n
    v = h * 2 * nd + nd + n * g.head_size + d
    return Page("CPU_ATTN vec", (Component("k", k * e, e), Component("v", v * e, e)), 2 * g.heads * nd * e)


@functools.cache
def cpu_amx(g: Geometry) -> Page:
    """F8 as AMX tiles want it, w = 4 / e elements a word: CPU_ATTN with AMX. 16 divides N and D."""
    (h, n), e, d = _hn(g), g.element_bytes, _last(g.head_size)
    _divides("head size", g.head_size, 16)
    _divides("page", g.tokens, 16)
    w, nd = 4 // e, g.tokens * g.head_size
    k_in = n // 16 * 16 * g.head_size + d // w * 16 * w + n % 16 * w + d % w
    v_in = d // 16 * g.tokens * 16 + n // w * w * 16 + d % 16 * w + n % w
    k, v = h * 2 * nd + k_in, h * 2 * nd + nd + v_in
    return Page("CPU_ATTN AMX", (Component("k", k * e, e), Component("v", v * e, e)), 2 * g.heads * nd * e)


@functools.cache
def nvfp4_flashinfer(g: Geometry, *, swizzled: bool = False, token_major: bool = False) -> Page:
    """F9, [K data | K scales | V data | V scales]; data bytes hold two channels, a scale byte stands for 16.

    `swizzled` orders the V scales as the trtllm-gen path reads them: in groups of 4 tokens, the tokens of a scale
    beside each other. `token_major` swaps h and n (NHD).
    """
    _divides("head size", g.head_size, 64 if swizzled else 16)
    (h, n), data, scales = _hn(g), g.head_size // 2, g.head_size // 16
    b, s = _last(data), _last(scales)

    def row(token: Ints) -> Ints:
        return token * g.heads + h if token_major else h * g.tokens + token

    data_bytes, side = g.heads * g.tokens * data, g.heads * g.tokens * (data + scales)
    token, scale = n + 0 * s, s + 0 * n
    if swizzled:
        _divides("page", g.tokens, 4)
        quarter = scales // 4
        token, scale = n // 4 * 4 + s // quarter, s % quarter * 4 + n % 4
    parts = (
        Component("k", row(n) * data + b, 1),
        Component("ks", data_bytes + row(n) * scales + s, 1),
        Component("v", side + row(n) * data + b, 1),
        Component("vs", side + data_bytes + row(token) * scales + scale, 1),
    )
    return Page("NVFP4 FlashInfer" + (" swizzled" if swizzled else ""), parts, 2 * side)


@functools.cache
def nvfp4_msa(g: Geometry) -> Page:
    """F10, slots K0, V0, K1, V1, ... of N rows of data, then N rows of scales: NVFP4 in MiniMax MSA."""
    _divides("head size", g.head_size, 16)
    (h, n), data, scales = _hn(g), g.head_size // 2, g.head_size // 16
    b, s, slot = _last(data), _last(scales), g.tokens * (data + scales)
    parts = (
        Component("k", 2 * h * slot + n * data + b, 1),
        Component("ks", 2 * h * slot + g.tokens * data + n * scales + s, 1),
        Component("v", (2 * h + 1) * slot + n * data + b, 1),
        Component("vs", (2 * h + 1) * slot + g.tokens * data + n * scales + s, 1),
    )
    return Page("NVFP4 MSA", parts, 2 * g.heads * slot)


@functools.cache
def per_token_head(g: Geometry, *, data_bytes: int | None = None, token_major: bool = False) -> Page:
    """F11, [K data | K scale | V data | V scale] for each head and token, scales fp32: TRITON_ATTN.

    `data_bytes` of one head and token: D for int8 and fp8 (the default), D / 2 for int4.
    """
    (h, n), db = _hn(g), g.head_size if data_bytes is None else data_bytes
    content = 2 * (db + 4)
    base = ((n * g.heads + h) if token_major else (h * g.tokens + n)) * content
    parts = (
        Component("k", base + _last(db), 1),
        Component("ks", (base + db)[..., 0], 4),
        Component("v", base + db + 4 + _last(db), 1),
        Component("vs", (base + 2 * db + 4)[..., 0], 4),
    )
    return Page("per-token-head scales", parts, g.heads * g.tokens * content)


@dataclass(frozen=True)
class TurboQuant:
    """Bytes of one head and token: key codes, an fp16 key norm or none, value codes (then fp16 scale and zero)."""

    key: int
    norm: bool
    value: int

    @classmethod
    def named(cls, dtype: str, head_size: int) -> TurboQuant:
        """The sizes of a cache dtype: turboquant_k8v4, _4bit_nc, _k3v4_nc or _3bit_nc."""
        four, three = head_size // 2, (3 * head_size + 7) // 8
        sizes = {
            "turboquant_k8v4": cls(head_size, False, four),
            "turboquant_4bit_nc": cls(four, True, four),
            "turboquant_k3v4_nc": cls(three, True, four),
            "turboquant_3bit_nc": cls(three, True, three),
        }
        return sizes[dtype]

    @property
    def slot(self) -> int:
        """Bytes of one head and token, rounded up to even."""
        return _round_up(self.key + 2 * self.norm + self.value + 4, 2)


@functools.cache
def turboquant_aos(g: Geometry, dtype: str = "turboquant_k8v4") -> Page:
    """F12, token-major slots of [key (+ norm) | value | scale | zero]."""
    (h, n), t = _hn(g), TurboQuant.named(dtype, g.head_size)
    base = (n * g.heads + h) * t.slot
    value = base + t.key + 2 * t.norm
    parts = [Component("k", base + _last(t.key), 1)]
    if t.norm:
        parts.append(Component("kn", (base + t.key)[..., 0], 2))
    parts.append(Component("v", value + _last(t.value), 1))
    parts.append(Component("vs", (value + t.value)[..., 0], 2))
    parts.append(Component("vz", (value + t.value + 2)[..., 0], 2))
    return Page("TurboQuant AoS", tuple(parts), g.heads * g.tokens * t.slot)


@functools.cache
def turboquant_soa(g: Geometry, dtype: str = "turboquant_k8v4") -> Page:
    """F12 on gfx950: codes of all tokens and heads first, then all metadata as [H][norm, scale, zero][N] of fp16."""
    (h, n), t = _hn(g), TurboQuant.named(dtype, g.head_size)
    db = t.key + t.value
    base, fields = (n * g.heads + h) * db, ["kn", "vs", "vz"] if t.norm else ["vs", "vz"]
    parts = [Component("k", base + _last(t.key), 1), Component("v", base + t.key + _last(t.value), 1)]
    for f, name in enumerate(fields):
        at = g.tokens * g.heads * db + (h * len(fields) * g.tokens + f * g.tokens + n) * 2
        parts.append(Component(name, at[..., 0], 2))
    return Page("TurboQuant SoA", tuple(parts), g.heads * g.tokens * t.slot)


@functools.cache
def ultraquant(g: Geometry) -> Page:
    """F13, token-major slots of [K codes D/2 | K scales D/32 | V codes D/2 | V scales D/32]."""
    _divides("head size", g.head_size, 32)
    (h, n), codes, scales = _hn(g), g.head_size // 2, g.head_size // 32
    half = codes + scales
    base = (n * g.heads + h) * 2 * half
    parts = (
        Component("k", base + _last(codes), 1),
        Component("ks", base + codes + _last(scales), 1),
        Component("v", base + half + _last(codes), 1),
        Component("vs", base + half + codes + _last(scales), 1),
    )
    return Page("UltraQuant", parts, g.heads * g.tokens * 2 * half)


@functools.cache
def mla_rows(tokens: int, row: int = 576, element_bytes: int = 2) -> Page:
    """F15, one latent row `c` of `row` elements a token, H = 1, the same on every rank."""
    n = np.arange(tokens, dtype=np.int64)[None, :, None]
    c = Component("c", (n * row + _last(row)) * element_bytes, element_bytes)
    return Page("MLA rows", (c,), tokens * row * element_bytes)


@functools.cache
def mla_fp8_ds(tokens: int) -> Page:
    """F15 as fp8_ds_mla, 656 bytes a token: 512 fp8 `q`, 4 fp32 scales `sc`, 64 bf16 `r`."""
    n = np.arange(tokens, dtype=np.int64)[None, :, None]
    parts = (
        Component("q", n * 656 + _last(512), 1),
        Component("sc", n * 656 + 512 + _last(4) * 4, 4),
        Component("r", n * 656 + 528 + _last(64) * 2, 2),
    )
    return Page("MLA fp8_ds", parts, tokens * 656)


@functools.cache
def deepseek_v4(tokens: int) -> Page:
    """F16, N rows `c` of 576 bytes (448 fp8, 64 bf16), then N times 8 scale bytes `cs`, rounded up to 576 bytes."""
    n = np.arange(tokens, dtype=np.int64)[None, :, None]
    parts = (Component("c", n * 576 + _last(576), 1), Component("cs", tokens * 576 + n * 8 + _last(8), 1))
    return Page("DeepSeek-V4", parts, _round_up(tokens * 584, 576))


@functools.cache
def dsa_indexer(tokens: int, size: int = 128, *, tiled: bool = False) -> Page:
    """F17, N rows `k` of `size` fp8, then N fp32 scales `ks`; `tiled` is ROCm's order of the data (16 divides N)."""
    n, d = np.arange(tokens, dtype=np.int64)[None, :, None], _last(size)
    data = n * size + d
    if tiled:
        _divides("page", tokens, 16)
        data = n // 16 * 16 * size + n % 16 * 16 + d // 16 * 256 + d % 16
    parts = (Component("k", data, 1), Component("ks", (tokens * size + n * 4)[..., 0], 4))
    return Page("DSA indexer" + (" tiled" if tiled else ""), parts, tokens * (size + 4))


@dataclass(frozen=True)
class Mamba2:
    """Extents of a Mamba-2 state on one rank.

    `x`, `b`, `c` local channels of the convolution's parts and its `rows` (kernel - 1); `heads` H, `head_size` P,
    `state_size` S of the scan; bytes of an element in each.
    """

    x: int
    b: int
    c: int
    rows: int
    heads: int
    head_size: int
    state_size: int
    conv_bytes: int = 2
    ssm_bytes: int = 4


@functools.cache
def mamba2(m: Mamba2) -> Page:
    """F18, one state: convolution [x | b | c][rows] in DS order, then ssm [H][P][S]. N = 1.

    Each component's first axis is its own sharded one: channels of `x`, `b` and `c`, heads of `ssm`.
    """
    t, e, e2 = _last(m.rows), m.conv_bytes, m.ssm_bytes

    def conv(name: str, first: int, channels: int) -> Component:
        c = np.arange(channels, dtype=np.int64)[:, None, None]
        return Component(name, ((first + c) * m.rows + t) * e, e)

    h = np.arange(m.heads, dtype=np.int64)[:, None, None, None]
    p = np.arange(m.head_size, dtype=np.int64)[None, None, :, None]
    s = np.arange(m.state_size, dtype=np.int64)[None, None, None, :]
    conv_bytes = (m.x + m.b + m.c) * m.rows * e
    ssm = Component("ssm", conv_bytes + ((h * m.head_size + p) * m.state_size + s) * e2, e2)
    parts = (conv("x", 0, m.x), conv("b", m.x, m.b), conv("c", m.x + m.b, m.c), ssm)
    return Page("Mamba-2 state", parts, conv_bytes + m.heads * m.head_size * m.state_size * e2)
