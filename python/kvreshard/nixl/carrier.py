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

from .agent import Agent, Operation
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


@dataclass(eq=False)
class _Kernel:
    """A gather or scatter of a slot."""

    role: Role
    slot: int
    parcel: Parcel
    fence: Fence


class Carrier:
    """The machines of one connector, and their slots."""

    def __init__(
        self, agent: Agent, areas: dict[Role, Area], desk: Desk, lost: Callable[[Peer, NixlError], None]
    ) -> None:
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
        self._agent, self._desk, self._lost = agent, desk, lost
        self._unsent: deque[kvr.RingAction] = deque()
        self._todo: deque[tuple[Role, kvr.RingAction]] = deque()
        self._launches: deque[tuple[Role, kvr.RingAction]] = deque()
        self._flights: list[_Flight] = []
        self._kernels: list[_Kernel] = []
        self._ready: dict[int, _Flight] = {}
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
        flights = [*self._flights, *self._ready.values()]
        return any(peer is None or flight.peer is peer for flight in flights)

    def abandon(self) -> list[tuple[Peer, Stage]]:
        """Waits for kernels; gives up transfers, and returns them."""
        for kernel in self._kernels:
            kernel.fence.wait()
        self._kernels.clear()
        for slot in list(self._ready):
            self._discard(slot)
        left, self._flights = self._flights, []
        return [(flight.peer, flight.stage) for flight in left]

    # Progress

    def look(self, *, every: bool) -> None:
        """Looks which kernels and transfers have ended; if not at `every` transfer, then no further than the first with
        a peer that has not. What ends out of order is seen later: to ask NIXL of all, message by message, costs more.
        """
        self._look_at_kernels()
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

    def _look_at_kernels(self) -> None:
        running: set[Role] = set()
        for kernel in list(self._kernels):
            # Those of a stream end in the order in which they began.
            if kernel.role in running or not kernel.fence.over:
                running.add(kernel.role)
                continue
            self._kernels.remove(kernel)
            self._kernel_ended(kernel.role, kernel.slot, self._complete(kernel))

    def add(self, role: Role, actions: Actions) -> None:
        """Takes note of what a machine asks for."""
        for action in actions:
            if action.kind == "send":
                self._unsent.append(action)
            elif action.kind in ("gather", "scatter"):
                self._launches.append((role, action))
            else:
                self._todo.append((role, action))

    def run(self) -> None:
        """Does it, and what follows from it. Messages first, since peers wait for them, and launches last, since they
        take time: what a kernel ends with meanwhile goes before the next.
        """
        while True:
            if self._unsent:
                self._send(self._unsent.popleft())
            elif self._todo:
                self._do(*self._todo.popleft())
            elif self._launches:
                self._kernel(*self._launches.popleft())
                if self._kernels:
                    self._look_at_kernels()
            else:
                return

    def _do(self, role: Role, action: kvr.RingAction) -> None:
        if action.kind in ("read", "write"):
            self._move(role, action)
            return
        parcel = self._parcel(role, action)
        if parcel is not None:
            self._desk.report(parcel, action)

    def _parcel(self, role: Role, action: kvr.RingAction) -> Parcel | None:
        return self._desk.parcel(action.peer, action.request or "", role)

    def _peer(self, action: kvr.RingAction) -> Peer | None:
        return self._desk.peer(action.peer)

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
        except Exception as error:
            self._broke(parcel, str(error))
            self._kernel_ended(role, slot, False)
            return
        kernel = _Kernel(role, slot, parcel, fence)
        if fence.over:
            self._kernel_ended(role, slot, self._complete(kernel))
            return
        self._kernels.append(kernel)
        if action.remote_slot is not None:
            self._prepare(slot, parcel.peer, action.remote_slot)

    def _prepare(self, slot: int, peer: Peer, remote: int) -> None:
        """Makes the write of a slot while it is being gathered, so that only posting it is left."""
        try:
            made = self._made("sender", slot, peer, remote, self._loaded[slot])
        except NixlError:
            # Posting it will say so.
            return
        if made is not None:
            self._ready[slot] = made

    def _discard(self, slot: int) -> None:
        made = self._ready.pop(slot, None)
        if made is not None:
            self._release(made)

    def _complete(self, kernel: _Kernel) -> bool:
        """Whether all is done that a kernel was for; with the last scatter of a write, pages are cleared as well.

        Not before it, since the last page is brought whole; and not after the machine knows of it, since then the
        writer is told that its request has finished.
        """
        parcel = kernel.parcel
        if kernel.role == "sender":
            return True
        parcel.scattered += 1
        if parcel.clear is None or parcel.scattered < len(parcel.chunks) or parcel.state != "open":
            return True
        try:
            parcel.clear()
        except Exception as error:
            self._broke(parcel, f"not all pages were cleared: {error}")
            return False
        return True

    @staticmethod
    def _broke(parcel: Parcel, error: str) -> None:
        """Whatever a kernel or torch raises fails one request, and not whoever polls."""
        parcel.error = TransferError(f"request {parcel.id}: {error}", request=parcel.id)
        if not parcel.ours:
            # Its peer is told only that it failed.
            log.error("request %s of peer %s: %s", parcel.id, parcel.peer.name, error)

    def _kernel_ended(self, role: Role, slot: int, ok: bool) -> None:
        if role == "receiver":
            self.add(role, self.receiver.scattered(slot, ok))
            return
        actions = self.sender.gathered(slot, ok)
        if not any(action.kind == "write" and action.slot == slot for action in actions):
            # Given up meanwhile.
            self._discard(slot)
        self.add(role, actions)

    def _move(self, role: Role, action: kvr.RingAction) -> None:
        slot, peer = action.slot or 0, self._peer(action)
        flight = self._ready.pop(slot, None) if role == "sender" else None
        if flight is not None and flight.peer is not peer:
            self._release(flight)
            flight = None
        if peer is None:
            self._moved(role, slot, False)
            return
        try:
            if flight is None:
                # A chunk may be shorter than those that the machines count in; a reader does not know by how much.
                bytes = self._loaded[slot] if role == "sender" else action.bytes or 0
                flight = self._made(role, slot, peer, action.remote_slot or 0, bytes)
            if flight is None:
                self._moved(role, slot, False)
                return
            done = self._agent.post(flight.stage.handle, peer.name)
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

    def _made(self, role: Role, slot: int, peer: Peer, remote: int, bytes: int) -> _Flight | None:
        """The transfer between a slot and the peer's slot `remote`; `None` where the peer has no such slot."""
        if peer.rings is None:
            return None
        ring = peer.rings.send if role == "receiver" else peer.rings.receive
        if remote >= ring.slots:
            return None
        area = self.areas[role]
        ours = np.array([[area.slot(slot)[0], bytes, area.region.device]], np.uint64)
        theirs = np.array([[ring.address + remote * ring.slot_bytes, bytes, ring.device]], np.uint64)
        operation: Operation = "READ" if role == "receiver" else "WRITE"
        handle = self._agent.make_exact(operation, peer.name, (ours, area.region.memory), (theirs, ring.memory), b"")
        return _Flight(role, slot, peer, Stage(handle, False, 1, bytes))

    def _arrived(self, flight: _Flight, ok: bool) -> None:
        self._release(flight)
        self._moved(flight.role, flight.slot, ok)

    def _release(self, flight: _Flight) -> None:
        try:
            self._agent.release(flight.stage.handle)
        except NixlError as error:
            log.warning("peer %s: %s", flight.peer.name, error)

    def _moved(self, role: Role, slot: int, ok: bool) -> None:
        self.add(role, self.receiver.read_ended(slot, ok) if role == "receiver" else self.sender.write_ended(slot, ok))
