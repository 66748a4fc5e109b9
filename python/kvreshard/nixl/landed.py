"""Landed: chunks of a peer's pages are read into slots of this rank's ring, and scattered from there into its pages.

    chunk 0   | read ======> | scatter |
    chunk 1      | read ======> |      | scatter |          each in a slot, which is free when its scatter has ended
    chunk 2             waits for a slot | read =====> | scatter |

The peer need not know: it sees reads. What fails, fails the request; its pages are then held only while a scatter runs.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import kvreshard as kvr

from .agent import Agent
from .errors import NixlError, NotRegistered, PeerLost, TransferError
from .events import Predicted, Telemetry
from .landing import Lander, Landing, Read
from .leg import Leg, Stage
from .peer import Peer
from .staging import Fence

log = logging.getLogger(__name__)


class LandedLeg(Leg):
    """One peer's part of a read, landed chunk by chunk.

    The notice is sent when the last read has ended: the peer's pages are not needed any more.
    """

    strategy = "landed"

    def __init__(
        self,
        agent: Agent,
        peer: Peer,
        landing: Landing,
        lander: Lander,
        chunks: Sequence[kvr.LandedChunk],
        remote: str,
        notice: bytes,
        predicted: Predicted | None = None,
    ) -> None:
        super().__init__(agent, peer, notice, predicted)
        self._landing = landing
        self._lander = lander
        self._chunks = deque(chunks)
        self._remote = remote
        self._reads: list[Read] = []
        self._scatters: list[tuple[int, Fence]] = []
        self._told = False

    @property
    def held(self) -> int:
        """Slots that it has."""
        return len(self._reads) + len(self._scatters)

    @property
    def waiting(self) -> bool:
        """Whether it has use for another."""
        return self.state == "running" and bool(self._chunks)

    def _start(self) -> None:
        self.state = "running"
        self._landing.enter(self)
        self.advance()

    def advance(self, *, go_on: bool = True) -> None:
        """Scatters what has come and reads on: one new chunk a call, so that requests take turns."""
        if not self.moving:
            return
        self._scatters = [(slot, fence) for slot, fence in self._scatters if not self._freed(slot, fence)]
        if not go_on or self.state == "stuck":
            self.stop()
            return
        for read in list(self._reads):
            if not self._look(read):
                return
        if not self._read_next():
            return
        if not self._chunks and not self._reads:
            self._tell()
            if not self._scatters and self.state == "running":
                self._landing.leave(self)
                self._conclude(told=True)

    def _freed(self, slot: int, fence: Fence) -> bool:
        if not fence.over:
            return False
        self._landing.give(slot)
        return True

    def _look(self, read: Read) -> bool:
        """Scatters a chunk that has come; false when the leg has failed."""
        try:
            if not self.agent.done(read.stage.handle, self.peer.name):
                return True
        except NixlError as error:
            self._fail(error)
            return False
        self._reads.remove(read)
        return self._scatter(read)

    def _scatter(self, read: Read) -> bool:
        self._count(self._measure(read.stage))
        self._release(read.stage)
        area = self._landing.area
        assert area is not None
        try:
            fence = area.move(self._lander.mover, read.chunk, read.slot, gather=False)
        except Exception as error:  # Whatever a kernel raises fails this request, and not whoever polls.
            self._landing.give(read.slot)
            self._fail(TransferError(f"scatter of a landed chunk: {error}", peer=self.peer.name))
            return False
        if not self._freed(read.slot, fence):
            self._scatters.append((read.slot, fence))
        return True

    def _read_next(self) -> bool:
        """Posts the next chunk if there is a slot for it; false when the leg has failed."""
        slot = self._landing.take(self) if self._chunks else None
        if slot is None:
            return True
        area, chunk = self._landing.area, self._chunks.popleft()
        assert area is not None
        address, _ = area.slot(slot)
        read = None
        try:
            ours, theirs = chunk.reads(address, area.region.device)
            handle = self.agent.make_exact(
                "READ", self.peer.name, (ours, area.region.memory), (theirs, self._remote), b""
            )
            read = Read(slot, Stage(handle, False, len(ours), int(ours[:, 1].sum())), chunk)
            done = self.agent.post(handle, self.peer.name)
        except NixlError as error:
            if read is None:
                self._landing.give(slot)
            elif isinstance(error, (PeerLost, NotRegistered)):
                # Without its peer or its registration nothing was started.
                self._release(read.stage)
                self._landing.give(slot)
            else:
                self._landing.outlive(self.peer, read)
            self._fail(error)
            return False
        if done:
            return self._scatter(read)
        self._reads.append(read)
        return True

    def _tell(self) -> None:
        if self._told:
            return
        self._told = True
        if self.notice:
            try:
                self.agent.notify(self.peer.name, self.notice)
            except NixlError as error:
                self._fail(error)

    def _count(self, one: Telemetry) -> None:
        """Keeps one account of all reads."""
        if not self.measured:
            self.measured.append(one)
            return
        sum_ = self.measured[0]
        self.measured[0] = replace(
            sum_,
            posted=sum_.posted + one.posted,
            bytes=sum_.bytes + one.bytes,
            post_seconds=sum_.post_seconds + one.post_seconds,
            seconds=sum_.seconds + one.seconds,
        )

    def _fail(self, error: NixlError) -> None:
        self.error = self.error or error
        self.stop()

    def cancel(self) -> None:
        """Ends a leg that has nothing in flight."""
        self.stop()

    def stop(self) -> None:
        """Reads go on into slots that are kept for them; a scatter holds the pages until it ends."""
        self._chunks.clear()
        for read in self._reads:
            self._landing.outlive(self.peer, read)
        self._reads.clear()
        if self.state == "done":
            return
        self.state = "stuck" if self._scatters else "ended"
        if not self._scatters:
            self._landing.leave(self)

    def abandon(self) -> list[Stage]:
        """Waits for scatters, and leaves reads to the ring."""
        self.stop()
        for slot, fence in self._scatters:
            fence.wait()
            self._landing.give(slot)
        self._scatters.clear()
        self.state = "ended"
        self._landing.leave(self)
        return []
