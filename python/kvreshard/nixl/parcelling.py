"""Making parcels: of this rank's own requests, and of what peers ask this rank to take part in."""

from __future__ import annotations

import logging
from collections.abc import Callable

import kvreshard as kvr

from . import clearing, control
from .control import Message, Refused
from .errors import LeaseOver
from .memory import Memory
from .notices import Kind, Ledger
from .order import Order
from .packing import Packing
from .parcels import Parcel, Role, blocks, size, unblocks
from .peer import Peer
from .staging import Fence

log = logging.getLogger(__name__)


class Parcelling:
    """Makes the parcels of one connector."""

    def __init__(
        self, packing: Packing, memory: Memory, ledger: Ledger, say: Callable[[Peer, Message, bool], None]
    ) -> None:
        self._packing, self._memory, self._ledger, self._say = packing, memory, ledger, say
        self._complete: dict[str, Fence] = {}

    def complete_after(self, id: str, fence: Fence | None) -> None:
        """The pages of a request are complete once `fence` is over; readers' parcels wait for it."""
        self._complete = {known: one for known, one in self._complete.items() if not one.over}
        if fence is not None:
            self._complete[id] = fence

    def ours(self, peer: Peer, request: kvr.Request, order: Order, pairing: kvr.Pairing) -> Parcel:
        """The parcel of a request of this side's, paired by its own plan. Raises what planning and pairing raise."""
        role: Role = "receiver" if order.direction == "read" else "sender"
        takes = peer.takes(order.direction)
        layers = None if order.layers is None else tuple(order.layers)
        if role == "receiver":
            plan, paired = peer.plan("read", layers), request
        else:
            # Both sides pack by the receiver's read.
            plan = peer.packed_plan(role, layers, takes)
            paired = kvr.Request(request.tokens, request.remote, request.local, more=request.more)
            pairing = plan.pair(paired)
        limit = self._packing.limit(peer, role)
        kernels = self._packing.workshop.kernels(plan, role)
        chunks = pairing.chunks(kernels.tiles, limit)
        bytes, chunk = size(chunks)
        message = control.Parcel(
            name=self._packing.new_name(),
            id=order.id,
            gather=role == "receiver",
            zero=order.zero,
            tokens=paired.tokens,
            more=paired.more,
            local=blocks(paired.local),
            remote=blocks(paired.remote),
            layers=None if layers is None else list(layers),
            takes=takes,
            limit=limit,
            bytes=bytes,
            chunk=chunk,
            digest=plan.digest,
            generation=peer.generation,
        )
        return Parcel(message.name, order.id, peer, role, chunks, kernels.mover, message, ours=True)

    def theirs(self, peer: Peer, message: control.Parcel) -> None:
        """Takes part in a peer's parcel, or tells it why not."""
        role: Role = "sender" if message.gather else "receiver"
        if self._packing.known(peer, message.name, role):
            return
        try:
            self._packing.accept(self._accepted(peer, role, message))
        except kvr.Error as error:
            log.warning("request %s of peer %s is refused: %s", message.id, peer.name, error)
            self._say(peer, Refused(message.name, str(error)[:1000], isinstance(error, LeaseOver)), False)

    def _accepted(self, peer: Peer, role: Role, message: control.Parcel) -> Parcel:
        if self._ledger.is_over(Kind.READ if role == "sender" else Kind.WRITTEN, message.id):
            raise LeaseOver(f"the pages of request {message.id} are not held any more")
        limit = self._packing.limit(peer, role)
        if message.limit > limit:
            raise kvr.LimitExceeded(f"chunks of {message.limit} bytes, and a slot has {limit}")
        layers = None if message.layers is None else tuple(message.layers)
        plan = peer.packed_plan(role, layers, message.takes, message.digest)
        if plan.digest != message.digest:
            raise kvr.IncompatibleLayout(
                f"the two sides plan request {message.id} differently: {plan.digest:.12} here, "
                f"{message.digest:.12} there"
            )
        request = kvr.Request(message.tokens, unblocks(message.local), unblocks(message.remote), more=message.more)
        pairing = plan.pair(request)
        kernels = self._packing.workshop.kernels(plan, role)
        chunks = pairing.chunks(kernels.tiles, message.limit)
        if size(chunks) != (message.bytes, message.chunk):
            raise kvr.IncompatibleLayout(f"the two sides cut request {message.id} into other chunks")
        clear = None
        if role == "receiver" and message.zero:
            clear = clearing.later(clearing.bare(pairing, peer.here), self._memory)
        after = self._complete.get(message.id) if role == "sender" else None
        return Parcel(
            message.name, message.id, peer, role, chunks, kernels.mover, message, ours=False, clear=clear, after=after
        )
