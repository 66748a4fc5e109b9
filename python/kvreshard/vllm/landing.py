"""Landing: whole pages are read as the peer built them, and rearranged into ours by the receiver.

Where two interiors share only short runs, a descriptor for each would take longer than the bytes. So the peer's pages
are read whole into staging memory and scattered from there. Which byte goes where is the planner's: one period of both
sides' pages is planned exactly, and its runs become index tables that serve every page.

    peer's pages --READ, whole--> staging (peer's format) --scatter by table--> our pages

The scatter reads staging and writes pages that the request owns, so doing it twice does no harm.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import kvreshard as kvr
from kvreshard.vllm.staging import Buffer
from kvreshard.vllm.tables import Cell, Table, build, likeness, single

# Pages scattered at a time: bounds the memory of the index arithmetic.
_BATCH = 16


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
            key = likeness(self._mine[layer.name], layer, mine, theirs)
            if key not in tables:
                tables[key] = build(mine, theirs, self._mine[layer.name], layer)
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
            groups=[single(group) for group in self.theirs.groups],
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
            needed = sorted(number for number in sources if self._wanted(table, number, targets, start, end))
            for at in range(0, len(needed), self.pages):
                numbers = needed[at : at + self.pages]
                found.append(Chunk(self, here, numbers, [sources[n] for n in numbers], targets, start, end))
        return found

    def _wanted(self, table: Table, number: int, targets: dict[int, int], start: int, end: int) -> bool:
        first = number * table.remote_tokens
        if first >= end or first + table.remote_tokens <= start:
            return False
        turn, within = divmod(number, table.remote_pages)
        return any(cell.remote == within and turn * table.local_pages + cell.local in targets for cell in table.cells)

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
        flat = flat.set_(caches[name].untyped_storage())
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


def _regrouped(layout: kvr.RankLayout, layers: list[kvr.Layer]) -> kvr.RankLayout:
    return kvr.RankLayout(
        engine=layout.engine,
        layers=layers,
        groups=[single(group) for group in layout.groups],
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
