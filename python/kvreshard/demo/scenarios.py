"""What the demonstration moves: pairs of engines, each with a page format, a size of tensor parallelism and its memory.

A `Format` states one page format twice and apart: as the notation that the planner is given, and as the closed formula
that the writer, the reader and the count of fewest runs use.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

import kvreshard as kvr
from kvreshard.demo import formulas
from kvreshard.demo.formulas import Geometry
from kvreshard.demo.pattern import Ints, Page

LAYERS = 32
INCOMPATIBLE, MISSING = "IncompatibleLayout", "MissingLayer"


@dataclass(frozen=True)
class Format:
    """A page format as notation (`notation`, `content` extents, `types`) and as formula of a `Geometry`.

    `head_size` and `element_bytes` are the formula's D and e. `content` holds the extents of the notation's axes other
    than `h` and `n`.
    """

    label: str
    notation: str
    formula: Callable[[Geometry], Page]
    content: Mapping[str, int]
    types: Mapping[str, str]
    head_size: int = 128
    element_bytes: int = 2

    def declared(self, heads: int, tokens: int) -> kvr.PageFormat:
        """What the planner is told of a page of `tokens` tokens and, where heads are sharded, `heads` heads."""
        sharded = {"h": heads} if heads else {}
        return kvr.PageFormat(self.notation, extents={**self.content, **sharded, "n": tokens}, types=self.types)

    def page(self, heads: int, tokens: int) -> Page:
        """Where the formula has the elements of such a page; `heads` of 0 is a page that is not sharded."""
        return self.formula(Geometry(heads or 1, tokens, self.head_size, self.element_bytes))


def _mla(g: Geometry) -> Page:
    return formulas.mla_rows(g.tokens, g.head_size, g.element_bytes)


BF16: Mapping[str, str] = {"k": "bf16", "v": "bf16"}
FP8: Mapping[str, str] = {"k": "f8e4m3fn", "v": "f8e4m3fn"}
NVFP4: Mapping[str, str] = {"k": "fp4x2", "ks": "f8e4m3fn", "v": "fp4x2", "vs": "f8e4m3fn"}
D128: Mapping[str, int] = {"d": 128}

PACKED = Format("packed", "h n k[d] v[d]", formulas.packed_hnd, D128, BF16)
B12X = Format("B12X fp8", "k[n h d] v[n h d]", formulas.two_slot_nhd, D128, FP8, element_bytes=1)
SLOTS = Format("two slots", "k[h n d] v[h n d]", formulas.two_slot_hnd, D128, BF16)
AITER = Format("AITER shuffle", "k[h d/8 n d%8] v[h n/8 d n%8]", formulas.aiter_shuffle, D128, BF16)
ROCM = Format("ROCM_ATTN", "k[h d/8 n d%8] v[h d n]", formulas.rocm_attn, D128, BF16)
PAGE16 = Format("page-16", "k[n/16 h d/8 n%16 d%8] v[n/16 h n%16/8 d n%8]", formulas.page16, D128, BF16)
FLASHINFER = Format(
    "NVFP4 FlashInfer",
    "k[h n b] ks[h n s] v[h n b] vs[h n s]",
    formulas.nvfp4_flashinfer,
    {"b": 64, "s": 8},
    NVFP4,
    element_bytes=1,
)
MLA = Format("MLA", "c[n r]", _mla, {"r": 576}, {"c": "bf16"}, head_size=576)

Which = Literal["prefill", "decode"]
Strategy = Literal["auto", "direct", "landed", "packed"]
SIDES: tuple[Which, Which] = ("prefill", "decode")


@dataclass(frozen=True)
class Side:
    """One engine: `tp` ranks, pages of `tokens` tokens.

    Each layer has an allocation of its own; with `rows` there is one, and a row of it holds one block of all layers.
    `gap` bytes after each page belong to nobody. `backwards` lists the layers last to first. What a side may have wrong
    are `heads` in all, where given, and a layer in the middle that is `missing`.
    """

    format: Format
    tp: int
    tokens: int = 16
    rows: bool = False
    gap: int = 0
    backwards: bool = False
    heads: int | None = None
    missing: bool = False


@dataclass(frozen=True)
class Scenario:
    """A prefill and a decode engine, and the request between them.

    `heads` in all, 0 where the cache is not sharded. Tokens `first` to `end` are moved; the decode side already has
    those before `first`. `strategy` is how they move; with `staging` there is memory for it
    also where it is direct. `refused` is the name of the exception that must be raised before anything moves.
    """

    name: str
    prefill: Side
    decode: Side
    heads: int = 8
    end: int = 256
    first: int = 0
    push: bool = False
    note: str = ""
    refused: str | None = None
    strategy: Strategy = "direct"
    staging: bool = False
    layers: int = LAYERS
    seed: int = 1

    def side(self, which: Which) -> Side:
        """The engine of that name."""
        return self.prefill if which == "prefill" else self.decode

    def held(self, which: Which, rank: int) -> tuple[int, int] | None:
        """The half-open interval of global heads that a rank holds; `None` where the cache is not sharded."""
        side = self.side(which)
        return share(rank, side.tp, side.heads or self.heads) if self.heads else None

    def held_count(self, which: Which, rank: int) -> int:
        """How many heads a rank holds; 0 where the cache is not sharded."""
        low, high = self.held(which, rank) or (0, 0)
        return high - low

    def page(self, which: Which, rank: int) -> Page:
        """Where the formula has the elements of a rank's page."""
        side = self.side(which)
        return side.format.page(self.held_count(which, rank), side.tokens)

    def declared(self, which: Which, rank: int) -> kvr.PageFormat:
        """What the planner is told of a rank's page."""
        side = self.side(which)
        return side.format.declared(self.held_count(which, rank), side.tokens)

    def layer_numbers(self, which: Which) -> list[int]:
        """The layers of a side in the order in which it lists them and lays them out."""
        side = self.side(which)
        numbers = [number for number in range(self.layers) if not side.missing or number != self.layers // 2]
        return numbers[::-1] if side.backwards else numbers

    def pages(self, which: Which) -> int:
        """Pages of the request on one side."""
        return -(-self.end // self.side(which).tokens)

    def pool(self, which: Which) -> int:
        """Pages that a rank has: half as many again as the request uses, and one before and after."""
        return self.pages(which) * 3 // 2 + 2

    def blocks(self, which: Which) -> Ints:
        """Page ids of the request in token order, int64: short stretches in random order, as a busy pool gives them."""
        rng = np.random.default_rng([self.seed, self.tag, which == "prefill"])
        pool = np.arange(1, self.pool(which) - 1, dtype=np.int64)
        stretches = np.split(pool, np.flatnonzero(rng.integers(0, 3, len(pool)) == 0))
        order = rng.permutation(len(stretches))
        return np.concatenate([stretches[at] for at in order])[: self.pages(which)]

    @property
    def tag(self) -> int:
        """A number made of the name, for seeds."""
        return zlib.crc32(self.name.encode())

    @property
    def formats(self) -> str:
        """The page formats, prefill to decode."""
        one, other = self.prefill.format.label, self.decode.format.label
        return one if one == other else f"{one} -> {other}"


def share(rank: int, size: int, heads: int) -> tuple[int, int]:
    """The heads of a tensor-parallel rank: an equal share, or one head where there are more ranks than heads."""
    if size > heads:
        return rank * heads // size, rank * heads // size + 1
    return rank * heads // size, (rank + 1) * heads // size


FNUZ = replace(PACKED, label="e4m3fnuz", types=dict.fromkeys("kv", "f8e4m3fnuz"), element_bytes=1)
FN = replace(PACKED, label="packed e4m3fn", types=FP8, element_bytes=1)

SCENARIOS: tuple[Scenario, ...] = (
    Scenario("aiter-1-2", Side(AITER, 1), Side(AITER, 2)),
    Scenario("aiter-2-1", Side(AITER, 2), Side(AITER, 1)),
    Scenario("rocm-2-4", Side(ROCM, 2), Side(ROCM, 4)),
    Scenario("b12x-1-2", Side(B12X, 1, 64), Side(B12X, 2, 64), end=512, note="token-major slots"),
    Scenario("replicated-4-1", Side(PACKED, 4), Side(PACKED, 1), heads=2, end=512, note="2 heads on 4 ranks"),
    Scenario("six-heads-2-3", Side(PACKED, 2), Side(PACKED, 3), heads=6, note="6 heads"),
    Scenario("pages-16-64", Side(PACKED, 1, 16), Side(PACKED, 1, 64), end=240, note="last page not full"),
    Scenario("pages-64-16", Side(PACKED, 2, 64), Side(PACKED, 1, 16), first=48, note="48 tokens there already"),
    Scenario("nvfp4-1-2", Side(FLASHINFER, 1), Side(FLASHINFER, 2), end=512, note="data and scales apart"),
    Scenario("mla-4-2", Side(MLA, 4, 64), Side(MLA, 2, 64), heads=0, end=1000, note="same on every rank"),
    Scenario("push-1-2", Side(PAGE16, 1, 128), Side(PAGE16, 2, 128), push=True, note="prefill pushes"),
    Scenario("rows-1-1", Side(PACKED, 1, rows=True), Side(PACKED, 1, rows=True), note="a row holds all layers"),
    Scenario("format-2-1", Side(PACKED, 2, gap=512), Side(SLOTS, 1, backwards=True), end=128, note="layers reordered"),
    Scenario("convert-1-2", Side(PACKED, 1), Side(AITER, 2), strategy="landed", note="landed"),
    Scenario("convert-2-1", Side(AITER, 2), Side(PACKED, 1), strategy="packed", note="packed"),
    Scenario("b12x-landed", Side(B12X, 1, 64), Side(B12X, 2, 64), end=512, strategy="landed", note="landed"),
    Scenario("b12x-packed", Side(B12X, 1, 64), Side(B12X, 2, 64), end=512, strategy="packed", note="packed"),
    Scenario("refuse-fp8", Side(FN, 1), Side(FNUZ, 1), note="fp8 encodings", refused=INCOMPATIBLE),
    Scenario("refuse-heads", Side(PACKED, 1, heads=4), Side(PACKED, 2), note="heads in all", refused=INCOMPATIBLE),
    Scenario("refuse-layer", Side(PACKED, 2, missing=True), Side(PACKED, 1), note="layer missing", refused=MISSING),
)


def scenario(name: str) -> Scenario:
    """The scenario of that name; KeyError if there is none."""
    return {one.name: one for one in SCENARIOS}[name]
