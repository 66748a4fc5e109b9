"""A connected peer: its layout, the plans with it, and what NIXL holds prepared for them."""

from __future__ import annotations

import logging
from typing import Literal

import msgspec

import kvreshard as kvr

from . import control
from .agent import Agent, Prepared
from .control import Takes
from .errors import NixlError, NotConnected, PeerLost
from .events import Direction
from .metrics import Metrics
from .wire import Metadata, Rings

log = logging.getLogger(__name__)

Layers = tuple[str, ...]
"""Names of the layers that a request is narrowed to."""

MAX_PACKED = 64
"""Plans of parcels that are remembered."""

_encode = msgspec.msgpack.encode

State = Literal["connected", "lost", "closed"]


class Peer:
    """One remote rank, as returned by `Connector.connect`.

    Good until the peer is lost, connected anew, or the connector publishes another layout; after that every use raises
    `NotConnected`, and `connect` gives a new one.
    """

    def __init__(
        self,
        agent: Agent,
        local: kvr.RankLayout,
        metadata: Metadata,
        *,
        added: bool,
        senders: int,
        transport: str | kvr.Transport,
    ) -> None:
        self._agent = agent
        self._local = local
        self._metadata = metadata
        self._added = added
        self._edges: dict[Direction, kvr.Edge | None] = {}
        self._plans: dict[tuple[Direction, Layers | None], kvr.Plan] = {}
        self._prepared: dict[tuple[str, int], tuple[Prepared, Prepared]] = {}
        self._packed: dict[bytes, kvr.Plan] = {}
        self._by_digest: dict[tuple[str, str], kvr.Plan] = {}
        self._takes: dict[Direction, Takes | None] = {}
        self.senders = senders
        self.state: State = "connected"
        self.introduced = False
        """Whether it was told who this rank is."""
        self.metrics = Metrics()
        """What has been done with this peer."""
        self.transport: str | kvr.Transport = transport
        """What the cost model takes the connection for: the name of a measured transport, or a calibrated one."""
        self.here = frozenset(region.memory for region in local.regions)
        """Kinds of memory that this rank's pages are in."""
        self.there = frozenset(region.memory for region in metadata.layout.regions)
        """Kinds of memory that the peer's pages are in."""
        self.memory = self.here | self.there
        """Kinds of memory that bytes move between."""
        self.slow: dict[Direction, int] = {}
        """Slow transfers in a row, as far as they are counted (`path.watch`)."""

    @property
    def name(self) -> str:
        """The peer's NIXL agent name."""
        return self._metadata.name

    @property
    def layout(self) -> kvr.RankLayout:
        """What the peer published."""
        return self._metadata.layout

    @property
    def generation(self) -> int:
        """The peer's registration: what was prepared for another one is void."""
        return self._metadata.generation

    @property
    def understands_notices(self) -> bool:
        """Whether the peer announced that it reads our notices."""
        return self._metadata.notices > 0

    @property
    def packs(self) -> int:
        """The newest version of the packed protocol that the peer announced; 0: none."""
        return self._metadata.rings.version if self._metadata.rings is not None else 0

    @property
    def rings(self) -> Rings | None:
        """The peer's memory for packed transfers."""
        return self._metadata.rings

    @property
    def understands_control(self) -> bool:
        """Whether the peer announced that it reads our control messages."""
        return self._metadata.notices >= control.VERSION

    @property
    def answers_contacts(self) -> bool:
        """Whether the peer announced that it answers the first contact of a push."""
        return self._metadata.notices >= control.CONTACTS

    @property
    def digest(self) -> str:
        """Identifies the metadata that this connection was made from."""
        return self._metadata.digest

    def registered_as(self, told: Metadata) -> bool:
        """Whether that is the registration which this connection was made to, in all that was said of it."""
        mine = self._metadata
        return (mine.generation, mine.rings, mine.layout) == (told.generation, told.rings, told.layout)

    @property
    def connected(self) -> bool:
        """Whether transfers can be issued."""
        return self.state == "connected"

    def plan(self, direction: Direction, layers: Layers | None = None) -> kvr.Plan:
        """The plan with this peer, of all layers or of some; made on first use unless `connect` has made it."""
        key = (direction, layers)
        if key not in self._plans:
            self._plans[key] = kvr.plan(
                self._local, self.layout, edge=self._edges.get(direction), direction=direction, layers=layers
            )
        return self._plans[key]

    def set_plan(self, direction: Direction, plan: kvr.Plan, edge: kvr.Edge | None) -> None:
        """Puts a plan, and the route's edge that it is of, in place of what was planned before."""
        self._edges[direction] = edge
        self._takes[direction] = None if edge is None else [*edge.takes]
        self._plans = {key: known for key, known in self._plans.items() if key[0] != direction}
        self._plans[direction, None] = plan

    def takes(self, direction: Direction) -> Takes | None:
        """The route's edge that is planned by, where there is one, as peers are told."""
        return self._takes.get(direction)

    def packed_plan(
        self,
        role: Literal["receiver", "sender"],
        layers: Layers | None,
        takes: Takes | None,
        digest: str | None = None,
    ) -> kvr.Plan:
        """The receiver's read between this rank, being `role`, and the peer: what both sides pack by. One of the
        `digest` that was asked for before is found by it.
        """
        known = self._by_digest.get((role, digest)) if digest is not None else None
        if known is not None:
            return known
        key = _encode((role, layers, takes))
        if key not in self._packed:
            if len(self._packed) >= MAX_PACKED:
                self._packed.clear()
                self._by_digest.clear()
            ranks = (self._local, self.layout) if role == "receiver" else (self.layout, self._local)
            edge = None if takes is None else kvr.Edge.told("read", takes)
            plan = kvr.plan(*ranks, edge=edge, direction="read", layers=layers)
            self._packed[key] = self._by_digest[role, plan.digest] = plan
        return self._packed[key]

    def require_connected(self, request: str) -> None:
        """Raises `NotConnected` unless transfers can be issued."""
        if not self.connected:
            why = "was lost" if self.state == "lost" else "is closed or was connected anew"
            raise NotConnected(
                f"peer {self.name} {why}",
                peer=self.name,
                request=request,
                remedy="connect() with the peer's current metadata",
            )

    def prepared(self, plan: kvr.Plan, part: int) -> tuple[Prepared, Prepared]:
        """NIXL's prepared rows of one part of a plan with this peer, local and remote; made on first use."""
        key = (plan.digest, part)
        if key not in self._prepared:
            ours, theirs = plan.parts[part]
            local = self._agent.prepare(None, plan.local_rows(part=part), ours)
            try:
                remote = self._agent.prepare(self.name, plan.remote_rows(part=part), theirs)
            except NixlError:
                self._agent.release_prepared(local)
                raise
            self._prepared[key] = (local, remote)
        return self._prepared[key]

    def close(self, state: State) -> None:
        """Releases what is prepared and lets go of the peer's agent, unless the agent's owner added it.

        Only for a peer with nothing in flight: removal stops no transfer and takes away the means to see one end.
        """
        self.state = state
        prepared, self._prepared = self._prepared, {}
        for sides in prepared.values():
            for side in sides:
                try:
                    self._agent.release_prepared(side)
                except NixlError as error:
                    log.warning("peer %s: %s", self.name, error)
        if self._added:
            self._added = False
            try:
                if state == "lost":
                    self._agent.remove(self.name)
                else:
                    self._agent.park(self.name)
            except (NixlError, PeerLost) as error:
                log.warning("peer %s: %s", self.name, error)

    def __repr__(self) -> str:
        return f"Peer({self.name!r}, {self.state}, engine={self.layout.engine!r}, generation={self.generation})"
