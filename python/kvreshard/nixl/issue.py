"""One peer's part of a request, turned into NIXL handles.

Nothing moves here: handles are made, so that whatever is refused is refused before the first byte, and posted later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

import kvreshard as kvr

from . import clearing
from .agent import Agent, Operation, Rows
from .clearing import Kind
from .errors import NixlError, TransferError
from .events import Direction, Predicted
from .landed import LandedLeg
from .landing import Landing
from .leg import DirectLeg, Leg, Stage
from .memory import Memory
from .order import Order
from .packed import PackedLeg
from .packing import Packing
from .parcelling import Parcelling
from .peer import Peer
from .strategy import Able, decide, predicted_direct

OPERATIONS: dict[Direction, Operation] = {"read": "READ", "write": "WRITE"}

ZEROS = 64 << 10
"""Bytes of the block of zeros that is written into a peer's uncovered bytes, again and again."""


MAX_CLEARED = 1 << 16
"""The most such writes for one request."""


@dataclass(frozen=True)
class Piece:
    """What one handle moves: a part of the plan, and so one memory kind a side; `ids` of prepared rows, or exact
    `lists`.
    """

    part: int
    memory: tuple[Kind, Kind]
    posted: int
    bytes: int
    ids: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]] | None
    lists: tuple[Rows, Rows]


def choose(plan: kvr.Plan, pairing: kvr.Pairing) -> list[Piece]:
    """Prepared ids, exact lists or lists of whole rows, whichever posts the fewest; ids where they post as few, since
    NIXL has checked those rows.

    NIXL joins consecutive ids, but only inside a dense row; lists are joined by the planner across rows and layers. An
    end inside a row may cost many runs, or be rounded up; a beginning inside a row can only go by an exact list.
    """
    whole = pairing.rounded() if pairing.cuts_rows and pairing.fits_rows else None
    pieces = []
    for part, memory in enumerate(plan.parts):
        lists = pairing.lists(part=part)
        if whole is not None and len(rows := whole.lists(part=part)) and len(rows[0]) < len(lists[0]):
            lists = rows
        posted = len(lists[0])
        if posted == 0:
            continue
        ids = None
        if pairing.fits_rows and pairing.posted(part=part) <= posted:
            # As many: what ids move is what lists of whole rows move, and those are the fewest that do.
            ids = pairing.ids(part=part)
            lists = lists if whole is None else whole.lists(part=part)
        pieces.append(Piece(part, memory, posted, int(lists[0][:, 1].sum()), ids, lists))
    return pieces


class Issuer:
    """Makes legs. Holds the registered zeros that clear bytes on a peer, made when first needed."""

    def __init__(
        self, agent: Agent, memory: Memory, landing: Landing, packing: Packing, parcelling: Parcelling
    ) -> None:
        self._agent = agent
        self._memory = memory
        self._landing = landing
        self._packing = packing
        self._parcelling = parcelling
        self._zeros: npt.NDArray[np.uint8] | None = None

    def leg(
        self, peer: Peer, request: kvr.Request, order: Order, notice: bytes
    ) -> tuple[Leg, Callable[[], None] | None]:
        """The leg, ready to start, and what is left to clear on this rank once all legs are done.

        The end of a request may be rounded up to a row's end, which lands whatever the source has there; so clearing
        comes after the transfer, on this rank by hand and on a peer by a second transfer.
        """
        direction = order.direction
        plan = peer.plan(direction, None if order.layers is None else tuple(order.layers))
        pairing = plan.pair(request)
        able = self._able(peer, plan)
        if order.strategy == "auto" and not self._packing.welcome(peer):
            able = replace(able, packs=0)
        chosen, predicted = decide(pairing, peer, direction, order.strategy, able)
        bare = clearing.bare(pairing, peer.there if direction == "write" else peer.here) if order.zero else []
        later = None
        if bare and direction == "read":
            later, bare = clearing.later(bare, self._memory), []
        if chosen == "landed":
            return self._landed(peer, plan, pairing, notice, predicted), later
        if chosen == "packed":
            parcel = self._parcelling.ours(peer, request, order, pairing)
            if parcel.chunks:
                return PackedLeg(self._agent, self._packing, parcel, notice, predicted), later
        pieces = choose(plan, pairing)
        if predicted is None:
            posted, bytes = sum(piece.posted for piece in pieces), sum(piece.bytes for piece in pieces)
            predicted = predicted_direct(peer, direction, posted, bytes)
        count = len(pieces) + len(bare)
        messages = [b""] * (count - 1) + [notice]
        stages: list[Stage] = []
        try:
            for piece in pieces:
                stages.append(self._move(peer, plan, piece, messages[len(stages)]))
            for rows, kind in bare:
                stages.append(self._clear_remote(peer, rows, kind, messages[len(stages)]))
        except NixlError as error:
            error.peer = error.peer or peer.name
            for stage in stages:
                self._agent.release(stage.handle)
            raise
        return DirectLeg(self._agent, peer, stages, notice, predicted), later

    def _able(self, peer: Peer, plan: kvr.Plan) -> Able:
        """What can be done with this plan. A slot lies beside pages of one kind, and so do the spans read into it."""
        reads = plan.direction == "read"
        lands = reads and self._landing.area is not None and len(_kinds(peer, plan)) == 1
        return Able(self._landing.chunk if lands else 0, self._packing.limit(peer, "receiver" if reads else "sender"))

    def _landed(
        self, peer: Peer, plan: kvr.Plan, pairing: kvr.Pairing, notice: bytes, predicted: Predicted | None
    ) -> LandedLeg:
        lander = self._landing.lander(plan, peer.transport)
        chunks = pairing.landed_chunks(lander.landed, self._landing.chunk)
        (kind,) = _kinds(peer, plan)
        return LandedLeg(self._agent, peer, self._landing, lander, chunks, kind, notice, predicted)

    def _move(self, peer: Peer, plan: kvr.Plan, piece: Piece, notice: bytes) -> Stage:
        operation = OPERATIONS[plan.direction]
        if piece.ids is not None:
            local, remote = peer.prepared(plan, piece.part)
            handle = self._agent.make_prepared(operation, local, piece.ids[0], remote, piece.ids[1], notice)
        else:
            ours, theirs = zip(piece.lists, piece.memory, strict=True)
            handle = self._agent.make_exact(operation, peer.name, ours, theirs, notice)
        return Stage(handle, piece.ids is not None, piece.posted, piece.bytes)

    def _clear_remote(self, peer: Peer, bare: Rows, memory: str, notice: bytes) -> Stage:
        if self._zeros is None:
            self._zeros = np.zeros(ZEROS, np.uint8)
            self._memory.register(self._zeros)
        # The peer says how long its pages are, and a page may be said to be longer than any memory.
        count = int((bare[:, 1] // np.uint64(ZEROS) + np.uint64(1)).sum())
        if count > MAX_CLEARED:
            raise TransferError(
                f"{count} pieces of {ZEROS} bytes would have to be cleared on peer {peer.name}, over {MAX_CLEARED}"
            )
        pieces = [
            (address + start, min(ZEROS, size - start), device)
            for address, size, device in bare.tolist()
            for start in range(0, size, ZEROS)
        ]
        theirs = np.array(pieces, np.uint64)
        ours = np.zeros_like(theirs)
        ours[:, 0] = self._zeros.ctypes.data
        ours[:, 1] = theirs[:, 1]
        handle = self._agent.make_exact("WRITE", peer.name, (ours, "DRAM"), (theirs, memory), notice)
        return Stage(handle, False, len(theirs), int(theirs[:, 1].sum()))


def _kinds(peer: Peer, plan: kvr.Plan) -> Collection[str]:
    """Kinds of memory of the peer's pages in the plan, which may be narrowed to some layers."""
    return peer.there if len(peer.there) == 1 else {theirs for _, theirs in plan.parts}
