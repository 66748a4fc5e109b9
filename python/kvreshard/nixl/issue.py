"""One peer's part of a request, turned into NIXL handles.

Nothing moves here: handles are made, so that whatever is refused is refused before the first byte, and posted later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import kvreshard as kvr

from . import clearing
from .agent import Agent, Operation, Rows
from .errors import NixlError
from .events import Direction
from .memory import Memory
from .peer import Peer
from .transfer import Leg, Stage

OPERATIONS: dict[Direction, Operation] = {"read": "READ", "write": "WRITE"}

ZEROS = 64 << 10
"""Bytes of the block of zeros that is written into a peer's uncovered bytes, again and again."""


@dataclass(frozen=True)
class Choice:
    """How a request goes to one peer: `posted` descriptors; `ids` of prepared rows, or exact `lists`."""

    posted: int
    bytes: int
    ids: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]] | None
    lists: tuple[Rows, Rows]


def choose(plan: kvr.Plan, request: kvr.Request) -> Choice:
    """Prepared ids or exact lists, whichever posts less; ids where both post the same, since NIXL has checked those
    rows.

    NIXL joins consecutive ids, but only inside a dense row; exact lists are joined by the planner across rows and
    layers. An interval that begins inside a row can only go by an exact list.
    """
    lists = plan.lists(request)
    exact = Choice(posted=len(lists[0]), bytes=int(lists[0][:, 1].sum()), ids=None, lists=lists)
    if not exact.posted:
        return exact
    try:
        posted = plan.posted(request)
        if posted > exact.posted:
            return exact
        return Choice(posted=posted, bytes=exact.bytes, ids=plan.ids(request), lists=lists)
    except (kvr.RequestError, kvr.LimitExceeded):
        return exact


class Issuer:
    """Makes legs. Holds the registered zeros that clear bytes on a peer, made when first needed."""

    def __init__(self, agent: Agent, memory: Memory) -> None:
        self._agent = agent
        self._memory = memory
        self._zeros: npt.NDArray[np.uint8] | None = None

    def leg(
        self, peer: Peer, request: kvr.Request, direction: Direction, *, notice: bytes, zero: bool
    ) -> tuple[Leg, Callable[[], None] | None]:
        """The leg, ready to start, and what is left to clear on this rank once all legs are done.

        The end of a request may be rounded up to a row's end, which lands whatever the source has there; so clearing
        comes after the transfer, on this rank by hand and on a peer by a second transfer.
        """
        plan = peer.plan(direction)
        chosen = choose(plan, request)
        bare = plan.zero(request) if zero else np.zeros((0, 3), np.uint64)
        ours, theirs = peer.memory() if chosen.posted or len(bare) else ("DRAM", "DRAM")
        if len(bare) and direction == "write":
            stages = self._main(peer, chosen, direction, (ours, theirs), b"")
            try:
                stages.append(self._clear_remote(peer, bare, theirs, notice))
            except NixlError:
                for stage in stages:
                    self._agent.release(stage.handle)
                raise
            return Leg(self._agent, peer, stages, notice), None
        later = None
        if len(bare):
            clearing.require(ours)
            self._memory.check(bare, ours)
            later = _Clear(bare, ours, self._memory)
        return Leg(self._agent, peer, self._main(peer, chosen, direction, (ours, theirs), notice), notice), later

    def _main(
        self, peer: Peer, chosen: Choice, direction: Direction, memory: tuple[str, str], notice: bytes
    ) -> list[Stage]:
        if not chosen.posted:
            return []
        operation = OPERATIONS[direction]
        try:
            if chosen.ids is not None:
                local, remote = peer.prepared(direction)
                handle = self._agent.make_prepared(operation, local, chosen.ids[0], remote, chosen.ids[1], notice)
            else:
                ours, theirs = ((rows, kind) for rows, kind in zip(chosen.lists, memory, strict=True))
                handle = self._agent.make_exact(operation, peer.name, ours, theirs, notice)
        except NixlError as error:
            error.peer = error.peer or peer.name
            raise
        return [Stage(handle, chosen.ids is not None, chosen.posted, chosen.bytes)]

    def _clear_remote(self, peer: Peer, bare: Rows, memory: str, notice: bytes) -> Stage:
        if self._zeros is None:
            self._zeros = np.zeros(ZEROS, np.uint8)
            self._memory.register(self._zeros)
        pieces = [
            (address + start, min(ZEROS, size - start), device)
            for address, size, device in bare.tolist()
            for start in range(0, size, ZEROS)
        ]
        theirs = np.array(pieces, np.uint64).reshape(-1, 3)
        ours = np.zeros_like(theirs)
        ours[:, 0] = self._zeros.ctypes.data
        ours[:, 1] = theirs[:, 1]
        handle = self._agent.make_exact("WRITE", peer.name, (ours, "DRAM"), (theirs, memory), notice)
        return Stage(handle, False, len(theirs), int(theirs[:, 1].sum()))


@dataclass(frozen=True)
class _Clear:
    """Clears rows of this rank when called."""

    rows: Rows
    kind: str
    memory: Memory

    def __call__(self) -> None:
        clearing.clear(self.rows, self.kind, self.memory)
