"""The connector: peers, requests and notices, on top of this rank's memory and layout."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

import kvreshard as kvr

from . import notices, wire
from .agent import NixlAgent
from .contact import FirstContact
from .control import Flow, Void
from .errors import MetadataError, NixlError, NotConnected, PeerBusy, PeerLost
from .events import Direction, Event, LeaseEnded
from .flights import Flights
from .issue import Issuer
from .leases import Lease
from .listener import POLL_SECONDS, Listener
from .meeting import Meeting
from .notices import Kind, Notice
from .order import Options, Order, fenced
from .peer import Peer
from .staging import Fence
from .strategy import TRANSPORTS

if TYPE_CHECKING:
    from typing_extensions import Unpack

log = logging.getLogger(__name__)

LISTENS = 4
"""How often one round of progress listens at most: what is taken in may take long, and what came meanwhile goes on from
there.
"""

# Memory and handles of transfers that outlived their connector: freeing either while bytes may land is what must not
# happen.
_outlived: list[object] = []


class Connector(Listener):
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
        staging: int = 0,
        slot_bytes: int | None = None,
        transport: str | kvr.Transport | None = None,
        fence: bool = False,
        flow: Flow = "push",
    ) -> None:
        """Opens a UCX agent called `name` (a unique one is made up), or uses `agent`.

        `deadline` is how many seconds a request has unless it says otherwise. `threads` is NIXL's pool for large
        transfers. `staging` bytes beside the pages, in slots of `slot_bytes`, let requests be landed and packed; a
        page of a peer must fit a slot. `transport` is what costs are worked out for, unless a peer has its own: a
        measured one by name, or a calibrated one; by default that of the memory's kind. `fence` fences every read of
        peers that can be (see `Options`). `flow` is who issues the transfers of requests that come here packed: "push"
        has the peer write into this rank's slots, "pull" has this rank read the peer's.
        """
        super().__init__(
            name,
            agent=agent,
            progress_thread=progress_thread,
            telemetry=telemetry,
            threads=threads,
            staging=staging,
            slot_bytes=slot_bytes,
            flow=flow,
        )
        self._deadline = deadline
        self._transport = transport
        self._fence = fence
        self._issuer = self._new_issuer()
        self._flights = Flights(self._landing, self._packing, self._leases)
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
        first_contact: FirstContact | None = None,
    ) -> Peer:
        """Connects the rank whose `metadata()` this is, and plans `direction` with it (`None`: plan when first used).

        `edge` is the route's edge between the two; without it everything moves that both hold. `senders` is how many
        notices end a request on that peer: `route.readers` of it.

        The same metadata again gives the same peer (and adds a plan). Other metadata of the same agent, or a lost peer,
        is connected anew: the old `Peer` is void and `PeerBusy` is raised while requests with it are in flight, since
        nothing could tell their end afterwards.

        `first_contact` moves marked scratch pages before the peer is given out, and raises
        `kvreshard.probe.WriterMismatch` where the reading engine does not find the marks; the peer is then forgotten. A
        push is answered by the target, which must have called `expect_contacts` and poll. The call waits for one
        transfer, and for that answer, with the lock held.
        """
        with self._open():
            told = wire.decode(data)
            if told.name == self.name:
                raise MetadataError("a connector cannot be its own peer", field="name", found=told.name)
            plan = None
            if direction is not None:
                plan = kvr.plan(self.layout, told.layout, edge=edge, direction=direction)
            peer = self._connected(told)
            peer.senders = senders
            if direction is not None and plan is not None:
                peer.set_plan(direction, plan, edge)
            if first_contact is not None:
                self._meet_first(peer, direction, edge, first_contact)
            return peer

    def _meet_first(
        self, peer: Peer, direction: Direction | None, edge: kvr.Edge | None, contact: FirstContact
    ) -> None:
        meeting = Meeting(
            self.layout,
            peer,
            contact,
            edge,
            self._issue,
            self._flights.events,
            self._progress,
            self.say,
            self._meetings,
        )
        try:
            meeting.hold(direction, owned=self._agent.owned)
        except BaseException:
            # Held pages keep their peer until `Freed`.
            with suppress(PeerBusy):
                self.disconnect(peer)
            raise

    def _connected(self, told: wire.Metadata) -> Peer:
        peer = self._peers.get(told.name)
        if peer is not None and peer.connected and peer.digest == told.digest:
            return peer
        if peer is not None:
            self._drop(peer)
        return self._add(told)

    def _add(self, told: wire.Metadata) -> Peer:
        added = self._agent.owned or not self._agent.knows(told.name)
        if added:
            name = self._agent.add(told.nixl, told.name)
            if name != told.name:
                if name not in self._peers:
                    self._agent.remove(name)
                raise MetadataError(
                    f"peer metadata is of agent {told.name}, the NIXL metadata in it of {name}",
                    field="name",
                    found=name,
                    expected=told.name,
                )
        # Device memory, where there is any.
        transport = self._transport or TRANSPORTS[max(region.memory for region in self.layout.regions)]
        peer = Peer(self._agent, self.layout, told, added=added, senders=1, transport=transport)
        self._peers[told.name] = peer
        return peer

    def _part(self) -> None:
        self._flights.require_idle()
        if self._layout is not None:
            for name, peer in list(self._peers.items()):
                if peer.understands_control:
                    self._answer(name, Void(self._layout.generation))
        self._ledger.void()

    def _drop_peers(self) -> None:
        self._flights.require_idle()
        for peer in list(self._peers.values()):
            self._drop(peer)
        self._issuer = self._new_issuer()

    def _new_issuer(self) -> Issuer:
        return Issuer(self._agent, self._memory, self._landing, self._packing, self._parcelling)

    def gone(self, name: str) -> None:
        """The host knows that the process of a peer, an agent called `name`, has ended: it is lost, if it was not, and
        forgotten, and slots of this rank's that it might still have written or read are free again.

        For processes that come and go under ever new names: NIXL says nothing of a peer that ends while nothing is
        under way with it.
        """
        with self._open():
            peer = self._peers.get(name)
            if peer is not None:
                self._flights.lose(peer, PeerLost(f"peer {name} has ended, as the host says", peer=name))
            self._packing.gone(name)

    def disconnect(self, peer: Peer) -> None:
        """Forgets a peer. Raises `PeerBusy` while requests with it are in flight."""
        with self._open():
            if self._peers.get(peer.name) is peer:
                self._drop(peer)

    def _drop(self, peer: Peer) -> None:
        self._flights.require_idle(peer)
        del self._peers[peer.name]
        self._packing.lose(peer)
        peer.close("closed")

    # Requests

    def read(self, peer: Peer, request: kvr.Request, *, id: str, **options: Unpack[Options]) -> None:
        """Reads `request` from `peer` into this rank's pages; `read_all` with one source."""
        self.read_all([(peer, request)], id=id, **options)

    def read_all(self, sources: Sequence[tuple[Peer, kvr.Request]], *, id: str, **options: Unpack[Options]) -> None:
        """Reads one request from several sources; `Finished` when all have arrived, `Failed` when one has not.

        `options` are those of `Options`: `notify`, `deadline`, `zero`, `layers`, `wait`, `strategy`, `fence`. A request
        in parts, by layers or by tokens (`kvreshard.Request(..., more=True)`), gives each part an id of its own and no
        notice, and tells the peers by `notify` once all parts have finished.

        A refusal (`kvreshard.RequestError`, `NotConnected`, ...) is raised at once with nothing moved; what fails later
        is an event.
        """
        self._issue(Order(id, "read", **options), sources)

    def write(self, peer: Peer, request: kvr.Request, *, id: str, **options: Unpack[Options]) -> None:
        """Writes `request` from this rank's pages into those of `peer`; `write_all` with one target."""
        self.write_all([(peer, request)], id=id, **options)

    def write_all(self, targets: Sequence[tuple[Peer, kvr.Request]], *, id: str, **options: Unpack[Options]) -> None:
        """Writes one request to several targets, as `read_all`. After `Failed` a target's pages are undefined, and
        while the local pages are held a target's are too: only this side can tell when it ends.
        """
        self._issue(Order(id, "write", **options), targets)

    def _issue(self, order: Order, pairs: Sequence[tuple[Peer, kvr.Request]]) -> None:
        notices.check_id(order.id)
        with self._open():
            for peer, _ in pairs:
                self._require_mine(peer, order.id)
            fence = fenced(order, [peer for peer, _ in pairs], self._fence)
            parts = [
                (peer, request, b"" if fence else self._notice(peer, order.direction, order.id, order.notify))
                for peer, request in pairs
            ]
            leases = [self._leases.open(Lease(peer, order.id, self)) for peer, _ in pairs] if fence else []
            deadline = self._deadline if order.deadline is None else order.deadline
            try:
                after = Fence.now(self._devices) if order.wait else None
                self._flights.issue(self._issuer, order, parts, leases, deadline=deadline, after=after)
            except kvr.Error:
                self._leases.close(leases)
                raise

    def cancel(self, id: str) -> bool:
        """Gives up a request of this connector: `Failed` with `Cancelled` follows, and `Freed` where pages are held.

        False when there is no such request, or it has failed already.
        """
        with self._open():
            return self._flights.cancel(id)

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
        unreachable, self._unreachable = self._unreachable, []
        for peer, error in unreachable:
            self._flights.lose(peer, error)
        void, self._void = self._void, []
        for peer, error in void:
            self._flights.lose(peer, error, ended=False)
        self._flights.progress()
        closed, self._flights.closed = self._flights.closed, []
        for peer in closed:
            if self._peers.get(peer.name) is peer:
                del self._peers[peer.name]
        if self._agent.owned:
            for _ in range(LISTENS):
                told = self._agent.notices()
                for sender, messages in told.items():
                    for message in messages:
                        if not self._hear(sender, message):
                            log.warning("dropped %d bytes from %r that are no notice of ours", len(message), sender)
                if not told:
                    break
        self._ledger.expire(time.monotonic())
        for event in self._ledger.events:
            if isinstance(event, LeaseEnded):
                self._packing.withdraw(event.id)

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
        self._leases.clear()
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
