"""What this rank hears from its peers: who has read its pages, who has written them, and who wants them held."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import kvreshard as kvr

from . import control, wire
from .contact import Read
from .control import Ask, Confirmed, Done, Found, Gone, Held, Hello, Join, Marked, Message, Parcel, Refused, Void
from .errors import NixlError, PeerLost, TransferError
from .landing import Landing
from .leases import Leases
from .meetings import Meetings, Scratch
from .notices import Kind, Ledger
from .packing import PREFIX, Packing
from .parcelling import Parcelling
from .peer import Peer
from .rank import LocalRank
from .staging import Area, Fence, Size, area, devices, home

if TYPE_CHECKING:
    from typing_extensions import Self

    from kvreshard.probe import Source

log = logging.getLogger(__name__)

POLL_SECONDS = 0.0002
"""Pause between two looks of a `poll` that waits."""


class Listener(LocalRank, ABC):
    """The half of `Connector` that waits for peers and answers them."""

    def __init__(
        self, name: str | None = None, *, staging: int, slot_bytes: int | None, flow: control.Flow, **options: Any
    ) -> None:
        if staging:
            # What cannot be is refused before there is an agent.
            Size.of(staging, slot_bytes)
        self._staging = staging, slot_bytes
        super().__init__(name, **options)
        self._ledger = Ledger()
        self._leases = Leases()
        self._meetings = Meetings()
        self._peers: dict[str, Peer] = {}
        self._unreachable: list[tuple[Peer, NixlError]] = []
        self._void: list[tuple[Peer, NixlError]] = []
        """Peers that are there, and have given up the registration that they were connected by."""
        self._landing = Landing(self._agent, self._memory)
        self._packing = Packing(self._agent, self._memory, flow, self._tell, self._lost)
        self._parcelling = Parcelling(self._packing, self._memory, self._ledger, self._tell)
        self._areas: list[Area] = []
        self._devices: frozenset[int] = frozenset()

    def _open_staging(self, layout: kvr.RankLayout | None) -> None:
        # Scratch blocks are blocks of a layout.
        self._meetings.scratch = None
        self._devices = devices(layout) if layout is not None else frozenset()
        total, slot_bytes = self._staging
        where = home(layout) if layout is not None and total else None
        if self._areas and self._areas[0].home != where:
            self._areas = []
        if not self._areas and where is not None:
            made: list[Area] = []
            try:
                for size in Size.of(total, slot_bytes, where[0]).shares():
                    made.append(area(size, where, self._memory))
            except BaseException:
                # All of them or none: what remains registered would be nobody's.
                for one in made:
                    self._memory.drop(one.region)
                raise
            self._areas = made
        self._landing.open(self._areas[0] if self._areas else None)
        both = self._areas[1:]
        self._packing.open_rings({"receiver": both[0], "sender": both[1]} if both else {})

    def _rings(self) -> wire.Rings | None:
        return self._packing.rings

    def expect(
        self,
        id: str,
        *,
        readers: int | None = None,
        writers: int | None = None,
        lease: float | None = None,
        longest: float | None = None,
    ) -> None:
        """Waits for `readers` peers to have read request `id` (`Released`), or for `writers` to have written it
        (`Arrived`).

        Notices count by peer, whenever they come, also before this call. A number of `None` is taken from the notices
        themselves. After `lease` seconds `LeaseEnded` says who was heard; readers that fence their reads prolong it
        while they live, up to `longest` seconds from now (without one, for as long as they live).

        Pages in device memory that are to be read may still be written by what the current stream of this thread was
        given before: packed readers get them when that is done. Whoever reads them by itself must not be told of the
        request earlier.
        """
        if (readers is not None) and (writers is not None):
            raise TransferError(f"request {id}: expect readers or writers, not both", request=id)
        kind, senders = (Kind.READ, readers) if writers is None else (Kind.WRITTEN, writers)
        now = time.monotonic()
        with self._open():
            ends, last = (None if seconds is None else now + seconds for seconds in (lease, longest))
            self._ledger.expect(kind, id, senders, ends, last)
            if writers is None:
                self._parcelling.complete_after(id, Fence.now(self._devices))

    def forget(self, id: str) -> bool:
        """Stops expecting request `id`, without an event; whether it was expected. Fenced reads of it then fail."""
        with self._open():
            self._packing.withdraw(id)
            return self._ledger.forget(id)

    def expect_contacts(
        self,
        blocks: Sequence[kvr.Blocks] | None,
        read: Read | None = None,
        *,
        sources: Mapping[str, Source] | None = None,
    ) -> None:
        """Lets peers that push make first contact: they may write marked pages into scratch `blocks` (one list a
        group), which nobody else uses, and `read(layer, page)` says what this engine finds there.

        `read` and `sources` are as in `FirstContact`. It is called where progress is made, with the lock held, once a
        page of a layer that a peer has marked; what it raises is that peer's answer. `blocks` of `None` ends it, and so
        does another layout.
        """
        with self._open():
            if blocks is None or read is None:
                self._meetings.scratch = None
                return
            if len(blocks) != len(self.layout.groups):
                raise kvr.RequestError(
                    f"blocks of {len(blocks)} groups are given, the layout has {len(self.layout.groups)}"
                )
            self._meetings.scratch = Scratch(list(blocks), read, sources)

    def feed(self, messages: Mapping[str, Sequence[bytes]]) -> dict[str, list[bytes]]:
        """Takes in notices of a host's agent, by sender as NIXL gives them; returns those that are not ours."""
        with self._open():
            rest: dict[str, list[bytes]] = {}
            for sender, sent in messages.items():
                for message in sent:
                    if not self._hear(sender, message):
                        rest.setdefault(sender, []).append(message)
            return rest

    def _hear(self, sender: str, message: bytes) -> bool:
        """Takes a message in; false when it is none of ours."""
        if message.startswith(PREFIX):
            self._packing.frame(sender, message)
            return True
        if not control.is_control(message):
            return self._ledger.hear(sender, message)
        told = control.decode(message)
        if told is None:
            log.warning("dropped a control message of %d bytes from %r that does not decode", len(message), sender)
            return True
        now = time.monotonic()
        match told:
            case Hello():
                self._meet(sender, told.metadata)
            case Void():
                self._registered_anew(sender, told.generation)
            case Ask() | Done() | Join() | Parcel() if self._is_void(told.generation):
                # Whoever goes by addresses of another registration is not to hear that all is well.
                self._answer(sender, Void(told.generation))
            case Ask():
                self._answer(sender, self._ledger.renew(told, now))
            case Done():
                self._answer(sender, self._ledger.done(sender, told))
            case Held() | Gone() | Confirmed():
                self._leases.hear(sender, told, now)
            case Join() | Parcel() | Refused():
                self._pack(sender, told)
            case Marked():
                peer = self._peers.get(sender)
                self._answer(sender, self._meetings.answer(self.layout, peer, told) if peer is not None else None)
            case Found():
                self._meetings.hear(told)
        return True

    def _pack(self, sender: str, message: Join | Parcel | Refused) -> None:
        peer = self._peers.get(sender)
        if peer is None or not peer.connected:
            # It introduces itself, and says it again.
            return
        match message:
            case Join():
                self._packing.join(peer, message)
            case Parcel():
                self._parcelling.theirs(peer, message)
            case Refused():
                self._packing.refused(peer, message)

    def _meet(self, sender: str, metadata: bytes) -> None:
        """A peer introduces itself, so that it can be answered. What it says is believed as far as `connect` does."""
        try:
            told = wire.decode(metadata)
            if told.name != sender:
                log.warning("%r introduced itself as %r", sender, told.name)
                return
            known = self._peers.get(sender)
            if known is not None and known.connected and known.registered_as(told):
                # It may have registered more since, of which this rank needs nothing: no reason to begin anew.
                return
            self._connected(told)
        except kvr.Error as error:
            log.warning("could not connect %r, which introduced itself: %s", sender, error)

    def _is_void(self, generation: int) -> bool:
        return self._layout is None or generation not in (0, self._layout.generation)

    def _registered_anew(self, sender: str, generation: int) -> None:
        peer = self._peers.get(sender)
        if peer is not None and peer.connected and peer.generation == generation:
            error = PeerLost(
                f"peer {sender} has given up its registration {generation}: what it told of its memory is void",
                peer=sender,
                field="generation",
                found=generation,
                remedy="connect() with the peer's current metadata",
            )
            self._void.append((peer, error))

    @abstractmethod
    def _connected(self, told: wire.Metadata) -> Peer:
        """Connects the peer that introduced itself."""

    @abstractmethod
    def _progress(self) -> None:
        """Carries on with all that is under way."""

    @contextmanager
    def serve(self) -> Iterator[Self]:
        """Makes progress in a thread of its own while the body runs, for a host that does not `poll` for a while.

        Peers are answered, packed chunks gathered and scattered; what happens is kept for `poll`.
        """
        over = threading.Event()

        def work() -> None:
            while not over.wait(POLL_SECONDS):
                with self._lock:
                    if self._closed:
                        return
                    self._progress()

        thread = threading.Thread(target=work, name=f"kvreshard {self.name}", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            over.set()
            thread.join()

    # Speaking

    def say(self, peer: Peer, message: Message, *, again: bool = False) -> None:
        """Sends a control message; introduces this rank first, and once more when there was no answer."""
        try:
            if again or not peer.introduced:
                peer.introduced = True
                self._agent.notify(peer.name, control.encode(Hello(self.metadata())))
            self._agent.notify(peer.name, control.encode(message))
        except PeerLost as error:
            self._unreachable.append((peer, error))
        except NixlError as error:
            log.warning("peer %s: %s", peer.name, error)

    def _tell(self, peer: Peer, message: Message, again: bool) -> None:
        self.say(peer, message, again=again)

    def _lost(self, peer: Peer, error: NixlError) -> None:
        self._unreachable.append((peer, error))

    def _answer(self, sender: str, message: Message | None) -> None:
        peer = self._peers.get(sender)
        if message is None or peer is None or not peer.connected:
            # Whoever asked asks again, with an introduction.
            return
        try:
            self._agent.notify(sender, control.encode(message))
        except PeerLost as error:
            self._unreachable.append((peer, error))
        except NixlError as error:
            log.warning("peer %s: %s", sender, error)
