"""A request in flight: one leg a peer, each a short sequence of NIXL handles.

                     post            DONE
    ready -----------------> running -----> done
      |  post refused           |
      |                         |  connection lost           nothing lands any more: pages free
      +-------> ended <---------+
                                |  any other failure
                                +-----> stuck                bytes may still land: pages held until NIXL calls it
                                                             done or lost after all

NIXL offers no way to stop a transfer. Releasing its handle or removing its peer leaves the bytes coming (measured over
TCP: all of them), so a handle is released after DONE or failure only, and until then the pages are held.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from .agent import Agent, Handle
from .errors import DeadlinePassed, NixlError, NotRegistered, PeerLost, TransferError
from .events import Direction, Event, Failed, Finished, Freed, Telemetry
from .peer import Peer

log = logging.getLogger(__name__)

LegState = Literal["ready", "running", "done", "ended", "stuck"]


@dataclass
class Stage:
    """One handle and what the plan says of it."""

    handle: Handle
    prepared: bool
    posted: int
    bytes: int


@dataclass
class Leg:
    """One peer's part of a request. The last stage carries the notice; without stages it is sent by itself."""

    agent: Agent
    peer: Peer
    stages: list[Stage]
    notice: bytes
    state: LegState = "ready"
    error: NixlError | None = None
    measured: list[Telemetry] = field(default_factory=list)

    @property
    def moving(self) -> bool:
        """Whether bytes may be landing."""
        return self.state in ("running", "stuck")

    def start(self) -> None:
        """Posts the first stage; a failure is recorded, not raised: other legs may be under way."""
        self._post()

    def advance(self, *, go_on: bool = True) -> None:
        """Looks whether the running stage is done; then posts the next one, unless the request has failed elsewhere."""
        if not self.moving:
            return
        try:
            done = self.agent.done(self.stages[0].handle, self.peer.name)
        except NixlError as error:
            self.fail(error, over=isinstance(error, PeerLost))
            return
        if not done:
            return
        if self.state == "stuck":
            self.cancel()
            return
        self._finish_stage()
        if go_on or not self.stages:
            self._post()
        else:
            self.cancel()

    def fail(self, error: NixlError, *, over: bool) -> None:
        """Records a failure. `over` says that nothing can land any more."""
        self.error = self.error or error
        self.state = "ended" if over else "stuck"
        if over:
            self._release_all()

    def cancel(self) -> None:
        """Ends a leg that has nothing in flight."""
        self.state = "ended"
        self._release_all()

    def abandon(self) -> list[Stage]:
        """Gives up a leg whose agent is about to end, or to be left alone; returns what was still in flight."""
        left, self.stages = self.stages, []
        self.state = "ended"
        return left

    def _post(self) -> None:
        while self.stages:
            try:
                done = self.agent.post(self.stages[0].handle, self.peer.name)
            except NixlError as error:
                # Without its peer or its registration nothing was started.
                self.fail(error, over=isinstance(error, (PeerLost, NotRegistered)))
                return
            if not done:
                self.state = "running"
                return
            self._finish_stage()
        self.state = "done"
        if not self.measured and self.notice:
            try:
                self.agent.notify(self.peer.name, self.notice)
            except NixlError as error:
                self.fail(error, over=True)

    def _finish_stage(self) -> None:
        stage = self.stages.pop(0)
        measured = self.agent.measured(stage.handle)
        self.measured.append(
            Telemetry(
                peer=self.peer.name,
                posted=measured.posted if measured else stage.posted,
                bytes=measured.bytes if measured else stage.bytes,
                post_seconds=measured.post_seconds if measured else 0.0,
                seconds=measured.seconds if measured else 0.0,
                prepared=stage.prepared,
            )
        )
        self._release(stage)

    def _release_all(self) -> None:
        while self.stages:
            self._release(self.stages.pop(0))

    def _release(self, stage: Stage) -> None:
        try:
            self.agent.release(stage.handle)
        except NixlError as error:
            log.warning("peer %s: %s", self.peer.name, error)


@dataclass
class Transfer:
    """One request: finished when every leg is done; failed as soon as one is, and then held until none moves."""

    id: str
    direction: Direction
    legs: list[Leg]
    deadline: float
    clear: list[Callable[[], None]]
    failed: bool = False

    @property
    def moving(self) -> bool:
        """Whether bytes may be landing."""
        return any(leg.moving for leg in self.legs)

    def start(self) -> None:
        """Posts the legs in order, up to one that is refused."""
        for leg in self.legs:
            leg.start()
            if leg.error is not None:
                break

    def advance(self, now: float) -> Iterator[Event]:
        """Progress since the last call, as events. The transfer has come to its end when `over`."""
        for leg in self.legs:
            leg.advance(go_on=not self.failed)
        if self.failed:
            if not self.moving:
                yield Freed(self.id, self.direction)
            return
        reason = next((leg.error for leg in self.legs if leg.error is not None), None)
        if reason is None and self._all_done:
            reason = self._clear_rest()
        if reason is None and self.moving and now >= self.deadline:
            reason = self._too_late()
        if reason is not None:
            yield self._fail(reason)
        elif self._all_done:
            yield Finished(self.id, self.direction, tuple(one for leg in self.legs for one in leg.measured))

    @property
    def over(self) -> bool:
        """Whether nothing is left to report."""
        return not self.moving and (self.failed or self._all_done)

    @property
    def _all_done(self) -> bool:
        return all(leg.state == "done" for leg in self.legs)

    def _clear_rest(self) -> NixlError | None:
        """Clears what no transfer covers: only now, since the last row of each leg may have been rounded up over it."""
        try:
            while self.clear:
                self.clear.pop()()
        except Exception as error:  # Whatever torch raises fails this request, and not whoever polls.
            return TransferError(f"request {self.id}: {error}", request=self.id)
        return None

    def _too_late(self) -> NixlError:
        slow = [leg.peer.name for leg in self.legs if leg.moving]
        return DeadlinePassed(
            f"request {self.id}: {', '.join(slow)} did not finish in time; its pages stay held until the transfer ends",
            peer=slow[0],
            request=self.id,
        )

    def _fail(self, reason: NixlError) -> Failed:
        self.failed = True
        for leg in self.legs:
            if leg.state == "ready":
                leg.cancel()
        reason.request = self.id
        peers = tuple(leg.peer.name for leg in self.legs if leg.error is not None or leg.moving)
        return Failed(self.id, self.direction, reason, "held" if self.moving else "free", peers)
