"""Shaping: the sender rebuilds its pages in the peer's format, and writes long runs of those.

Where two interiors share only short runs, a push writes pages that were rearranged before:

    our pages --gather--> packed --scatter--> image (peer's format, our share) --WRITE, long runs--> peer's pages

An image is staging memory laid out like the peer's pages as far as this rank fills them. Which byte goes where is the
planner's: an image is planned for like any rank. The peer need not take part.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

import kvreshard as kvr
from kvreshard.kernels import Mover, mover
from kvreshard.vllm.pairs import Pair
from kvreshard.vllm.requests import Shape
from kvreshard.vllm.staging import Buffer

_PASSES = 2


@dataclass(frozen=True)
class Price:
    """What a request costs when it is shaped: descriptors posted, and nanoseconds."""

    posted: int
    ns: int


class Image:
    """One staging buffer as memory of a rank built like the peer's share.

    Raises:
        kvreshard.LimitExceeded: One page of every layer does not fit.
        kvreshard.Error: The peer's share cannot be laid out apart from its pages.
    """

    def __init__(self, pair: Pair, region: kvr.Region) -> None:
        mine, theirs, edge = pair.mine, pair.theirs, pair.edge
        takes: dict[str, dict[str, tuple[int, int]]] = {}
        for name, intervals, _ in edge.takes:
            if name in takes or len({axis for axis, _, _ in intervals}) != len(intervals):
                raise kvr.IncompatibleLayout(f"layer {name}: shares in several pieces cannot be rearranged by a push")
            takes[name] = {axis: (low, high) for axis, low, high in intervals}
        shares = [(layer, _shares(layer, takes[layer.name])) for layer in theirs.layers if layer.name in takes]
        row = sum(form.page_bytes for _, held in shares for form, _ in held)
        self.pages = region.bytes // max(1, row)
        if self.pages < 1:
            raise kvr.LimitExceeded(
                f"one page of every layer is {row} bytes, and a staging buffer has {region.bytes}: raise staging_bytes"
            )
        layers, offset = [], 0
        for layer, held in shares:
            segments = []
            for form, holds in held:
                segments.append(kvr.Segment(region, form, pages=self.pages, offset=offset, holds=holds))
                offset += self.pages * form.page_bytes
            layers.append(kvr.Layer(layer.name, segments, totals=layer.totals or None, group=layer.group))
        self.layout = kvr.RankLayout(
            engine=mine.engine,
            layers=layers,
            groups=[
                kvr.Group(group.kind, tokens_per_state=group.tokens_per_state, window=group.window)
                for group in theirs.groups
            ],
            tp=mine.tp,
        )
        self.fill = kvr.plan(self.layout, mine, edge=kvr.Edge.told("read", edge.takes))
        self.write = kvr.plan(self.layout, theirs, edge=kvr.Edge.told("write", edge.takes))
        self.remote_memory = theirs.regions[0].memory


def _shares(layer: kvr.Layer, takes: dict[str, tuple[int, int]]) -> list[tuple[kvr.PageFormat, Any]]:
    """The formats of a layer's segments, cut down to the shares taken, and what each holds."""
    found = []
    for segment in layer.segments:
        holds = {
            axis: (max(low, takes[axis][0]), min(high, takes[axis][1])) if axis in takes else (low, high)
            for axis, (low, high) in segment.holds.items()
        }
        if any(low >= high for low, high in holds.values()):
            continue
        extents = {axis: high - low for axis, (low, high) in holds.items() if axis in segment.format.extents}
        found.append((segment.format.with_extents(**extents), holds or None))
    return found


@dataclass
class Part:
    """Some consecutive tokens of a request, shaped and written in one go.

    Attributes:
        shaping: How.
        agent: The NIXL agent that they are written to.
        tokens: Which tokens.
        more: Whether later parts follow.
        news: What the peer is told when all parts are written; with the last part alone.
        ours: Blocks of our groups.
        theirs: Blocks of the peer's groups.
    """

    shaping: Shaping
    agent: str
    tokens: tuple[int, int]
    more: bool
    news: bytes
    ours: list[kvr.Blocks]
    theirs: list[kvr.Blocks]
    buffer: Buffer | None = None


@dataclass
class Job:
    """What is left of one request.

    Attributes:
        waiting: Parts not written yet.
        writing: Parts being written, by transfer handle.
        busy: Whether a part is being shaped.
    """

    waiting: list[Part] = field(default_factory=list)
    writing: dict[Any, Part] = field(default_factory=dict)
    busy: bool = False

    def next(self) -> Part | None:
        """The next part that may be written. What brings the news waits for all others to the same peer."""
        for part in self.waiting:
            others = [*self.writing.values(), *(other for other in self.waiting if other is not part)]
            if not part.news or all(other.shaping is not part.shaping for other in others):
                return part
        return None

    @property
    def over(self) -> bool:
        """Whether nothing is left."""
        return not (self.waiting or self.writing or self.busy)


class Shaping:
    """How one rank's pages are rebuilt for one rank of a peer, in staging buffers of `size` bytes.

    Raises:
        kvreshard.Error: As :class:`Image`.
    """

    def __init__(self, pair: Pair, size: int) -> None:
        self._pair = pair
        # Planning needs addresses, not memory.
        self._pretended = Image(pair, kvr.Region(1 << 20, size, 0, pair.mine.regions[0].memory))
        self._images: dict[kvr.Region, Image] = {}
        self._movers: dict[kvr.Region, tuple[Mover, Mover]] = {}
        # Tokens in a page of each group of the peer; 0 where it holds states.
        self._tokens = tuple(
            size // group.pages_per_block
            for size, group in zip(Shape.of(pair.theirs).blocks, pair.theirs.groups, strict=True)
        )

    def price(self, request: kvr.Request, transport: kvr.Transport) -> Price:
        """What a request of one period costs."""
        image = self._pretended
        part = Part(self, "", request.tokens, False, b"", request.local, request.remote)
        asked = self._request(image, part, part.theirs)
        (cost,) = image.write.costs(asked, transport=transport, lands=False, packs=False)
        return Price(cost.posted, cost.ns + _PASSES * 1000 * cost.bytes // max(1, transport.pass_bytes_per_us))

    def parts(self, request: kvr.Request, agent: str, news: bytes) -> list[Part]:
        """A request in parts that a staging buffer holds."""
        pages = self._pretended.pages
        period = math.lcm(*(size for size in self._tokens if size)) if any(self._tokens) else 1
        longest = max(1, min((size * pages for size in self._tokens if size), default=period) // period) * period
        start, end = request.tokens
        cuts = [start]
        while cuts[-1] < end:
            cuts.append(min(end, cuts[-1] // period * period + longest))
        ranges = list(itertools.pairwise(cuts)) or [(start, end)]
        last = len(ranges) - 1
        return [
            Part(self, agent, tokens, at < last, news if at == last else b"", request.local, request.remote)
            for at, tokens in enumerate(ranges)
        ]

    def shape(self, part: Part, buffer: Buffer, caches: Iterable[torch.Tensor], packed: torch.Tensor) -> None:
        """Rebuilds the part's pages in a buffer; `packed` holds the bytes in between."""
        image = self._image(buffer)
        if buffer.region not in self._movers:
            sides = image.fill.packed_tiles("remote"), image.fill.packed_tiles("local")
            self._movers[buffer.region] = mover(sides[0], list(caches)), mover(sides[1], [buffer.memory])
        taken, put = self._movers[buffer.region]
        pairing = image.fill.pair(self._request(image, part, part.ours))
        for address, size, _ in pairing.zero().tolist():
            # What no token fills is not to be what a request before left here.
            first = address - buffer.region.base
            buffer.memory[first : first + size].zero_()
        cuts = (pairing.chunks(side.tiles, packed.numel()) for side in (taken, put))
        for gathered, scattered in zip(*cuts, strict=True):
            taken.gather(gathered, packed)
            put.scatter(scattered, packed)
        buffer.settle()

    def lists(self, part: Part, buffer: Buffer) -> tuple[Any, Any]:
        """What is written: exact lists of the buffer's memory and the peer's."""
        image = self._image(buffer)
        pairing = image.write.pair(self._request(image, part, part.theirs))
        return (pairing if part.more else pairing.rounded()).lists()

    def memory(self, buffer: Buffer) -> tuple[str, str]:
        """The kinds of memory of both lists."""
        return buffer.region.memory, self._image(buffer).remote_memory

    def _image(self, buffer: Buffer) -> Image:
        if buffer.region not in self._images:
            self._images[buffer.region] = Image(self._pair, buffer.region)
        return self._images[buffer.region]

    def _request(self, image: Image, part: Part, others: list[kvr.Blocks]) -> kvr.Request:
        """A part as a request between the image, whose pages are counted from the part's first one, and a rank."""
        start, end = part.tokens
        pages = []
        for size in self._tokens:
            first = start // size if size else 0
            count = -(-end // size) - first if size else 1
            pages.append(kvr.Blocks(list(range(count)), first * size))
        return kvr.Request(tokens=part.tokens, local=pages, remote=others, more=part.more)


class Shapings:
    """How a push rearranges: in staging buffers of `size` bytes."""

    def __init__(self, size: int) -> None:
        self._size = size

    def price(self, pair: Pair, request: kvr.Request, transport: kvr.Transport) -> Price | None:
        """What a request costs; `None` where its pages cannot be shaped."""
        try:
            return self.prepare(pair).price(request, transport)
        except (kvr.LimitExceeded, kvr.IncompatibleLayout):
            return None

    def prepare(self, pair: Pair) -> Shaping:
        """What shapes the pages of a pair.

        Raises:
            kvreshard.Error: As :class:`Image`.
        """
        return Shaping(pair, self._size)
