"""Engines that transfers are planned for: who exchanges what with whom, and the handles prepared for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import kvreshard as kvr
from kvreshard.vllm.landing import Landing
from kvreshard.vllm.pairs import Pair
from kvreshard.vllm.requests import Outline, Shape
from kvreshard.vllm.shaping import Shaping

Direction = Literal["read", "write"]


@dataclass
class Local:
    """Lists of this rank's memory prepared for one plan, shared by the peers whose plans have its digest."""

    handles: list[int]
    users: int = 0


@dataclass
class Link:
    """What this rank and one rank of a peer exchange.

    Attributes:
        agent: The NIXL agent of the peer's rank.
        plan: How bytes move; `None` where only news is exchanged.
        handles: The prepared lists, `(local, remote)`, of each part of the plan.
        prepared: Whether the local ones are counted as used.
        staged: How pages are rearranged on the way, where they are not moved run by run: the peer's after they were
            read, or ours before they are written.
    """

    agent: str
    plan: kvr.Plan | None = None
    handles: list[tuple[int, int]] = field(default_factory=list)
    prepared: bool = False
    staged: Landing | Shaping | None = None


@dataclass
class Peer:
    """One engine.

    Attributes:
        engine_id: Its id.
        route: Who exchanges what; computed alike on both sides.
        rank: This rank's index.
        size: The peer's ranks.
        layouts: The layouts of the peer's ranks that were met.
        links: By the peer's rank.
        tagged: Whether the peer announced that it understands us.
        mine: What our groups say of block lists.
        theirs: What the peer's say.
    """

    engine_id: str
    route: kvr.Route
    rank: int
    size: int
    tagged: bool
    mine: Shape
    theirs: Shape
    layouts: dict[int, kvr.RankLayout] = field(default_factory=dict)
    links: dict[int, Link] = field(default_factory=dict)

    @cached_property
    def edge_ranks(self) -> list[int]:
        """The peer's ranks with which bytes are exchanged, ascending."""
        return sorted({edge.remote for edge in self.route.edges_of(local=self.rank)})

    @cached_property
    def notify_ranks(self) -> list[int]:
        """The peer's ranks that only hear of finished requests, ascending."""
        return sorted({remote for local, remote in self.route.notify if local == self.rank})

    @cached_property
    def ranks(self) -> list[int]:
        """All ranks to meet: those with bytes first."""
        bytes_first = self.edge_ranks
        return bytes_first + [rank for rank in self.notify_ranks if rank not in bytes_first]


@dataclass(frozen=True)
class Judged:
    """A rank of an engine that is planned for.

    Attributes:
        peer: The engine.
        mine: What this rank holds of the layers that the peer's rank holds.
        theirs: What the peer's rank holds of the layers that this one holds.
    """

    peer: Peer
    mine: kvr.RankLayout
    theirs: kvr.RankLayout


def share(layout: kvr.RankLayout, names: set[str]) -> kvr.RankLayout:
    """What a layout has of the named layers: of those of a pipeline stage."""
    layers = [layer for layer in layout.layers if layer.name in names]
    if len(layers) == len(layout.layers):
        return layout
    return kvr.RankLayout(
        engine=layout.engine,
        layers=layers,
        groups=layout.groups,
        generation=layout.generation,
        tp=layout.tp,
        cp=layout.cp,
        cp_interleave=layout.cp_interleave,
    )


def meet(mine: Outline, theirs: kvr.RankLayout, direction: Direction, *, tagged: bool) -> Peer:
    """The peer that `theirs` is a rank of.

    Raises:
        kvreshard.Error: The two engines cannot exchange their caches.
    """
    other = Outline.of(theirs)
    return Peer(
        engine_id=theirs.engine,
        route=kvr.route(local=mine.engine, remote=other.engine, direction=direction),
        rank=mine.layout.tp[0],
        size=theirs.tp[1],
        tagged=tagged,
        mine=mine.shape,
        theirs=other.shape,
    )


def pair_of(peer: Peer, mine: kvr.RankLayout, theirs: kvr.RankLayout, direction: Direction) -> Pair | None:
    """This rank and one of the peer's, planned for; `None` where they exchange nothing.

    Raises:
        kvreshard.Error: What they hold does not fit.
    """
    edges = peer.route.edges_of(local=peer.rank, remote=theirs.tp[0])
    if not edges:
        return None
    return Pair(mine, theirs, edges[0], kvr.plan(mine, theirs, edge=edges[0], direction=direction))
