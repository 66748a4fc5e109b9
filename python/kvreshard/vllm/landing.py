"""Landing: whole pages are read as the peer built them, and rearranged into ours by the receiver.

Where two interiors share only short runs, a descriptor for each would take longer than the bytes. So the peer's pages
are read whole into staging memory and scattered from there. Which byte goes where is the planner's: one period of both
sides' pages is planned exactly, and its runs become index tables that serve every page.

    peer's pages --READ, whole--> staging (peer's format) --scatter by table--> our pages

The scatter reads staging and writes pages that the request owns, so doing it twice does no harm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import kvreshard as kvr
from kvreshard.vllm.staging import Buffer

Ints = NDArray[np.int64]

# Pages scattered at a time: bounds the memory of the index arithmetic.
_BATCH = 16


@dataclass(frozen=True)
class Cell:
    """What one page of a period holds of one page of the other side's.

    Attributes:
        segment: Which of our segments.
        local: Our page in the period.
        remote: The peer's page in the period.
        target: Where the units go, from the start of our page, int64.
        source: Where they come from, from the start of the peer's page, int64.
    """

    segment: int
    local: int
    remote: int
    target: torch.Tensor
    source: torch.Tensor


@dataclass(frozen=True)
class Table:
    """The cells of one period, for all layers built alike.

    Attributes:
        unit: Bytes that move together: 1, 2, 4 or 8.
        local_pages: Our pages in a period.
        remote_pages: The peer's pages in a period.
        local_tokens: Tokens of our pages.
        remote_tokens: Tokens of the peer's.
        cells: The cells.
    """

    unit: int
    local_pages: int
    remote_pages: int
    local_tokens: int
    remote_tokens: int
    cells: tuple[Cell, ...]


@dataclass
class Chunk:
    """Some of the peer's pages of one group, read in one go.

    Attributes:
        landing: Where they land.
        group: Our group.
        numbers: Their numbers, counted from global token 0, ascending.
        sources: Their ids at the peer.
        targets: Our page ids by page number.
        end: The token that the request ends before.
        buffer: Where they are read into, once they are.
    """

    landing: Landing
    group: int
    numbers: list[int]
    sources: list[int]
    targets: dict[int, int]
    start: int
    end: int
    buffer: Buffer | None = None


@dataclass
class Job:
    """What is left of one request.

    Attributes:
        waiting: Chunks not read yet.
        reading: Chunks being read, by transfer handle.
    """

    waiting: list[Chunk] = field(default_factory=list)
    reading: dict[int, Chunk] = field(default_factory=dict)


class Landing:
    """How one rank of a peer is landed here.

    Raises:
        kvreshard.Error: Its pages do not fit ours, or a page does not fit a staging buffer.
    """

    def __init__(self, mine: kvr.RankLayout, theirs: kvr.RankLayout, edge: kvr.Edge) -> None:
        self.mine, self.theirs = mine, theirs
        self.direct = kvr.plan(mine, theirs, edge=edge, direction="read")
        self.layers = [layer for layer in theirs.layers if layer.name in set(edge.layers)]
        self._mine = {layer.name: layer for layer in mine.layers}
        tables: dict[Any, Table] = {}
        self.tables: dict[str, Table] = {}
        for layer in self.layers:
            key = _likeness(self._mine[layer.name], layer, mine, theirs)
            if key not in tables:
                tables[key] = _table(mine, theirs, self._mine[layer.name], layer, edge)
            self.tables[layer.name] = tables[key]
        self.plans: list[kvr.Plan] = []
        self.handles: list[tuple[int, int]] = []
        self.pages = 0

    def prepare(self, worker: Any, agent: str) -> None:
        """Prepares reads of whole pages into each staging buffer."""
        staging = worker.staging
        row = sum(segment.format.page_bytes for layer in self.layers for segment in layer.segments)
        self.pages = staging.size // row
        if self.pages < 1:
            raise kvr.LimitExceeded(
                f"one page of every layer is {row} bytes, and a staging buffer has {staging.size}: raise staging_bytes"
            )
        by_page = _regrouped(self.theirs, self.layers)
        for buffer in staging.buffers:
            plan = kvr.plan(self._staged(buffer), by_page, direction="read")
            ((here, there),) = plan.parts
            local = worker.nixl_wrapper.prep_xfer_dlist("NIXL_INIT_AGENT", plan.local_rows(), mem_type=here)
            remote = worker.nixl_wrapper.prep_xfer_dlist(agent, plan.remote_rows(), mem_type=there)
            self.plans.append(plan)
            self.handles.append((local, remote))

    def release(self, worker: Any) -> None:
        """Releases the prepared lists."""
        for pair in self.handles:
            for handle in pair:
                worker.nixl_wrapper.release_dlist_handle(handle)
        self.handles, self.plans = [], []

    def _staged(self, buffer: Buffer) -> kvr.RankLayout:
        """A buffer as the memory of a rank built like the peer's."""
        layers, offset = [], 0
        for layer in self.layers:
            segments = []
            for segment in layer.segments:
                size = segment.format.page_bytes
                segments.append(
                    kvr.Segment(buffer.region, segment.format, pages=self.pages, offset=offset, holds=segment.holds)
                )
                offset += self.pages * size
            layers.append(kvr.Layer(layer.name, segments, totals=layer.totals or None, group=layer.group))
        return kvr.RankLayout(
            engine=self.mine.engine,
            layers=layers,
            groups=[_single(group) for group in self.theirs.groups],
            tp=self.theirs.tp,
        )

    # One request.

    def chunks(self, request: kvr.Request) -> list[Chunk]:
        """The request in chunks that a staging buffer holds."""
        start, end = request.tokens
        found: list[Chunk] = []
        groups = dict.fromkeys((self._mine[layer.name].group, layer.group) for layer in self.layers)
        for here, there in groups:
            table = next(
                self.tables[layer.name]
                for layer in self.layers
                if (self._mine[layer.name].group, layer.group) == (here, there)
            )
            targets = _by_number(self.mine, here, request.local[here], table.local_tokens)
            sources = _by_number(self.theirs, there, request.remote[there], table.remote_tokens)
            needed = sorted(
                number for number in sources if self._wanted(table, number, targets, start, end)
            )
            for at in range(0, len(needed), self.pages):
                numbers = needed[at : at + self.pages]
                found.append(Chunk(self, here, numbers, [sources[n] for n in numbers], targets, start, end))
        return found

    def _wanted(self, table: Table, number: int, targets: dict[int, int], start: int, end: int) -> bool:
        first = number * table.remote_tokens
        if first >= end or first + table.remote_tokens <= start:
            return False
        turn, within = divmod(number, table.remote_pages)
        return any(
            cell.remote == within and turn * table.local_pages + cell.local in targets for cell in table.cells
        )

    def ids(self, chunk: Chunk, buffer: Buffer) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The prepared descriptors that read a chunk into a buffer."""
        there = next(layer.group for layer in self.layers if self._mine[layer.name].group == chunk.group)
        tokens = next(
            self.tables[layer.name].remote_tokens
            for layer in self.layers
            if self._mine[layer.name].group == chunk.group
        )
        # Pages count as those of a short sequence of their own: pairing is by position in the two lists.
        count = len(chunk.sources)
        empty = [kvr.Blocks([], 0) for _ in self.theirs.groups]
        here, far = list(empty), list(empty)
        here[there], far[there] = kvr.Blocks(list(range(count)), 0), kvr.Blocks(chunk.sources, 0)
        request = kvr.Request(tokens=(0, count * tokens), local=here, remote=far)
        return self.plans[buffer.number].ids(request)

    def scatter(self, chunk: Chunk, caches: dict[str, torch.Tensor]) -> None:
        """Rearranges a chunk that was read into our pages."""
        assert chunk.buffer is not None
        offset = 0
        slots = {number: slot for slot, number in enumerate(chunk.numbers)}
        for layer in self.layers:
            size = layer.segments[0].format.page_bytes
            if self._mine[layer.name].group == chunk.group:
                table = self.tables[layer.name]
                pages = chunk.buffer.memory[offset : offset + self.pages * size].view(_units(table.unit))
                self._scatter_layer(layer.name, table, pages.view(self.pages, -1), chunk, slots, caches)
            offset += self.pages * size

    def _scatter_layer(
        self,
        name: str,
        table: Table,
        source: torch.Tensor,
        chunk: Chunk,
        slots: dict[int, int],
        caches: dict[str, torch.Tensor],
    ) -> None:
        mine = self._mine[name]
        flat = torch.empty(0, dtype=torch.uint8, device=caches[name].device)
        flat = flat.set_(caches[name].untyped_storage())  # type: ignore[arg-type]
        for cell in table.cells:
            pairs = []
            for number, slot in slots.items():
                turn, within = divmod(number, table.remote_pages)
                page = chunk.targets.get(turn * table.local_pages + cell.local)
                if within == cell.remote and page is not None:
                    pairs.append((page, slot))
            if not pairs:
                continue
            target = _pages(flat, mine.segments[cell.segment], table.unit)
            ids = torch.tensor(pairs, dtype=torch.int64, device=source.device)
            for batch in ids.split(_BATCH):
                target[batch[:, :1], cell.target[None, :]] = source[batch[:, 1:], cell.source[None, :]]

    def to(self, device: torch.device) -> None:
        """Moves the tables to where the pages are."""
        self.tables = {
            name: Table(
                table.unit,
                table.local_pages,
                table.remote_pages,
                table.local_tokens,
                table.remote_tokens,
                tuple(
                    Cell(c.segment, c.local, c.remote, c.target.to(device), c.source.to(device)) for c in table.cells
                ),
            )
            for name, table in self.tables.items()
        }


def _units(unit: int) -> torch.dtype:
    return {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[unit]


def _pages(flat: torch.Tensor, segment: kvr.Segment, unit: int) -> torch.Tensor:
    """A segment's pages as units, `[pages, units]`."""
    whole = flat[: flat.numel() - flat.numel() % unit].view(_units(unit))
    size = (segment.pages, segment.format.page_bytes // unit)
    return whole.as_strided(size, (segment.page_stride // unit, 1), segment.offset // unit)


def _single(group: kvr.Group) -> kvr.Group:
    """The same group counted in kernel pages."""
    return kvr.Group(group.kind, tokens_per_state=group.tokens_per_state)


def _regrouped(layout: kvr.RankLayout, layers: list[kvr.Layer]) -> kvr.RankLayout:
    return kvr.RankLayout(
        engine=layout.engine,
        layers=layers,
        groups=[_single(group) for group in layout.groups],
        generation=layout.generation,
        tp=layout.tp,
    )


def _by_number(layout: kvr.RankLayout, group: int, blocks: kvr.Blocks, tokens: int) -> dict[int, int]:
    """Page ids by page number, counted from global token 0."""
    ratio = layout.groups[group].pages_per_block
    first = blocks.first_token // tokens
    return {
        first + at * ratio + within: block * ratio + within
        for at, block in enumerate(blocks.ids.tolist())
        for within in range(ratio)
    }


def _likeness(here: kvr.Layer, there: kvr.Layer, mine: kvr.RankLayout, theirs: kvr.RankLayout) -> Any:
    def of(layer: kvr.Layer, layout: kvr.RankLayout) -> Any:
        segments = tuple(
            (segment.format.fingerprint, tuple(sorted(segment.holds.items())), segment.page_stride, segment.offset % 8)
            for segment in layer.segments
        )
        return segments, tuple(sorted(layer.totals.items())), layout.groups[layer.group].tokens_per_state

    return of(here, mine), of(there, theirs)


def _page_tokens(layout: kvr.RankLayout, layer: kvr.Layer) -> int:
    states = layer.segments[0].format.extents.get("n", 1)
    tokens = states * layout.groups[layer.group].tokens_per_state
    if tokens.denominator != 1:
        raise kvr.IncompatibleLayout(f"layer {layer.name}: a page of {tokens} tokens cannot be landed")
    return int(tokens)


def _table(
    mine: kvr.RankLayout, theirs: kvr.RankLayout, here: kvr.Layer, there: kvr.Layer, edge: kvr.Edge
) -> Table:
    """Plans one period of two layers exactly, on memory that does not exist, and turns its runs into tables."""
    local_tokens, remote_tokens = _page_tokens(mine, here), _page_tokens(theirs, there)
    period = math.lcm(local_tokens, remote_tokens)
    counts = period // local_tokens, period // remote_tokens
    local, local_starts = _pretend(mine, here, counts[0])
    remote, remote_starts = _pretend(theirs, there, counts[1])
    plan = kvr.plan(local, remote, direction="read")
    request = kvr.Request(
        tokens=(0, period),
        local=[kvr.Blocks(list(range(counts[0])), 0)],
        remote=[kvr.Blocks(list(range(counts[1])), 0)],
    )
    to, origin = (rows.astype(np.int64) for rows in plan.lists(request))
    strides = [segment.page_stride for segment in here.segments] + [segment.offset for segment in here.segments]
    unit = math.gcd(8, *(int(np.gcd.reduce(part)) for part in (to[:, 0], to[:, 1], origin[:, 0])), *strides)
    lengths = to[:, 1] // unit
    within = np.arange(lengths.sum(), dtype=np.int64) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    targets = np.repeat(to[:, 0], lengths) + within * unit
    sources = np.repeat(origin[:, 0], lengths) + within * unit
    return Table(
        unit,
        *counts,
        local_tokens,
        remote_tokens,
        _cells(here, there, targets, sources, local_starts, remote_starts, unit),
    )


def _pretend(layout: kvr.RankLayout, layer: kvr.Layer, pages: int) -> tuple[kvr.RankLayout, list[int]]:
    """A rank with this layer alone, its segments one behind the other; and where each begins."""
    size = sum(segment.format.page_bytes for segment in layer.segments) * pages
    region = kvr.Region(base=1 << 20, bytes=size)
    segments, starts, offset = [], [], 0
    for segment in layer.segments:
        segments.append(kvr.Segment(region, segment.format, pages=pages, offset=offset, holds=segment.holds))
        starts.append((1 << 20) + offset)
        offset += segment.format.page_bytes * pages
    alone = kvr.Layer(layer.name, segments, totals=layer.totals or None)
    group = _single(layout.groups[layer.group])
    return kvr.RankLayout(engine=layout.engine, layers=[alone], groups=[group], tp=layout.tp), starts


def _cells(
    here: kvr.Layer,
    there: kvr.Layer,
    targets: Ints,
    sources: Ints,
    local_starts: list[int],
    remote_starts: list[int],
    unit: int,
) -> tuple[Cell, ...]:
    if len(there.segments) != 1:
        raise kvr.IncompatibleLayout(f"layer {there.name}: a peer whose slots are planes cannot be landed")
    segment = np.searchsorted(np.array(local_starts), targets, side="right") - 1
    sizes = np.array([one.format.page_bytes for one in here.segments], dtype=np.int64)
    local, at = np.divmod(targets - np.array(local_starts)[segment], sizes[segment])
    remote, origin = np.divmod(sources - remote_starts[0], there.segments[0].format.page_bytes)
    cells = []
    for which in np.unique(np.stack([segment, local, remote], axis=1), axis=0):
        chosen = (segment == which[0]) & (local == which[1]) & (remote == which[2])
        cells.append(
            Cell(
                int(which[0]),
                int(which[1]),
                int(which[2]),
                torch.from_numpy(at[chosen] // unit),
                torch.from_numpy(origin[chosen] // unit),
            )
        )
    return tuple(cells)
