"""Engines that transfers are planned for: who exchanges what with whom, and the handles prepared for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import kvreshard as kvr
from kvreshard.vllm.landing import Landing
from kvreshard.vllm.requests import Shape

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
        landing: What lands the peer's pages here, where they are not read in place.
    """

    agent: str
    plan: kvr.Plan | None = None
    handles: list[tuple[int, int]] = field(default_factory=list)
    landing: Landing | None = None


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
        clear: Whether bytes that no transfer fills must be cleared: its pages end where ours do not.
    """

    engine_id: str
    route: kvr.Route
    rank: int
    size: int
    tagged: bool
    mine: Shape
    theirs: Shape
    clear: bool = False
    layouts: dict[int, kvr.RankLayout] = field(default_factory=dict)
    links: dict[int, Link] = field(default_factory=dict)

    @property
    def edge_ranks(self) -> list[int]:
        """The peer's ranks with which bytes are exchanged, ascending."""
        return sorted({edge.remote for edge in self.route.edges_of(local=self.rank)})

    @property
    def notify_ranks(self) -> list[int]:
        """The peer's ranks that only hear of finished requests, ascending."""
        return sorted({remote for local, remote in self.route.notify if local == self.rank})

    @property
    def ranks(self) -> list[int]:
        """All ranks to meet: those with bytes first."""
        bytes_first = self.edge_ranks
        return bytes_first + [rank for rank in self.notify_ranks if rank not in bytes_first]


def meet(mine: kvr.RankLayout, theirs: kvr.RankLayout, direction: Direction, *, tagged: bool) -> Peer:
    """The peer that `theirs` is a rank of.

    Raises:
        kvreshard.Error: The two engines cannot exchange their caches.
    """
    local, remote = kvr.Engine.uniform(_in_pages(mine)), kvr.Engine.uniform(_in_pages(theirs))
    route = kvr.route(local=local, remote=remote, direction=direction)
    return Peer(
        engine_id=theirs.engine,
        route=route,
        rank=mine.tp[0],
        size=theirs.tp[1],
        tagged=tagged,
        mine=Shape.of(mine),
        theirs=Shape.of(theirs),
        clear=_page_states(mine) != _page_states(theirs),
    )


def plan_of(peer: Peer, mine: kvr.RankLayout, theirs: kvr.RankLayout, direction: Direction) -> kvr.Plan | None:
    """The plan of the edge between two ranks; `None` where there is none."""
    edges = peer.route.edges_of(local=peer.rank, remote=theirs.tp[0])
    return kvr.plan(mine, theirs, edge=edges[0], direction=direction) if edges else None


def _in_pages(layout: kvr.RankLayout) -> kvr.RankLayout:
    """The same shares with the planes of each layer as the heads of one page: what other ranks hold follows from a page
    by rule, from planes it does not. Good for routes alone; no such memory exists.
    """
    layers = []
    for layer in layout.layers:
        first = layer.segments[0]
        if "h" in first.format.extents or "h" not in layer.totals:
            layers.append(layer)
            continue
        held = [segment.holds["h"] for segment in layer.segments]
        interval = (min(low for low, _ in held), max(high for _, high in held))
        extents = {**first.format.extents, "h": interval[1] - interval[0]}
        form = kvr.PageFormat(f"h {first.format.notation}", extents=extents, types=first.format.types)
        region = kvr.Region(base=form.page_bytes, bytes=form.page_bytes, memory=first.region.memory)
        page = kvr.Segment(region, form, pages=1, holds={"h": interval})
        layers.append(kvr.Layer(layer.name, [page], totals=layer.totals, group=layer.group))
    return kvr.RankLayout(
        engine=layout.engine,
        layers=layers,
        groups=layout.groups,
        generation=layout.generation,
        tp=layout.tp,
        pp=layout.pp,
        cp=layout.cp,
        cp_interleave=layout.cp_interleave,
    )


def _page_states(layout: kvr.RankLayout) -> dict[str, int]:
    return {layer.name: layer.segments[0].format.extents.get("n", 1) for layer in layout.layers}
