"""Exchanges of the oracle as kvreshard plans them, and memory that its descriptors move bytes between."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

import kvreshard as kvr
from tests.convert import to_rank, to_request
from tests.oracle.engines import EVER, Bytes, Exchange, expected, filled, span
from tests.oracle.model import Rank, Request
from tests.oracle.notation import Ints

Direction = Literal["read", "write"]


class Engines:
    """Both engines of an exchange and the route between them; whoever issues is local."""

    def __init__(self, exchange: Exchange, direction: Direction) -> None:
        self.exchange = exchange
        self.direction = direction
        self.target = [to_rank(rank, "target") for rank in exchange.target]
        self.source = [to_rank(rank, "source") for rank in exchange.source]
        sides = kvr.Engine(self.target), kvr.Engine(self.source)
        local, remote = sides if direction == "read" else sides[::-1]
        self.route = kvr.route(local=local, remote=remote, direction=direction)

    def places(self, edge: kvr.Edge) -> tuple[int, int]:
        """The target and the source rank of an edge."""
        return (edge.local, edge.remote) if self.direction == "read" else (edge.remote, edge.local)

    def plan(self, edge: kvr.Edge, layers: list[str] | None = None) -> kvr.Plan:
        target, source = self.places(edge)
        sides = self.target[target], self.source[source]
        local, remote = sides if self.direction == "read" else sides[::-1]
        return kvr.plan(local, remote, edge=edge, layers=layers)

    def request(self, edge: kvr.Edge, tokens: tuple[int, int] | None = None, *, more: bool = False) -> kvr.Request:
        asked = self.exchange.request(*self.places(edge), tokens)
        if self.direction == "write":
            asked = Request(asked.tokens, asked.remote, asked.local)
        return to_request(asked, more=more)

    def lists(self, edge: kvr.Edge, plan: kvr.Plan, request: kvr.Request) -> tuple[Ints, Ints]:
        """Target and source rows of the exact lists of all memory kinds, sorted by target address."""
        rows = [plan.lists(request, part=part) for part in range(len(plan.parts))]
        return self._sorted(rows)

    def rows(self, edge: kvr.Edge, plan: kvr.Plan, request: kvr.Request) -> tuple[Ints, Ints]:
        """As `lists`, by prepared rows and ids."""
        found = []
        for part in range(len(plan.parts)):
            local, remote = plan.ids(request, part=part)
            found.append((plan.local_flat(part=part)[local], plan.remote_flat(part=part)[remote]))
        return self._sorted(found)

    def _sorted(self, rows: list[tuple[NDArray[np.uint64], NDArray[np.uint64]]]) -> tuple[Ints, Ints]:
        if not rows:
            return np.zeros((0, 3), np.int64), np.zeros((0, 3), np.int64)
        local, remote = (np.concatenate(side).astype(np.int64) for side in zip(*rows, strict=True))
        assert (local[:, 1] == remote[:, 1]).all()
        target, source = (local, remote) if self.direction == "read" else (remote, local)
        order = np.argsort(target[:, 0])
        return target[order], source[order]

    def zero(self, edge: kvr.Edge, plan: kvr.Plan, request: kvr.Request) -> Ints:
        """Every address to clear."""
        found = [every_byte(plan.zero(request, memory=kind).astype(np.int64)) for kind in self._kinds(edge)]
        return np.concatenate([np.zeros(0, np.int64), *found])

    def _kinds(self, edge: kvr.Edge) -> list[Literal["DRAM", "VRAM"]]:
        return sorted({region.memory for region in self.target[self.places(edge)[0]].regions})


class Memories:
    """The memory of all ranks of an exchange, filled; targets change as bytes move."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.source = [
            filled(rank, blocks, (0, EVER), 1000 + number)
            for number, (rank, blocks) in enumerate(zip(exchange.source, exchange.source_blocks, strict=True))
        ]
        self.before = [noise(rank, number) for number, rank in enumerate(exchange.target)]
        self.target = [memory.copy() for memory in self.before]

    def move(self, places: tuple[int, int], rows: tuple[Ints, Ints]) -> Ints:
        """Copies rows; returns the target addresses."""
        target, source = places
        there, here = every_byte(rows[1]), every_byte(rows[0])
        assert len(np.unique(here)) == len(here), "a byte is written twice over one edge"
        start = span(self.exchange.target[target])[0]
        values = self.source[source][there - span(self.exchange.source[source])[0]]
        self.target[target][here - start] = values
        return here

    def clear(self, target: int, addresses: Ints) -> None:
        self.target[target][addresses - span(self.exchange.target[target])[0]] = 0

    def check(self) -> None:
        for number, memory in enumerate(self.target):
            wanted = expected(self.exchange, number, self.before[number])
            assert np.array_equal(memory, wanted), f"target rank {number}"


def noise(rank: Rank, seed: int) -> Bytes:
    """A rank's memory before anything was written, no byte 0."""
    start, end = span(rank)
    return np.random.default_rng(seed).integers(1, 256, end - start, dtype=np.uint8)


def every_byte(rows: Ints) -> Ints:
    """The address of each byte of rows [address, bytes, ...], in their order."""
    spans = [np.arange(row[0], row[0] + row[1], dtype=np.int64) for row in rows]
    return np.concatenate([np.zeros(0, np.int64), *spans])
