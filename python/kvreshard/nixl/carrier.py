"""Slots in motion: gathers, scatters, writes and reads that the machines of the ring protocol ask for, on NIXL.

Who owns a slot, and when it may be used again, the machines know (docs/protocol.md). They are told of every end: of a
kernel when it has ended, of a transfer when nothing moves any more, which of a failed one is known only when the
connection has ended as well.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

import kvreshard as kvr

from .agent import Agent
from .errors import NixlError, NotRegistered, PeerLost, TransferError
from .leg import Stage
from .parcels import Parcel, Role
from .peer import Peer
from .staging import Area, Fence

log = logging.getLogger(__name__)

Actions = list[kvr.RingAction]

RESEND_TICKS = 20
"""Ticks after which the machines say again what was not answered."""

SEATS = 8
"""Peers that a ring has room for, if it has as many slots. Each can count on its share of them."""

# Rings that a peer may still touch when they are given up.
_outlived: list[object] = []


class Desk(Protocol):
    """Who knows peers and parcels."""

    def peer(self, number: int) -> Peer | None:
        """The connected peer of that number."""

    def parcel(self, number: int, name: str, role: Role) -> Parcel | None:
        """A parcel with it."""

    def report(self, parcel: Parcel, action: kvr.RingAction) -> None:
        """What became of a parcel."""


@dataclass
class _Flight:
    """A NIXL transfer of a slot."""

    role: Role
    slot: int
    peer: Peer
    stage: Stage


class Carrier:
    """The machines of one connector, and their slots."""

    def __init__(self, agent: Agent, areas: dict[Role, Area], lost: Callable[[Peer, NixlError], None]) -> None:
        epoch = time.time_ns() // 1000
        receive, send = areas["receiver"].size, areas["sender"].size
        self.receiver = kvr.RingReceiver(
            slots=receive.slots,
            slot_bytes=receive.slot_bytes,
            epoch=epoch,
            minimum=max(1, receive.slots // SEATS),
            resend=RESEND_TICKS,
        )
        self.sender = kvr.RingSender(
            slots=send.slots,
            slot_bytes=send.slot_bytes,
            epoch=epoch,
            minimum=max(1, send.slots // SEATS),
            resend=RESEND_TICKS,
        )
        self.areas = areas
        self.desk: Desk | None = None
        self._agent, self._lost = agent, lost
        self._unsent: deque[kvr.RingAction] = deque()
        self._todo: deque[tuple[Role, kvr.RingAction]] = deque()
        self._flights: list[_Flight] = []
        self._kernels: list[tuple[Role, int, Fence]] = []
        self._loaded: dict[int, int] = {}

    # Slots

    def keep(self) -> None:
        """The areas are given up. What a peer may still touch of them is kept for the rest of the process."""
        machines: list[tuple[Role, kvr.RingReceiver | kvr.RingSender]] = [
            ("receiver", self.receiver),
            ("sender", self.sender),
        ]
        for role, machine in machines:
            states = [machine.slot(slot) for slot in range(self.areas[role].size.slots)]
            if any(state is not None and state[0] in ("granted", "ready", "quarantined") for state in states):
                _outlived.append(self.areas[role].buffer)

    @property
    def busy(self) -> bool:
        """Whether any kernel or transfer is under way."""
        return bool(self._kernels or self._flights)

    def busy_with(self, peer: Peer | None) -> bool:
        """Whether transfers of slots with `peer`, or any, are under way."""
        return any(peer is None or flight.peer is peer for flight in self._flights)

    def abandon(self) -> list[tuple[Peer, Stage]]:
        """Waits for kernels; gives up transfers, and returns them."""
        for _, _, fence in self._kernels:
            fence.wait()
        self._kernels.clear()
        left, self._flights = self._flights, []
        return [(flight.peer, flight.stage) for flight in left]

    # Progress

    def look(self, *, every: bool = True) -> None:
        """Looks which kernels and transfers have ended; if not at `every` transfer, then no further than the first with
        a peer that has not. What ends out of order is seen later: to ask NIXL of all, message by message, costs more.
        """
        running: set[Role] = set()
        for role, slot, fence in list(self._kernels):
            # Those of a stream end in the order in which they began.
            if role in running or not fence.over:
                running.add(role)
                continue
            self._kernels.remove((role, slot, fence))
            self._kernel_ended(role, slot, True)
        waiting: set[tuple[Role, str]] = set()
        for flight in list(self._flights):
            key = (flight.role, flight.peer.name)
            if key in waiting and not every:
                continue
            ok = True
            try:
                if not self._agent.done(flight.stage.handle, flight.peer.name):
                    waiting.add(key)
                    continue
            except NixlError as error:
                if not isinstance(error, PeerLost):
                    continue
                ok = False
                self._lost(flight.peer, error)
            self._flights.remove(flight)
            self._arrived(flight, ok)

    def add(self, role: Role, actions: Actions) -> None:
        """Takes note of what a machine asks for."""
        for action in actions:
            if action.kind == "send":
                self._unsent.append(action)
            else:
                self._todo.append((role, action))

    def run(self) -> None:
        """Does it, and what follows from it; messages first, since peers wait for them and launches take time."""
        while self._unsent or self._todo:
            if self._unsent:
                self._send(self._unsent.popleft())
                continue
            role, action = self._todo.popleft()
            match action.kind:
                case "read" | "write":
                    self._move(role, action)
                case "gather" | "scatter":
                    self._kernel(role, action)
                case _:
                    parcel = self._parcel(role, action)
                    if parcel is not None and self.desk is not None:
                        self.desk.report(parcel, action)

    def _parcel(self, role: Role, action: kvr.RingAction) -> Parcel | None:
        return self.desk.parcel(action.peer, action.request or "", role) if self.desk is not None else None

    def _peer(self, action: kvr.RingAction) -> Peer | None:
        return self.desk.peer(action.peer) if self.desk is not None else None

    def _send(self, action: kvr.RingAction) -> None:
        peer = self._peer(action)
        if peer is None or action.frame is None:
            return
        try:
            self._agent.notify(peer.name, action.frame)
        except PeerLost as error:
            self._lost(peer, error)
        except NixlError as error:
            log.warning("peer %s: %s", peer.name, error)

    def _kernel(self, role: Role, action: kvr.RingAction) -> None:
        slot, parcel = action.slot or 0, self._parcel(role, action)
        if parcel is None:
            self._kernel_ended(role, slot, False)
            return
        area, chunk = self.areas[role], parcel.chunks[action.sequence or 0]
        parcel.began = True
        if role == "sender":
            self._loaded[slot] = chunk.bytes
        try:
            fence = area.move(parcel.mover, chunk, slot, gather=role == "sender", after=parcel.after)
        except Exception as error:  # Whatever a kernel raises fails this request, and not whoever polls.
            parcel.error = TransferError(f"request {parcel.id}: {error}", request=parcel.id)
            self._kernel_ended(role, slot, False)
            return
        if fence.over:
            self._kernel_ended(role, slot, True)
        else:
            self._kernels.append((role, slot, fence))

    def _kernel_ended(self, role: Role, slot: int, ok: bool) -> None:
        self.add(role, self.receiver.scattered(slot, ok) if role == "receiver" else self.sender.gathered(slot, ok))

    def _move(self, role: Role, action: kvr.RingAction) -> None:
        slot, peer, remote = action.slot or 0, self._peer(action), action.remote_slot or 0
        rings = peer.rings if peer is not None else None
        if peer is None or rings is None:
            self._moved(role, slot, False)
            return
        ring = rings.send if role == "receiver" else rings.receive
        if remote >= ring.slots:
            self._moved(role, slot, False)
            return
        # A chunk may be shorter than those that the machines count in; a reader does not know by how much.
        bytes = self._loaded[slot] if role == "sender" else action.bytes or 0
        area = self.areas[role]
        ours = np.array([[area.slot(slot)[0], bytes, area.region.device]], np.uint64)
        theirs = np.array([[ring.address + remote * ring.slot_bytes, bytes, ring.device]], np.uint64)
        flight = None
        try:
            handle = self._agent.make_exact(
                "READ" if role == "receiver" else "WRITE",
                peer.name,
                (ours, area.region.memory),
                (theirs, ring.memory),
                b"",
            )
            flight = _Flight(role, slot, peer, Stage(handle, False, 1, bytes))
            done = self._agent.post(handle, peer.name)
        except NixlError as error:
            if isinstance(error, PeerLost):
                self._lost(peer, error)
            if flight is None:
                self._moved(role, slot, False)
            elif isinstance(error, (PeerLost, NotRegistered)):
                self._arrived(flight, False)
            else:
                # It may move all the same: it is over when NIXL says so.
                self._flights.append(flight)
            return
        if done:
            self._arrived(flight, True)
        else:
            self._flights.append(flight)

    def _arrived(self, flight: _Flight, ok: bool) -> None:
        try:
            self._agent.release(flight.stage.handle)
        except NixlError as error:
            log.warning("peer %s: %s", flight.peer.name, error)
        self._moved(flight.role, flight.slot, ok)

    def _moved(self, role: Role, slot: int, ok: bool) -> None:
        self.add(role, self.receiver.read_ended(slot, ok) if role == "receiver" else self.sender.write_ended(slot, ok))
