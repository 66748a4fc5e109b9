"""What a rank holds and what a request names, as plain values; nothing is checked here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction


@dataclass(frozen=True)
class Page:
    """How a page is built: notation, extents by axis, element type by component."""

    notation: str
    extents: Mapping[str, int]
    types: Mapping[str, str]


@dataclass(frozen=True)
class Region:
    """One registration: address, bytes, and the memory it is of."""

    base: int
    bytes: int
    memory: str = "DRAM"
    device: int = 0


@dataclass(frozen=True)
class Segment:
    """Page i starts `offset + i * page_stride` bytes into the region; `holds` are global intervals of sharded axes.

    An axis that `holds` names and the page lacks makes the segment a plane at that one index.
    """

    region: int
    page: Page
    offset: int
    pages: int
    page_stride: int
    holds: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Layer:
    """Segments of one layer, the index of its group on this rank, and the totals of its sharded axes."""

    name: str
    segments: tuple[Segment, ...]
    group: int = 0
    totals: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Group:
    """Layers that share block ids; `kind` is "tokens" or "state". Block b is pages `b * pages_per_block` and on."""

    kind: str = "tokens"
    pages_per_block: int = 1
    tokens_per_state: Fraction = Fraction(1)
    window: int | None = None


@dataclass(frozen=True)
class Rank:
    """One rank. Token t belongs to context-parallel rank `(t // interleave) % size`."""

    regions: tuple[Region, ...]
    layers: tuple[Layer, ...]
    groups: tuple[Group, ...] = (Group(),)
    tp: tuple[int, int] = (0, 1)
    cp: tuple[int, int] = (0, 1)
    interleave: int = 1
    pp: tuple[int, int] = (0, 1)


@dataclass(frozen=True)
class Blocks:
    """A block list; its first block (with context parallelism, its virtual block) starts at token `first_token`."""

    ids: tuple[int, ...]
    first_token: int = 0


@dataclass(frozen=True)
class Request:
    """Tokens [start, end) and a block list for each group of each side."""

    tokens: tuple[int, int]
    local: tuple[Blocks, ...]
    remote: tuple[Blocks, ...]


def share(rank: int, size: int, total: int) -> tuple[int, int]:
    """The heads of `total` that rank `rank` of `size` holds: a stretch of them, or one that neighbours hold too."""
    start = rank * total // size
    return (start, start + 1) if size > total else (start, (rank + 1) * total // size)
