"""The landing ring: whole spans of a peer's pages are read into its slots, and scattered from there.

Slots are shared by all requests. Who may take the next one:

- of the requests that wait for one, that which holds fewest: a small request waits for one slot of a large one at most;
- and no peer takes the last slots while others that have requests hold none: one that hangs leaves room for the others.

A read cannot be stopped. When its request has failed, the slot stays with it until it ends; the pages, which it never
touches, are free at once.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

import kvreshard as kvr
from kvreshard.kernels import Mover, mover

from .agent import Agent
from .errors import NixlError, PeerLost
from .leg import Stage
from .memory import Memory
from .peer import Peer
from .staging import Area

log = logging.getLogger(__name__)

MAX_LANDERS = 256
"""Plans whose kernels are kept."""


@dataclass
class Read:
    """A chunk on its way into a slot."""

    slot: int
    stage: Stage
    chunk: kvr.LandedChunk


class Taker(Protocol):
    """A request's part that takes slots."""

    peer: Peer

    @property
    def held(self) -> int:
        """Slots that it has."""
        ...

    @property
    def waiting(self) -> bool:
        """Whether it has use for another."""
        ...


@dataclass(frozen=True)
class Lander:
    """How the pages of one plan are landed."""

    landed: kvr.Landed
    mover: Mover


class Landing:
    """The slots of one connector. Not safe across threads by itself; the connector's lock covers it."""

    def __init__(self, agent: Agent, memory: Memory) -> None:
        self.area: Area | None = None
        self._agent = agent
        self._memory = memory
        self._free: list[int] = []
        self._takers: list[Taker] = []
        self._left: list[tuple[Peer, Read]] = []
        self._landers: dict[tuple[str, int], Lander] = {}

    def open(self, area: Area | None) -> None:
        """Begins with the slots of an area, all free. Nothing may be in flight."""
        self.area = area
        self._free = list(range(area.size.slots)) if area is not None else []
        self._landers.clear()

    @property
    def chunk(self) -> int:
        """Bytes of a chunk; 0 where there is no ring."""
        return self.area.size.slot_bytes if self.area is not None else 0

    @property
    def free(self) -> int:
        """Slots that nobody has."""
        return len(self._free)

    def lander(self, plan: kvr.Plan, transport: str | kvr.Transport) -> Lander:
        """Tiles and kernels of a plan; made on first use. Holes that are cheaper than a descriptor are read along.

        Raises:
            kvreshard.LayoutError: The plan writes.
        """
        hole = (kvr.Transport.named(transport) if isinstance(transport, str) else transport).hole
        key = (plan.digest, hole)
        if key not in self._landers:
            if len(self._landers) >= MAX_LANDERS:
                # Peers that come back have other addresses, and so other plans.
                self._landers.clear()
            landed = plan.landed(hole=hole)
            self._landers[key] = Lander(landed, mover(landed.tiles, self._memory.spans(plan.local)))
        return self._landers[key]

    # Slots

    def enter(self, taker: Taker) -> None:
        """Takes note of a part that will take slots."""
        self._takers.append(taker)

    def leave(self, taker: Taker) -> None:
        """It is over, and holds none."""
        if taker in self._takers:
            self._takers.remove(taker)

    def take(self, taker: Taker) -> int | None:
        """A slot, if there is one and it is the taker's turn."""
        waiting = [other for other in self._takers if other.waiting and other.peer.connected]
        if not self._free or any(other.held < taker.held for other in waiting):
            return None
        if self._held_by(taker.peer.name):
            without = sum(not self._held_by(name) for name in {other.peer.name for other in waiting})
            if len(self._free) - 1 < max(without, 1):
                return None
        return self._free.pop()

    def give(self, slot: int) -> None:
        """Takes a slot back."""
        self._free.append(slot)

    def _held_by(self, peer: str) -> int:
        takers = sum(taker.held for taker in self._takers if taker.peer.name == peer)
        return takers + sum(other.name == peer for other, _ in self._left)

    # Reads that outlive their request

    def outlive(self, peer: Peer, read: Read) -> None:
        """Keeps the slot of a read until the read has ended."""
        self._left.append((peer, read))

    def progress(self) -> None:
        """Frees the slots of such reads that have ended."""
        for peer, read in list(self._left):
            try:
                over = self._agent.done(read.stage.handle, peer.name)
            except NixlError as error:
                over = isinstance(error, PeerLost)
            if over:
                self._left.remove((peer, read))
                self._agent.release(read.stage.handle)
                self.give(read.slot)

    def busy_with(self, peer: Peer | None) -> bool:
        """Whether reads from `peer`, or any, still write into slots for requests that are over."""
        return any(peer is None or other is peer for other, _ in self._left)

    def abandon(self) -> list[tuple[Peer, Stage]]:
        """Gives up such reads; returns their handles."""
        left, self._left = self._left, []
        return [(peer, read.stage) for peer, read in left]
