"""One peer's part of a request, while it is under way.

                     post            DONE
    ready -----------------> running -----> done
      |  post refused           |
      |                         |  connection lost           nothing lands any more: pages free
      +-------> ended <---------+
                                |  any other failure
                                +-----> stuck                bytes may still land: pages held until NIXL calls it
                                                             done or lost after all

NIXL offers no way to stop a transfer. Releasing its handle or removing its peer leaves the bytes coming (measured over
TCP: all of them), so a handle is released after DONE or failure only, and until then what it writes is held.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from .agent import Agent, Handle
from .errors import NixlError, NotRegistered, PeerLost, Untracked
from .events import Predicted, Share, Strategy, Telemetry
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


class Leg(ABC):
    """One peer's part of a request, by some strategy. When all is done, `notice` has been sent."""

    strategy: Strategy = "direct"

    def __init__(self, agent: Agent, peer: Peer, notice: bytes, predicted: Predicted | None = None) -> None:
        self.agent = agent
        self.peer = peer
        self.notice = notice
        self.predicted = predicted
        self.state: LegState = "ready"
        self.error: NixlError | None = None
        self.untracked = False
        """NIXL has said that it cannot tell any more whether bytes land."""
        self.measured: list[Telemetry] = []
        self._begun: float | None = None
        self._ended: float | None = None

    @property
    def moving(self) -> bool:
        """Whether it has begun and not come to its end: its pages may be in use."""
        return self.state in ("running", "stuck")

    @property
    def share(self) -> Share:
        """What it did, once it is done."""
        begun, ended = self._begun or 0.0, self._ended or 0.0
        return Share(
            peer=self.peer.name,
            strategy=self.strategy,
            posted=sum(one.posted for one in self.measured),
            bytes=sum(one.bytes for one in self.measured),
            seconds=max(0.0, ended - begun),
            predicted=self.predicted,
        )

    def start(self) -> None:
        """Begins; a failure is recorded, not raised: other legs may be under way."""
        self._begun = time.monotonic()
        self._start()

    @abstractmethod
    def _start(self) -> None: ...

    @abstractmethod
    def advance(self, *, go_on: bool = True) -> None:
        """Looks how far it is and goes on, unless the request has failed elsewhere."""

    @abstractmethod
    def cancel(self) -> None:
        """Ends a leg that has nothing in flight."""

    def stop(self) -> None:
        """The request has failed: ends the leg as far as that can be done."""
        if self.state == "ready":
            self.cancel()

    @abstractmethod
    def abandon(self) -> list[Stage]:
        """Gives up a leg whose agent is about to end, or to be left alone; returns what was still in flight."""

    def _conclude(self, *, told: bool) -> None:
        """All bytes are there: the leg is done once the peer is told."""
        self._ended = time.monotonic()
        self.state = "done"
        if not told and self.notice:
            try:
                self.agent.notify(self.peer.name, self.notice)
            except NixlError as error:
                self.error = self.error or error
                self.state = "ended"

    def _measure(self, stage: Stage) -> Telemetry:
        measured = self.agent.measured(stage.handle)
        return Telemetry(
            peer=self.peer.name,
            posted=measured.posted if measured else stage.posted,
            bytes=measured.bytes if measured else stage.bytes,
            post_seconds=measured.post_seconds if measured else 0.0,
            seconds=measured.seconds if measured else 0.0,
            prepared=stage.prepared,
        )

    def _release(self, stage: Stage) -> None:
        try:
            self.agent.release(stage.handle)
        except NixlError as error:
            log.warning("peer %s: %s", self.peer.name, error)


class DirectLeg(Leg):
    """A short sequence of NIXL handles, one posted after the other; the last carries the notice."""

    def __init__(
        self, agent: Agent, peer: Peer, stages: list[Stage], notice: bytes, predicted: Predicted | None = None
    ) -> None:
        super().__init__(agent, peer, notice, predicted)
        self.stages = stages

    def _start(self) -> None:
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
        self.untracked = self.untracked or isinstance(error, Untracked)
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
        self._conclude(told=bool(self.measured))

    def _finish_stage(self) -> None:
        stage = self.stages.pop(0)
        self.measured.append(self._measure(stage))
        self._release(stage)

    def _release_all(self) -> None:
        while self.stages:
            self._release(self.stages.pop(0))
