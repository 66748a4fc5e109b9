"""The connector: peers, requests and notices, on top of this rank's memory and layout."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType

import kvreshard as kvr

from . import notices, wire
from .agent import NixlAgent
from .errors import MetadataError, NixlError, NotConnected, PeerLost, TransferError
from .events import Direction, Event
from .flights import Flights
from .issue import Issuer
from .notices import Kind, Ledger, Notice
from .peer import Peer
from .rank import LocalRank

log = logging.getLogger(__name__)

POLL_SECONDS = 0.0002
"""Pause between two looks of a `poll` that waits."""

# Memory and handles of transfers that outlived their connector: freeing either while bytes may land is what must not
# happen.
_outlived: list[object] = []


class Connector(LocalRank):
    """Moves KV pages between this rank and its peers through one NIXL agent.

        with Connector("decode-0") as here:
            here.add_layer("layers.0", tensor, format, totals={"h": 8})
            here.publish(engine="decode", tp=(0, 2))
            peer = here.connect(metadata_of_the_prefill_rank)
            here.read(peer, request, id="42")
            for event in here.poll(timeout=1.0): ...

    Threads: every public method may be called from any thread and holds one lock while it runs, calls into NIXL
    included. So a read or write over shared memory, which NIXL copies inside the call, keeps other threads out until it
    is copied; a `poll` that waits does not, it lets go of the lock between looks. Each event goes to exactly one
    `poll`.

    Progress: with `progress_thread=False` (the default; the thread spins on a core) NIXL advances only inside calls. A
    rank that is read from, too, must then call `poll` regularly, or its peers wait for ever. Notices are sent when the
    issuer's `poll` sees a transfer end.

    A host's agent: given `agent`, the connector uses it, never ends it and never drains its notices: the host passes
    them to `feed`. The host then sees to it that no other thread is inside the agent meanwhile, or created it with
    `NIXL_THREAD_SYNC_RW`.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        agent: NixlAgent | None = None,
        progress_thread: bool = False,
        deadline: float = 30.0,
        telemetry: bool = True,
        threads: int = 0,
    ) -> None:
        """Opens a UCX agent called `name` (a unique one is made up), or uses `agent`.

        `deadline` is how many seconds a request has unless it says otherwise. `threads` is NIXL's pool for large
        transfers.
        """
        super().__init__(name, agent=agent, progress_thread=progress_thread, telemetry=telemetry, threads=threads)
        self._deadline = deadline
        self._issuer = Issuer(self._agent, self._memory)
        self._ledger = Ledger()
        self._peers: dict[str, Peer] = {}
        self._flights = Flights()
        self._left: tuple[str, ...] = ()

    @property
    def in_flight(self) -> tuple[str, ...]:
        """Ids of requests whose pages are not free: under way, or failed and held."""
        with self._lock:
            return self._flights.ids

    # Peers

    def connect(
        self,
        data: bytes,
        *,
        edge: kvr.Edge | None = None,
        direction: Direction | None = "read",
        senders: int = 1,
    ) -> Peer:
        """Connects the rank whose `metadata()` this is, and plans `direction` with it (`None`: plan when first used).

        `edge` is the route's edge between the two; without it everything moves that both hold. `senders` is how many
        notices end a request on that peer: `route.readers` of it.

        The same metadata again gives the same peer (and adds a plan). Other metadata of the same agent, or a lost peer,
        is connected anew: the old `Peer` is void and `PeerBusy` is raised while requests with it are in flight, since
        nothing could tell their end afterwards.
        """
        with self._open():
            told = wire.decode(data)
            if told.name == self.name:
                raise MetadataError("a connector cannot be its own peer", field="name", found=told.name)
            plan = None
            if direction is not None:
                plan = kvr.plan(self.layout, told.layout, edge=edge, direction=direction)
            peer = self._peers.get(told.name)
            if peer is None or not peer.connected or peer.digest != told.digest:
                if peer is not None:
                    self._drop(peer)
                peer = self._add(told, senders)
            peer.senders = senders
            if direction is not None and plan is not None:
                peer.set_plan(direction, plan, edge)
            return peer

    def _add(self, told: wire.Metadata, senders: int) -> Peer:
        added = self._agent.owned or not self._agent.knows(told.name)
        if added:
            name = self._agent.add(told.nixl)
            if name != told.name:
                if name not in self._peers:
                    self._agent.remove(name)
                raise MetadataError(
                    f"peer metadata is of agent {told.name}, the NIXL metadata in it of {name}",
                    field="name",
                    found=name,
                    expected=told.name,
                )
        peer = Peer(self._agent, self.layout, told, added=added, senders=senders)
        self._peers[told.name] = peer
        return peer

    def _drop_peers(self) -> None:
        self._flights.require_idle()
        for peer in list(self._peers.values()):
            self._drop(peer)
        self._issuer = Issuer(self._agent, self._memory)

    def disconnect(self, peer: Peer) -> None:
        """Forgets a peer. Raises `PeerBusy` while requests with it are in flight."""
        with self._open():
            if self._peers.get(peer.name) is peer:
                self._drop(peer)

    def _drop(self, peer: Peer) -> None:
        self._flights.require_idle(peer)
        del self._peers[peer.name]
        peer.close("closed")

    # Requests

    def read(
        self,
        peer: Peer,
        request: kvr.Request,
        *,
        id: str,
        notify: bool | bytes = True,
        deadline: float | None = None,
        zero: bool = True,
        layers: Sequence[str] | None = None,
    ) -> None:
        """Reads `request` from `peer` into this rank's pages; `read_all` with one source."""
        self.read_all([(peer, request)], id=id, notify=notify, deadline=deadline, zero=zero, layers=layers)

    def read_all(
        self,
        sources: Sequence[tuple[Peer, kvr.Request]],
        *,
        id: str,
        notify: bool | bytes = True,
        deadline: float | None = None,
        zero: bool = True,
        layers: Sequence[str] | None = None,
    ) -> None:
        """Reads one request from several sources; `Finished` when all have arrived, `Failed` when one has not.

        `notify` tells each source when its part is over: our notice (peers that do not understand it get none), bytes
        of the caller's own, or `False`. `deadline` in seconds. `zero` clears what the pages own and no source covers.
        `layers` narrows the request to some layers. A request in parts, by layers or by tokens
        (`kvreshard.Request(..., more=True)`), gives each part an id of its own and no notice, and tells the peers by
        `notify` once all parts have finished.

        A refusal (`kvreshard.RequestError`, `NotConnected`, ...) is raised at once with nothing moved; what fails later
        is an event.
        """
        self._issue("read", sources, id, notify, deadline, zero, layers)

    def write(
        self,
        peer: Peer,
        request: kvr.Request,
        *,
        id: str,
        notify: bool | bytes = True,
        deadline: float | None = None,
        zero: bool = True,
        layers: Sequence[str] | None = None,
    ) -> None:
        """Writes `request` from this rank's pages into those of `peer`; `write_all` with one target."""
        self.write_all([(peer, request)], id=id, notify=notify, deadline=deadline, zero=zero, layers=layers)

    def write_all(
        self,
        targets: Sequence[tuple[Peer, kvr.Request]],
        *,
        id: str,
        notify: bool | bytes = True,
        deadline: float | None = None,
        zero: bool = True,
        layers: Sequence[str] | None = None,
    ) -> None:
        """Writes one request to several targets, as `read_all`. After `Failed` a target's pages are undefined, and
        while the local pages are held a target's are too: only this side can tell when it ends.
        """
        self._issue("write", targets, id, notify, deadline, zero, layers)

    def _issue(
        self,
        direction: Direction,
        pairs: Sequence[tuple[Peer, kvr.Request]],
        id: str,
        notify: bool | bytes,
        deadline: float | None,
        zero: bool,
        layers: Sequence[str] | None,
    ) -> None:
        notices.check_id(id)
        with self._open():
            for peer, _ in pairs:
                self._require_mine(peer, id)
            self._flights.issue(
                self._issuer,
                direction,
                [(peer, request, self._notice(peer, direction, id, notify)) for peer, request in pairs],
                id=id,
                deadline=self._deadline if deadline is None else deadline,
                zero=zero,
                layers=None if layers is None else tuple(layers),
            )

    def _require_mine(self, peer: Peer, id: str) -> None:
        peer.require_connected(id)
        if self._peers.get(peer.name) is not peer:
            raise NotConnected(f"peer {peer.name} is of another connector", peer=peer.name, request=id)

    def _notice(self, peer: Peer, direction: Direction, id: str, notify: bool | bytes) -> bytes:
        if isinstance(notify, bytes):
            return notify
        if not notify or not peer.understands_notices:
            return b""
        kind = Kind.READ if direction == "read" else Kind.WRITTEN
        return notices.encode(Notice(kind, id, peer.senders))

    # Notices

    def notify(self, peer: Peer, id: str, *, direction: Direction = "read") -> None:
        """Tells a peer that this rank is done with request `id`, of which it moved nothing (a route's notify-only
        pair).
        """
        notices.check_id(id)
        with self._open():
            self._require_mine(peer, id)
            message = self._notice(peer, direction, id, True)
            if message:
                try:
                    self._agent.notify(peer.name, message)
                except PeerLost as error:
                    self._flights.lose(peer, error)
                    raise

    def expect(
        self, id: str, *, readers: int | None = None, writers: int | None = None, lease: float | None = None
    ) -> None:
        """Waits for `readers` peers to have read request `id` (`Released`), or for `writers` to have written it
        (`Arrived`).

        Notices count by peer, whenever they come, also before this call. A number of `None` is taken from the notices
        themselves. After `lease` seconds `LeaseEnded` says who was heard.
        """
        if (readers is not None) and (writers is not None):
            raise TransferError(f"request {id}: expect readers or writers, not both", request=id)
        kind, senders = (Kind.READ, readers) if writers is None else (Kind.WRITTEN, writers)
        with self._open():
            self._ledger.expect(kind, id, senders, None if lease is None else time.monotonic() + lease)

    def forget(self, id: str) -> bool:
        """Stops expecting request `id`, without an event; whether it was expected."""
        with self._open():
            return self._ledger.forget(id)

    def feed(self, messages: Mapping[str, Sequence[bytes]]) -> dict[str, list[bytes]]:
        """Takes in notices of a host's agent, by sender as NIXL gives them; returns those that are not ours."""
        with self._open():
            rest: dict[str, list[bytes]] = {}
            for sender, sent in messages.items():
                for message in sent:
                    if not self._ledger.hear(sender, message):
                        rest.setdefault(sender, []).append(message)
            return rest

    # Progress

    def poll(self, timeout: float = 0.0) -> list[Event]:
        """Makes progress and returns what happened, each event once; waits up to `timeout` seconds for the first."""
        ends = time.monotonic() + timeout
        while True:
            with self._lock:
                if not self._closed:
                    self._progress()
                events = self._take_events()
                if events or self._closed or time.monotonic() >= ends:
                    return events
            time.sleep(POLL_SECONDS)

    def _progress(self) -> None:
        self._flights.progress()
        if self._agent.owned:
            for sender, messages in self._agent.notices().items():
                for message in messages:
                    if not self._ledger.hear(sender, message):
                        log.warning("dropped %d bytes from %s that are no notice of ours", len(message), sender)
        self._ledger.expire(time.monotonic())

    def _take_events(self) -> list[Event]:
        events = [*self._ledger.events, *self._flights.events]
        self._ledger.events.clear()
        self._flights.events.clear()
        return events

    # The end

    def close(self, timeout: float = 5.0) -> tuple[str, ...]:
        """Ends the connector: waits up to `timeout` seconds for transfers, then lets go of everything it registered or
        prepared.

        Returns the ids of requests that did not come to an end; more than none is also logged. An agent of our own ends
        with the connector, and that stops its transfers (a peer that was mid-answer may see its connection fail). On a
        host's agent nothing can stop them: their memory is kept alive for the rest of the process, and their pages must
        not be used. `poll` still returns the last events. Closing again does nothing.
        """
        with self._lock:
            if self._closed:
                return self._left
            self._left = self._flights.drain(self._progress, timeout, POLL_SECONDS)
            self._closed = True
            if self._left:
                log.error("closing with transfers in flight: %s", ", ".join(self._left))
            self._let_go()
            return self._left

    def _let_go(self) -> None:
        moving = self._flights.abandon()
        stops = self._agent.owned
        ends: list[Callable[[], None]] = []
        if moving and not stops:
            _outlived.append((self._memory.owners, moving, self._agent))
        else:
            ends += [partial(self._agent.release, stage.handle) for _, stage in moving]
        busy = [] if stops else [peer for peer, _ in moving]
        for peer in self._peers.values():
            # A busy peer that is removed would take with it the last means of seeing its transfers end.
            ends.append(partial(setattr, peer, "state", "closed") if peer in busy else partial(peer.close, "closed"))
        self._peers.clear()
        for end in (*ends, self._memory.deregister):
            try:
                end()
            except NixlError as error:
                log.warning("while closing: %s", error)
        if stops:
            self._agent.shut()
            self._flights.end()

    def __enter__(self) -> Connector:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Connector({self.name!r}{', closed' if self._closed else ''})"
