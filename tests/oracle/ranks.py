"""Ranks of every layout, written out by hand: small pages in small regions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypedDict

from tests.oracle.engines import Exchange
from tests.oracle.model import Blocks, Group, Layer, Page, Rank, Region, Segment, share
from tests.oracle.notation import unroll

KV = {"k": "bf16", "v": "bf16"}
STATE_GROUP = Group("state")
PLAIN = Group()
SOURCE, TARGET = 0x10_0000, 0x7F00_0000_0000


class Sizes(TypedDict):
    """Tokens in a page and channels of a head."""

    n: int
    d: int


Holds = Mapping[str, tuple[int, int]]


@dataclass
class Memory:
    """A rank's memory while it is laid out: stretches of pages in regions, back to back."""

    base: int
    regions: list[Region] = field(default_factory=list)
    segments: dict[str, list[Segment]] = field(default_factory=dict)

    def region(self, size: int, *, memory: str = "DRAM", gap: int = 256) -> int:
        """A new registration, `gap` bytes after the last one; 0 lets two touch."""
        start = self.regions[-1].base + self.regions[-1].bytes + gap if self.regions else self.base
        self.regions.append(Region(start, size, memory))
        return len(self.regions) - 1

    def put(
        self,
        region: int,
        layer: str,
        page: Page,
        pages: int,
        holds: Holds | None = None,
        *,
        at: int = 0,
        stride: int | None = None,
    ) -> int:
        """Pages of one layer; returns one past their last byte."""
        size = unroll(page.notation, page.extents, page.types).page_bytes
        stride = stride or size
        self.segments.setdefault(layer, []).append(Segment(region, page, at, pages, stride, dict(holds or {})))
        return at + (pages - 1) * stride + size

    def rank(
        self,
        groups: Sequence[Group] = (Group(),),
        group_of: Callable[[str], int] = lambda _: 0,
        totals: Callable[[str], Mapping[str, int]] | Mapping[str, int] = lambda _: {},
        **place: object,
    ) -> Rank:
        """The finished rank."""
        of = totals if callable(totals) else lambda _: totals
        layers = [Layer(name, tuple(parts), group_of(name), of(name)) for name, parts in self.segments.items()]
        return Rank(tuple(self.regions), tuple(layers), tuple(groups), **place)  # type: ignore[arg-type]


def size_of(page: Page) -> int:
    """Bytes of a page."""
    return unroll(page.notation, page.extents, page.types).page_bytes


def page(notation: str, types: Mapping[str, str] | None = None, /, **extents: int) -> Page:
    """A page; the types of a bf16 K and V where none are given."""
    return Page(notation, extents, types or KV)


def layers(count: int) -> list[str]:
    """Names of layers."""
    return [f"layers.{number}" for number in range(count)]


def exchange(
    source: Sequence[Rank],
    target: Sequence[Rank],
    tokens: tuple[int, int],
    source_blocks: Sequence[Blocks],
    target_blocks: Sequence[Blocks],
) -> Exchange:
    """An exchange in which all ranks of an engine have the same lists."""
    lists = [(tuple(blocks),) * len(ranks) for blocks, ranks in ((source_blocks, source), (target_blocks, target))]
    return Exchange(tuple(source), tuple(target), tokens, lists[0], lists[1])


def ids(*numbers: int, first: int = 0) -> Blocks:
    """A block list."""
    return Blocks(numbers, first)


def engine(base: int, size: int, make: Callable[[int, int, int], Rank]) -> list[Rank]:
    """Ranks `make(rank, size, base address)`, far apart."""
    return [make(rank, size, base + 0x100_0000 * rank) for rank in range(size)]


# Ranks of one kind of layout


def outermost(
    notation: str, heads: int = 4, count: int = 2, pages: int = 8, group: Group = PLAIN, gap: int = 0, *, n: int, d: int
) -> Callable[[int, int, int], Rank]:
    """Layer outermost (LBHNC, LBNHC): a registration a layer, `gap` bytes after each page; a share of the heads."""

    def make(rank: int, size: int, base: int) -> Rank:
        held = share(rank, size, heads)
        one = page(notation, n=n, d=d, h=held[1] - held[0])
        memory, stride = Memory(base), size_of(one) + gap
        for name in layers(count):
            memory.put(memory.region(stride * pages), name, one, pages, {"h": held}, stride=stride)
        return memory.rank((group,), totals={"h": heads}, tp=(rank, size))

    return make


def block_outermost(
    notation: str, heads: int = 4, count: int = 2, pages: int = 8, pad: int = 0, *, n: int, d: int
) -> Callable[[int, int, int], Rank]:
    """Block outermost (BLHNC, BLNHC): one registration of rows, a row has one page of each layer and `pad` bytes."""

    def make(rank: int, size: int, base: int) -> Rank:
        held = share(rank, size, heads)
        one = page(notation, n=n, d=d, h=held[1] - held[0])
        row = size_of(one) * count + pad
        memory = Memory(base)
        region = memory.region(row * pages)
        for number, name in enumerate(layers(count)):
            memory.put(region, name, one, pages, {"h": held}, at=number * size_of(one), stride=row)
        return memory.rank(totals={"h": heads}, tp=(rank, size))

    return make


def heads_before_layers(
    inner: str, heads: int = 4, count: int = 2, pages: int = 8, *, n: int, d: int
) -> Callable[[int, int, int], Rank]:
    """BHLNC: in a row, for each head one stretch of each layer; what is other layers' is a pad in the format."""

    def make(rank: int, size: int, base: int) -> Rank:
        held = share(rank, size, heads)
        part = size_of(page(f"h {inner}", n=n, d=d, h=1))
        row = part * count * (held[1] - held[0])
        memory = Memory(base)
        region = memory.region(row * pages)
        for number, name in enumerate(layers(count)):
            before, after = number * part, (count - 1 - number) * part
            notation = " ".join(["h", f"pad[{before}]" * bool(before), f"({inner})", f"pad[{after}]" * bool(after)])
            memory.put(region, name, page(notation, n=n, d=d, h=held[1] - held[0]), pages, {"h": held}, stride=row)
        return memory.rank(totals={"h": heads}, tp=(rank, size))

    return make


def head_planes(
    inner: Sequence[str], heads: int = 4, count: int = 2, pages: int = 8, *, n: int, d: int
) -> Callable[[int, int, int], Rank]:
    """LHBNC: a registration for each layer, head and notation of `inner` (K and V together, or a plane each)."""

    def make(rank: int, size: int, base: int) -> Rank:
        memory = Memory(base)
        for name in layers(count):
            for head in range(*share(rank, size, heads)):
                for notation in inner:
                    types = {component: "bf16" for component in KV if f"{component}[" in notation}
                    plane = page(notation, types, n=n, d=d)
                    region = memory.region(size_of(plane) * pages)
                    memory.put(region, name, plane, pages, {"h": (head, head + 1)})
        return memory.rank(totals={"h": heads}, tp=(rank, size))

    return make


def side_planes(k: str, v: str, heads: int = 4, pages: int = 8, *, n: int, d: int) -> Callable[[int, int, int], Rank]:
    """LHBNC of a two-slot page: all K in one plane, all V in another one."""

    def make(rank: int, size: int, base: int) -> Rank:
        held = share(rank, size, heads)
        memory = Memory(base)
        for name in layers(2):
            for component, notation in (("k", k), ("v", v)):
                plane = page(notation, {component: "bf16"}, n=n, d=d, h=held[1] - held[0])
                memory.put(memory.region(size_of(plane) * pages), name, plane, pages, {"h": held})
        return memory.rank(totals={"h": heads}, tp=(rank, size))

    return make


def one_pool(regions: int, pages: int = 2, *, n: int, d: int) -> Callable[[int, int, int], Rank]:
    """Two layers one after the other, in one registration or in two that touch."""

    def make(rank: int, size: int, base: int) -> Rank:
        one = page("h n k[d] v[d]", n=n, d=d, h=2)
        memory, size_of_one = Memory(base), size_of(one) * pages
        made = [memory.region(size_of_one * (2 // regions), gap=0) for _ in range(regions)]
        for number, name in enumerate(layers(2)):
            memory.put(made[number % regions], name, one, pages, {"h": (0, 2)}, at=(number // regions) * size_of_one)
        return memory.rank(totals={"h": 2})

    return make


def latent(
    n: int,
    cp: tuple[int, int] = (0, 1),
    interleave: int = 1,
    pages: int = 16,
    per_block: int = 1,
    tp: tuple[int, int] = (0, 1),
    base: int = SOURCE,
) -> Rank:
    """MLA rows, replicated by tensor parallelism, dealt by context parallelism."""
    one = page("c[n r]", {"c": "bf16"}, n=n, r=8)
    memory = Memory(base)
    for name in layers(2):
        memory.put(memory.region(size_of(one) * pages), name, one, pages)
    return memory.rank((Group(pages_per_block=per_block),), tp=tp, cp=cp, interleave=interleave)


def dealt(base: int, size: int, n: int, interleave: int, pages: int = 16, per_block: int = 1) -> list[Rank]:
    """An engine of context-parallel ranks."""
    return engine(base, size, lambda rank, of, at: latent(n, (rank, of), interleave, pages, per_block, (rank, of), at))


def latent_replicas(base: int, size: int, n: int = 4, pages: int = 8) -> list[Rank]:
    """An engine whose tensor-parallel ranks all hold the same rows."""
    return engine(base, size, lambda rank, of, at: latent(n, tp=(rank, of), pages=pages, base=at))


# States


def mamba1(rank: int, size: int) -> tuple[Page, dict[str, tuple[int, int]], dict[str, int]]:
    """Inner channels are sharded, in the convolution (3 rows) and in the state alike."""
    held = share(rank, size, 8)
    one = page("x[cx t] ssm[cx s]", {"x": "bf16", "ssm": "f32"}, cx=held[1] - held[0], t=3, s=4)
    return one, {"cx": held}, {"cx": 8}


def mamba2(rank: int, size: int, groups: int = 2) -> tuple[Page, dict[str, tuple[int, int]], dict[str, int]]:
    """x, B and C of unequal width, each with its own axis; groups that do not divide are whole on every rank."""
    x, b, h = share(rank, size, 12), share(rank, size, groups * 4), share(rank, size, 6)
    if groups % size:
        b = (0, groups * 4)
    types = {"x": "bf16", "b": "bf16", "c": "bf16", "ssm": "f32"}
    extents = {"cx": x[1] - x[0], "cb": b[1] - b[0], "cc": b[1] - b[0], "h": h[1] - h[0], "t": 3, "p": 2, "s": 4}
    one = Page("x[cx t] b[cb t] c[cc t] ssm[h p s]", extents, types)
    return one, {"cx": x, "cb": b, "cc": b, "h": h}, {"cx": 12, "cb": groups * 4, "cc": groups * 4, "h": 6}


def gdn(rank: int, size: int) -> tuple[Page, dict[str, tuple[int, int]], dict[str, int]]:
    """Q, K and V of a convolution, V wider, and one state a value head; the convolution is token-major."""
    qk, v, h = share(rank, size, 8), share(rank, size, 16), share(rank, size, 4)
    types = {"q": "bf16", "k": "bf16", "v": "bf16", "ssm": "f32"}
    extents = {"cq": qk[1] - qk[0], "ck": qk[1] - qk[0], "cv": v[1] - v[0], "h": h[1] - h[0], "t": 3, "dv": 4, "dk": 2}
    one = Page("(t q[cq] k[ck] v[cv]) ssm[h dv dk]", extents, types)
    return one, {"cq": qk, "ck": qk, "cv": v, "h": h}, {"cq": 8, "ck": 8, "cv": 16, "h": 4}


State = Callable[[int, int], tuple[Page, dict[str, tuple[int, int]], dict[str, int]]]


def states(of: State, base: int, size: int) -> list[Rank]:
    """An engine of state layers alone, a slot a page."""

    def make(rank: int, of_size: int, at: int) -> Rank:
        one, holds, totals = of(rank, of_size)
        memory = Memory(at)
        for name in layers(2):
            memory.put(memory.region(size_of(one) * 6), name, one, 6, holds)
        return memory.rank((STATE_GROUP,), totals=totals, tp=(rank, of_size))

    return engine(base, size, make)


def hybrid(base: int, size: int, n: int) -> list[Rank]:
    """Attention and Mamba-2 layers over one pool: page i of either is the same memory, padded to one stride."""

    def make(rank: int, of_size: int, at: int) -> Rank:
        state, holds, totals = mamba2(rank, of_size)
        held = share(rank, of_size, 2)
        attention = page("h n k[d] v[d]", n=n, d=4, h=held[1] - held[0])
        stride = max(size_of(state), size_of(attention)) + 8
        memory = Memory(at)
        region = memory.region(stride * 10)
        memory.put(region, "attention.0", attention, 10, {"h": held}, stride=stride)
        memory.put(region, "mamba.0", state, 10, holds, stride=stride)
        return memory.rank(
            (Group(), STATE_GROUP),
            lambda name: int(name == "mamba.0"),
            lambda name: totals if name == "mamba.0" else {"h": 2},
            tp=(rank, of_size),
        )

    return engine(base, size, make)


def drafted(base: int, size: int, n: int, draft: str) -> list[Rank]:
    """An MLA target, replicated, with a GQA draft of four heads: another kind of layer in the same group."""

    def make(rank: int, of_size: int, at: int) -> Rank:
        held = share(rank, of_size, 4)
        rows = page("c[n r]", {"c": "bf16"}, n=n, r=8)
        heads = page(draft, n=n, d=4, h=held[1] - held[0])
        memory = Memory(at)
        memory.put(memory.region(size_of(rows) * 8), "target.0", rows, 8)
        memory.put(memory.region(size_of(heads) * 8), "draft.0", heads, 8, {"h": held})
        return memory.rank(totals=lambda name: {"h": 4} if name == "draft.0" else {}, tp=(rank, of_size))

    return engine(base, size, make)


def windowed(n: int, base: int, window: int) -> Rank:
    """Full attention and a sliding window, two groups over one pool of 12 pages."""
    one = page("h n k[d] v[d]", n=n, d=4, h=2)
    memory = Memory(base)
    region = memory.region(size_of(one) * 12)
    for name in ("full.0", "sliding.0"):
        memory.put(region, name, one, 12, {"h": (0, 2)})
    groups = (Group(), Group(window=window))
    return memory.rank(groups, lambda name: int(name == "sliding.0"), {"h": 2})


def staged(base: int, stages: Sequence[Sequence[int]], tp: int = 1) -> list[Rank]:
    """Pipeline stages that hold the layers of these numbers."""
    found: list[Rank] = []
    for stage, held in enumerate(stages):
        for rank in range(tp):
            heads = share(rank, tp, 2)
            one = page("h n k[d] v[d]", n=4, d=4, h=heads[1] - heads[0])
            memory = Memory(base + 0x100_0000 * len(found))
            for number in held:
                memory.put(memory.region(size_of(one) * 8), f"layers.{number}", one, 8, {"h": heads})
            found.append(memory.rank(totals={"h": 2}, tp=(rank, tp), pp=(stage, len(stages))))
    return found


def compressed(base: int, n: int, tokens_per_state: Fraction, pages: int = 8) -> Rank:
    """Rows that stand for several tokens, or several that stand for one."""
    one = page("c[n r]", {"c": "u8"}, n=n, r=12)
    memory = Memory(base)
    memory.put(memory.region(size_of(one) * pages), "layers.0", one, pages)
    return memory.rank((Group(tokens_per_state=tokens_per_state),))


def mixed_memory(base: int, swapped: bool) -> Rank:
    """One layer in host and one in device memory."""
    one = page("h n k[d] v[d]", n=4, d=4, h=2)
    memory = Memory(base)
    for number, name in enumerate(layers(3)):
        kind = "VRAM" if (number + swapped) % 2 else "DRAM"
        memory.put(memory.region(size_of(one) * 8, memory=kind), name, one, 8, {"h": (0, 2)})
    return memory.rank(totals={"h": 2})
