"""A request in flight: one leg a peer; finished when every leg is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field
from typing import Literal

from .errors import Cancelled, DeadlinePassed, LeaseOver, NixlError, PeerLost, TransferError
from .events import Direction, Event, Failed, Finished, Freed
from .leases import Lease
from .leg import Leg
from .path import watch
from .peer import Peer
from .staging import Fence


@dataclass
class Transfer:
    """One request: finished when every leg is done; failed as soon as one is, and then held until none moves."""

    id: str
    direction: Direction
    legs: list[Leg]
    deadline: float
    clear: list[Callable[[], None]]
    leases: list[Lease] = field(default_factory=list)
    after: Fence | None = None
    begun: bool = False
    failed: bool = False

    @property
    def moving(self) -> bool:
        """Whether bytes may be landing."""
        return any(leg.moving for leg in self.legs)

    def start(self) -> None:
        """Posts the legs in order, up to one that is refused; not before `after` is over."""
        if self.after is not None and not self.after.over:
            return
        self.begun = True
        for leg in self.legs:
            leg.start()
            if leg.error is not None:
                break

    def cancel(self) -> Failed | None:
        """Gives the request up; `None` when it has failed already."""
        if self.failed:
            return None
        return self._fail(Cancelled(f"request {self.id} was cancelled"))

    def advance(self, now: float) -> Iterator[Event]:
        """Progress since the last call, as events. The transfer has come to its end when `over`."""
        if not self.begun and not self.failed:
            self.start()
        for leg in self.legs:
            leg.advance(go_on=not self.failed)
        if self.failed:
            if not self.moving:
                yield Freed(self.id, self.direction)
            return
        reason = next((leg.error for leg in self.legs if leg.error is not None), None)
        if reason is None and self._all_done:
            reason = self._clear_rest()
        if reason is None:
            reason = self._lease_lost(now)
        if reason is None and now >= self.deadline and not (self._all_done and self._confirmed):
            reason = self._too_late()
        if reason is not None:
            yield self._fail(reason)
        elif self._all_done and self._confirmed:
            shares = tuple(leg.share for leg in self.legs)
            for leg, share in zip(self.legs, shares, strict=True):
                leg.peer.metrics.count(share)
                watch(leg.peer, self.direction, leg.measured)
            yield Finished(self.id, self.direction, tuple(one for leg in self.legs for one in leg.measured), shares)

    def needs(self, peer: Peer) -> bool:
        """Whether something of the peer is outstanding."""
        legs = any(leg.peer is peer and leg.state != "done" for leg in self.legs)
        return legs or any(lease.peer is peer and lease.verdict != "confirmed" for lease in self.leases)

    def _lease_lost(self, now: float) -> NixlError | None:
        """Keeps the leases, and asks at the end whether they were kept; what is wrong if one was not."""
        for lease in self.leases:
            if lease.verdict == "gone":
                return LeaseOver(
                    f"request {self.id}: {lease.peer.name} did not hold the pages until they were read",
                    peer=lease.peer.name,
                )
            if not lease.peer.connected and lease.verdict != "confirmed":
                return PeerLost(
                    f"request {self.id}: {lease.peer.name} was lost before it said whether it held the pages",
                    peer=lease.peer.name,
                )
            (lease.end if self._all_done else lease.keep)(now)
        return None

    @property
    def _confirmed(self) -> bool:
        return all(lease.verdict == "confirmed" for lease in self.leases)

    @property
    def over(self) -> bool:
        """Whether nothing is left to report."""
        return not self.moving and (self.failed or (self._all_done and self._confirmed))

    @property
    def _all_done(self) -> bool:
        return all(leg.state == "done" for leg in self.legs)

    def _clear_rest(self) -> NixlError | None:
        """Clears what no transfer covers: only now, since the last row of each leg may have been rounded up over it."""
        try:
            while self.clear:
                self.clear.pop()()
        except Exception as error:  # Whatever torch raises fails this request, and not whoever polls.
            return TransferError(f"request {self.id}: {error}")
        return None

    def _too_late(self) -> NixlError:
        slow = [leg.peer.name for leg in self.legs if leg.moving]
        if not self.begun:
            slow = [leg.peer.name for leg in self.legs]
            what = "was not begun in time: this thread's stream is still at what it was given before"
        elif slow:
            what = "did not finish in time; pages that a transfer may still touch stay held until it ends"
        else:
            slow = [lease.peer.name for lease in self.leases if lease.verdict != "confirmed"]
            what = "did not confirm in time that it held the pages (does it expect the request?)"
        return DeadlinePassed(f"request {self.id}: {', '.join(slow)} {what}", peer=slow[0])

    def _fail(self, reason: NixlError) -> Failed:
        self.failed = True
        concerned = [leg.peer for leg in self.legs if leg.error is not None or leg.moving]
        for peer in concerned:
            peer.metrics.failures += 1
        for leg in self.legs:
            leg.stop()
        # A peer that is lost fails all its requests by one error, which is not to name the last of them.
        reason, cause = copy(reason), reason.__cause__
        reason.request, reason.__cause__ = self.id, cause
        pages: Literal["held", "free"] = "held" if self.moving else "free"
        return Failed(self.id, self.direction, reason, pages, tuple(peer.name for peer in concerned))
