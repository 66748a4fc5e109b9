"""The packed protocol of one connector: with whom it runs, and which requests go by it.

A control message tells the peer what a request's bytes are made of (`control.Parcel`). From then on frames of the ring
protocol go to and fro, and the carrier does what the machines ask for.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable

import kvreshard as kvr

from . import wire
from .agent import Agent
from .carrier import Carrier
from .control import Flow, Join, Message, Refused
from .errors import Cancelled, DeadlinePassed, LeaseOver, NixlError, PeerLost, TransferError, Unsupported
from .leg import Stage
from .memory import Memory
from .parcels import Parcel, Role, Workshop, size
from .peer import Peer
from .sessions import Sessions
from .staging import Area

log = logging.getLogger(__name__)

PREFIX = b"kvreshard-ring\x00"
"""What every frame of the ring protocol begins with."""

VERSION = 1
"""The version of the packed protocol that peers are told."""

TICK = 0.02
"""Seconds of a tick, by which the machines count their patience."""

RESEND, RESEND_MOST = 0.2, 2.0
"""Seconds after which a parcel is told again while nothing of it has come; twice as many each time."""

_REASONS: dict[str, type[TransferError]] = {
    "cancelled": Cancelled,
    "deadline": DeadlinePassed,
    "lease ended": LeaseOver,
    "peer lost": PeerLost,
}


class Packing:
    """Parcels and sessions. Not safe across threads by itself; the connector's lock covers it."""

    def __init__(
        self,
        agent: Agent,
        memory: Memory,
        flow: Flow,
        say: Callable[[Peer, Message, bool], None],
        lost: Callable[[Peer, NixlError], None],
    ) -> None:
        self.workshop = Workshop(memory)
        self._flow: Flow = flow
        self._agent, self._say, self._lost = agent, say, lost
        self._areas: dict[Role, Area] = {}
        self._running: tuple[Carrier, Sessions] | None = None
        self._peers: dict[str, Peer] = {}
        self._parcels: dict[tuple[str, str, Role], Parcel] = {}
        self._names = itertools.count(time.time_ns())
        self._ticked = 0.0

    # Memory

    def open_rings(self, areas: dict[Role, Area]) -> None:
        """Begins with rings in these areas, or without. Nothing may be in flight, no peer connected."""
        self.workshop.clear()
        before, self._areas = self._areas, areas
        if before and before != areas and self._running is not None:
            carrier, sessions = self._running
            carrier.keep()
            sessions.registered()
            carrier.run()
        if not areas:
            return
        if self._running is None:
            carrier = Carrier(self._agent, areas, self, self._cut_off)
            self._running = carrier, Sessions(carrier, self._flow, self._say)
        else:
            self._running[0].areas = areas

    @property
    def rings(self) -> wire.Rings | None:
        """What peers are told."""
        if not self._areas:
            return None
        receive, send = (
            wire.Ring(one.address, one.size.slots, one.size.slot_bytes, one.region.device, one.region.memory)
            for one in (self._areas["receiver"], self._areas["sender"])
        )
        return wire.Rings(VERSION, receive, send)

    def limit(self, peer: Peer, role: Role) -> int:
        """Bytes of a chunk with this peer; 0 where there is no packing."""
        if not self._areas or peer.rings is None:
            return 0
        theirs = peer.rings.send if role == "receiver" else peer.rings.receive
        return min(self._areas[role].size.slot_bytes, theirs.slot_bytes)

    def welcome(self, peer: Peer) -> bool:
        """Whether the peer, and this side, would admit it as far as is known."""
        return self._running is None or self._running[1].welcome(peer.name, time.monotonic())

    # Parcels

    def new_name(self) -> str:
        """A name that no other parcel of this or any other process of this rank has."""
        return f"{next(self._names):x}"

    def open(self, parcel: Parcel) -> None:
        """Takes a parcel, of this side's or a peer's."""
        self._parcels[parcel.key] = parcel
        self._peers[parcel.peer.name] = parcel.peer

    def known(self, peer: Peer, name: str, role: Role) -> bool:
        """Whether there is one of that name."""
        return (peer.name, name, role) in self._parcels

    def nudge(self, parcel: Parcel, now: float) -> None:
        """Sees to it that a parcel of this side's begins, and that the peer knows of it."""
        if parcel.began or parcel.state != "open" or self._running is None:
            return
        carrier, sessions = self._running
        if not sessions.begin(parcel.peer, now):
            refused = sessions.of(parcel.peer.name).refused
            if refused is not None:
                text = f"request {parcel.id}: no packed transfers with peer {parcel.peer.name}: {refused}"
                kept = carrier.receiver.quarantined + carrier.sender.quarantined
                remedy = f"slots that are kept from lost peers: {kept}; call gone(name) once their processes have ended"
                error = TransferError(text, peer=parcel.peer.name, request=parcel.id, remedy=remedy if kept else None)
                self._end(parcel, error)
                sessions.forgive(parcel.peer.name)
            return
        if not parcel.wanted and not self._want(parcel, carrier, sessions):
            return
        if now >= parcel.next:
            again = parcel.sent > 0
            parcel.next = now + min(RESEND * 2**parcel.sent, RESEND_MOST)
            parcel.sent = min(parcel.sent + 1, 8)
            # A peer that has registered anew since has forgotten who this rank is.
            self._say(parcel.peer, parcel.message, again)
        # What the machine has to say goes out at once, behind the parcel.
        carrier.run()

    def accept(self, parcel: Parcel) -> None:
        """Takes part in a parcel of a peer; not yet when the session has not begun, but the peer tells it again."""
        if self._running is None:
            return
        carrier, sessions = self._running
        if not sessions.begin(parcel.peer, time.monotonic()):
            return
        self.open(parcel)
        if self._want(parcel, carrier, sessions):
            carrier.run()
        else:
            del self._parcels[parcel.key]

    @staticmethod
    def _want(parcel: Parcel, carrier: Carrier, sessions: Sessions) -> bool:
        """Gives it to the machine; false while too many are open."""
        number, (bytes, chunk) = sessions.of(parcel.peer.name).number, size(parcel.chunks)
        start = carrier.receiver.want if parcel.role == "receiver" else carrier.sender.offer
        try:
            carrier.add(parcel.role, start(number, parcel.name, bytes, chunk))
        except kvr.LimitExceeded:
            return False
        parcel.wanted = True
        return True

    def drop(self, parcel: Parcel) -> None:
        """Gives a parcel up."""
        if parcel.state != "open":
            return
        given_up = Cancelled(f"request {parcel.id} was given up", request=parcel.id)
        if not parcel.wanted or self._running is None:
            self._end(parcel, given_up)
            return
        carrier, sessions = self._running
        number = sessions.of(parcel.peer.name).number
        stop = carrier.receiver.cancel if parcel.role == "receiver" else carrier.sender.withdraw
        try:
            carrier.add(parcel.role, stop(number, parcel.name))
        except kvr.Error as error:
            log.warning("parcel %s of request %s: %s", parcel.name, parcel.id, error)
            self._end(parcel, given_up)
        carrier.run()

    def withdraw(self, id: str) -> None:
        """The pages of a request are not held any more: what gathers them for a reader, or scatters into them for a
        writer, ends.
        """
        for parcel in [one for one in self._parcels.values() if one.id == id and not one.ours]:
            self.drop(parcel)

    def refused(self, peer: Peer, refusal: Refused) -> None:
        """A peer does not take part: in anything, or in one parcel."""
        if not refusal.name:
            if self._running is None:
                return
            carrier, sessions = self._running
            for parcel in self._parcels.values():
                if parcel.peer is peer and parcel.ours and not parcel.began:
                    text = f"request {parcel.id}: no packed transfers with peer {peer.name}: {refusal.text}"
                    parcel.error = parcel.error or TransferError(text, peer=peer.name, request=parcel.id)
            sessions.refuse(peer.name, refusal.text)
            carrier.run()
            return
        for parcel in list(self._parcels.values()):
            if parcel.peer is peer and parcel.name == refusal.name and parcel.ours and not parcel.began:
                text = f"peer {peer.name} refused request {parcel.id}: {refusal.text}"
                kind = LeaseOver if refusal.gone else Unsupported
                parcel.error = kind(text, peer=peer.name, request=parcel.id)
                self.drop(parcel)

    def _end(self, parcel: Parcel, error: NixlError | None, *, held: bool = False) -> None:
        parcel.held = held
        parcel.state = "done" if error is None else "failed"
        parcel.error = parcel.error or error
        if not held:
            self._parcels.pop(parcel.key, None)

    # Peers

    def join(self, peer: Peer, join: Join) -> None:
        """A peer begins."""
        if self._running is not None and self._areas:
            self._peers[peer.name] = peer
            carrier, sessions = self._running
            sessions.hear(peer, join)
            carrier.run()

    def lose(self, peer: Peer) -> None:
        """A peer is lost or forgotten. What it may still touch is kept from others."""
        if self._running is not None:
            carrier, sessions = self._running
            sessions.end(peer.name)
            carrier.run()
        for parcel in [one for one in self._parcels.values() if one.peer is peer and one.state == "open"]:
            self._end(parcel, PeerLost(f"request {parcel.id}: peer {peer.name} was lost", peer=peer.name))
        if self._peers.get(peer.name) is peer:
            del self._peers[peer.name]

    def gone(self, name: str) -> None:
        """The host knows that nothing of a lost peer is alive."""
        if self._running is not None:
            self._running[1].gone(name)
            self._running[0].run()

    def frame(self, sender: str, frame: bytes) -> None:
        """A frame of the ring protocol came."""
        if self._running is None or sender not in self._peers:
            return
        carrier, sessions = self._running
        number = sessions.of(sender).number
        if carrier.busy:
            # Many frames may come at once, and what has ended meanwhile need not wait for the last.
            carrier.look(every=False)
            carrier.run()
        try:
            # What is not for a machine it ignores; the two share no message.
            carrier.add("receiver", carrier.receiver.message(number, frame))
            carrier.add("sender", carrier.sender.message(number, frame))
        except kvr.Error as error:
            log.warning("dropped a frame from %r: %s", sender, error)
        carrier.run()

    def progress(self, now: float) -> None:
        """Looks at transfers and kernels, and goes on."""
        if self._running is None:
            return
        carrier, sessions = self._running
        due = now - self._ticked >= TICK
        carrier.look(every=due)
        if due and sessions.any:
            self._ticked = now
            carrier.add("receiver", carrier.receiver.tick())
            carrier.add("sender", carrier.sender.tick())
        carrier.run()

    def busy_with(self, peer: Peer | None) -> bool:
        """Whether transfers of slots with `peer`, or any, are under way."""
        return self._running is not None and self._running[0].busy_with(peer)

    def abandon(self) -> list[tuple[Peer, Stage]]:
        """Gives up everything; returns what is under way."""
        if self._running is None or not self._areas:
            return []
        self._running[0].keep()
        return self._running[0].abandon()

    # For the carrier

    def _cut_off(self, peer: Peer, error: NixlError) -> None:
        """The connection to a peer is gone, which is why its parcels fail and not that a transfer did."""
        for parcel in self._parcels.values():
            if parcel.peer is peer and parcel.state == "open" and parcel.error is None:
                text = f"request {parcel.id}: peer {peer.name} was lost"
                parcel.error = PeerLost(text, peer=peer.name, request=parcel.id, code=error.code)
        self._lost(peer, error)

    def peer(self, number: int) -> Peer | None:
        """The connected peer of that number."""
        peer = self._peers.get(self._running[1].name(number)) if self._running is not None else None
        return peer if peer is not None and peer.connected else None

    def parcel(self, number: int, name: str, role: Role) -> Parcel | None:
        """A parcel with it."""
        return self._parcels.get((self._running[1].name(number), name, role)) if self._running is not None else None

    def report(self, parcel: Parcel, action: kvr.RingAction) -> None:
        """What became of a parcel."""
        if action.kind == "finished":
            self._end(parcel, None)
        elif action.kind == "freed":
            parcel.held = False
            del self._parcels[parcel.key]
        elif action.kind == "failed":
            who = f"peer {parcel.peer.name}" if action.by_peer else "this side"
            kind = _REASONS.get(action.reason or "", TransferError)
            if action.by_peer and kind is PeerLost:
                # It has lost this rank, which is no news of the connection: this side can begin again.
                kind = TransferError
            text = f"request {parcel.id}: {who} gave it up: {action.reason}"
            self._end(parcel, kind(text, peer=parcel.peer.name, request=parcel.id), held=action.held)
