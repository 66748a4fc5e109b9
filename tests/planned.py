"""Exchanges of the oracle as kvreshard plans them, and memory that its descriptors move bytes between."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

import kvreshard as kvr
from tests.convert import to_rank, to_request
from tests.oracle.engines import EVER, Bytes, Exchange, contents, expected, span
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
        self._computed: dict[tuple[int, int], Bytes] = {}
        self.before = [noise(rank, number) for number, rank in enumerate(exchange.target)]
        self.target = [memory.copy() for memory in self.before]

    def source(self, rank: int, until: int = EVER) -> Bytes:
        """A source rank's memory when it has computed the tokens before `until`: noise where nothing is yet."""
        if (rank, until) not in self._computed:
            whole, lists = self.exchange.source[rank], self.exchange.source_blocks[rank]
            memory = noise(whole, 1000 + rank)
            for number, group in enumerate(whole.groups):
                # A state of several tokens is there with the last of them, a group of states when all tokens are.
                scale = group.tokens_per_state
                computed = math.floor(until / scale) * scale if group.kind == "tokens" else until
                if group.kind == "state" and until < self.exchange.tokens[1]:
                    continue
                layers = tuple(layer for layer in whole.layers if layer.group == number)
                of_group = dataclasses.replace(whole, layers=layers)
                at, values = contents(of_group, lists, (0, math.floor(computed)))
                memory[at - span(whole)[0]] = values
            self._computed[rank, until] = memory
        return self._computed[rank, until]

    def move(self, places: tuple[int, int], rows: tuple[Ints, Ints], until: int = EVER) -> Ints:
        """Copies rows while the source has computed the tokens before `until`; returns the target addresses."""
        target, source = places
        there, here = every_byte(rows[1]), every_byte(rows[0])
        assert len(np.unique(here)) == len(here), "a byte is written twice over one edge"
        start = span(self.exchange.target[target])[0]
        values = self.source(source, until)[there - span(self.exchange.source[source])[0]]
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
