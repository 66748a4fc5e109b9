"""Every request in flight, and what becomes of them when a peer is lost or the connector closes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import kvreshard as kvr

from .errors import NixlError, PeerBusy, PeerLost, TransferError
from .events import Event, Failed, Freed, PeerDown
from .issue import Issuer
from .landing import Landing
from .leases import Lease, Leases
from .leg import Leg, Stage
from .order import Order
from .packing import Packing
from .peer import Peer
from .staging import Fence
from .transfer import Transfer

log = logging.getLogger(__name__)

Part = tuple[Peer, kvr.Request, bytes]
"""One peer's part of a request, with the notice that goes with it."""


class Flights:
    """The transfers of one connector. Not safe across threads by itself; the connector's lock covers it."""

    def __init__(self, landing: Landing, packing: Packing, leases: Leases) -> None:
        self._landing = landing
        self._packing = packing
        self._leases = leases
        self._transfers: dict[str, Transfer] = {}
        self._lost: list[Peer] = []
        self._held: tuple[str, ...] = ()
        self.events: list[Event] = []
        self.closed: list[Peer] = []
        """Lost peers with which nothing is under way any more."""

    @property
    def ids(self) -> tuple[str, ...]:
        """Requests whose pages are not free: under way, or failed and held."""
        return tuple(self._transfers)

    @property
    def moving(self) -> tuple[str, ...]:
        """Those of which bytes may be landing."""
        return tuple(id for id, transfer in self._transfers.items() if transfer.moving)

    def issue(
        self,
        issuer: Issuer,
        order: Order,
        parts: Sequence[Part],
        leases: Sequence[Lease],
        *,
        deadline: float,
        after: Fence | None = None,
    ) -> None:
        """Makes every leg, then posts them behind `after`. A refusal is raised before anything moves; later failures
        are events.
        """
        id = order.id
        if id in self._transfers:
            raise TransferError(f"request {id} is in flight", request=id)
        if len({peer.name for peer, _, _ in parts}) != len(parts):
            raise TransferError(f"request {id} names a peer twice", request=id)
        ends = time.monotonic() + deadline
        legs: list[Leg] = []
        clear: list[Callable[[], None]] = []
        try:
            for peer, request, notice in parts:
                try:
                    leg, later = issuer.leg(peer, request, order, notice)
                except kvr.Error:
                    peer.metrics.refusals += 1
                    raise
                legs.append(leg)
                if later is not None:
                    clear.append(later)
        except kvr.Error as error:
            for leg in legs:
                leg.cancel()
            if isinstance(error, NixlError):
                error.request = id
            raise
        transfer = self._transfers[id] = Transfer(id, order.direction, legs, ends, clear, list(leases), after)
        transfer.start()

    def cancel(self, id: str) -> bool:
        """Gives a request up; whether there was one that had not failed yet."""
        transfer = self._transfers.get(id)
        failed = transfer.cancel() if transfer is not None else None
        if failed is None:
            return False
        self.events.append(failed)
        if transfer is not None and transfer.over:
            self._forget(id)
        return True

    def _forget(self, id: str) -> None:
        self._leases.close(self._transfers.pop(id).leases)

    def _forget_over(self) -> None:
        for id in [id for id, transfer in self._transfers.items() if transfer.over]:
            self._forget(id)

    def require_idle(self, peer: Peer | None = None) -> None:
        """Raises `PeerBusy` while anything is in flight with `peer`, or at all."""
        busy = [
            id
            for id, transfer in self._transfers.items()
            if peer is None or any(leg.peer is peer and leg.moving for leg in transfer.legs)
        ]
        if busy or self._busy_with(peer):
            raise PeerBusy(
                f"transfers {f'with peer {peer.name} ' if peer else ''}are in flight: "
                f"{', '.join(busy) or 'reads of requests that are over'}",
                peer=peer.name if peer else None,
                found=busy,
                remedy="poll until they are over; only close() ends them by force",
            )

    def progress(self) -> None:
        """Looks at every transfer; what happened is appended to `events`."""
        now = time.monotonic()
        self._landing.progress()
        self._packing.progress(now)
        self._advance(self._transfers.values(), now)
        for peer, error in self._newly_lost():
            self.lose(peer, error)
        self._forget_over()
        for peer in [peer for peer in self._lost if not self._moving_with(peer)]:
            self._lost.remove(peer)
            peer.close("lost")
            self.closed.append(peer)

    def lose(self, peer: Peer, error: NixlError, *, ended: bool = True) -> None:
        """The connection is gone, or what the peer told of its memory is void: everything in flight with it has failed,
        and ends as NIXL notices. Where the connection has `ended`, nothing lands any more of what is stuck.
        """
        needing = [transfer for transfer in self._transfers.values() if transfer.needs(peer)]
        # What has failed with its pages free has nothing more to say.
        hit = [transfer for transfer in needing if not transfer.over]
        if peer.connected:
            peer.state = "lost"
            self._lost.append(peer)
            self._packing.lose(peer)
            self.events.append(PeerDown(peer.name, error, tuple(transfer.id for transfer in needing)))
        for leg in (leg for transfer in hit for leg in transfer.legs if leg.peer is peer):
            if leg.state in ("ready", "running"):
                leg.error = leg.error or error
            elif leg.state == "stuck" and ended:
                # Of a peer that its host has removed NIXL knows nothing, and says so when it is asked.
                leg.advance(go_on=False)
                if leg.state == "stuck" and not leg.untracked:
                    leg.cancel()
        self._advance(hit, time.monotonic())
        self._forget_over()

    def drain(self, progress: Callable[[], None], timeout: float, pause: float) -> tuple[str, ...]:
        """Waits until nothing is moving, `timeout` seconds at most; returns what has not come to its end."""
        ends = time.monotonic() + timeout
        # What has ended is said to have, whether there is time to wait or not.
        progress()
        while (self.moving or self._busy_with(None)) and time.monotonic() < ends:
            progress()
            time.sleep(pause)
        return self.ids

    def abandon(self) -> list[tuple[Peer, Stage]]:
        """Gives up everything, as failed, and held where it moves; returns the handles still in flight."""
        left = []
        self._held = self.moving
        for transfer in self._transfers.values():
            if not transfer.failed and not transfer.over:
                peers = tuple(leg.peer.name for leg in transfer.legs if leg.moving)
                reason = TransferError(
                    f"request {transfer.id}: the connector closed before it ended", request=transfer.id
                )
                pages: Literal["held", "free"] = "held" if transfer.moving else "free"
                self.events.append(Failed(transfer.id, transfer.direction, reason, pages, peers))
                transfer.failed = True
            for leg in transfer.legs:
                if leg.moving:
                    left += [(leg.peer, stage) for stage in leg.abandon()]
                else:
                    leg.cancel()
        return left + self._landing.abandon() + self._packing.abandon()

    def end(self) -> None:
        """After `abandon`, when the agent is gone and nothing can land any more: the pages are free."""
        for id in self._held:
            self.events.append(Freed(id, self._transfers[id].direction))
        self._transfers.clear()

    def _advance(self, transfers: Iterable[Transfer], now: float) -> None:
        for transfer in transfers:
            self.events.extend(transfer.advance(now))

    def _newly_lost(self) -> list[tuple[Peer, NixlError]]:
        found: dict[str, tuple[Peer, NixlError]] = {}
        for transfer in self._transfers.values():
            for leg in transfer.legs:
                if isinstance(leg.error, PeerLost) and leg.peer.connected:
                    found.setdefault(leg.peer.name, (leg.peer, leg.error))
        return list(found.values())

    def _busy_with(self, peer: Peer | None) -> bool:
        """Whether slots are written or read for requests that may be over."""
        return self._landing.busy_with(peer) or self._packing.busy_with(peer)

    def _moving_with(self, peer: Peer) -> bool:
        moving = any(leg.peer is peer and leg.moving for t in self._transfers.values() for leg in t.legs)
        return moving or self._busy_with(peer)
