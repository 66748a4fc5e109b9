"""Notices: how the side whose pages are read (or written) learns that it is over.

A reader's last transfer carries a notice; NIXL delivers it once the bytes have arrived, under the reader's agent name.
The producer knows from the route how many readers a request has on this rank and counts distinct names: a retry counts
once.

    consumer 0  --- read, notice(id, readers=2) --->  producer   heard {0}
    consumer 1  --- notice(id, readers=2), no bytes ->           heard {0, 1}  -> Released(id)
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import IntEnum

import msgspec

from .control import MAX_ID, Ask, Confirmed, Done, Gone, Held
from .errors import TransferError
from .events import Arrived, Event, LeaseEnded, Released

log = logging.getLogger(__name__)

VERSION = 3
"""Newest version that is understood: 1 has notices, 2 control messages (`control`) as well, 3 first contact."""

_FORM = 1
"""The form of a notice, unchanged since version 1."""

PREFIX = b"kvreshard\x00"
"""What every notice begins with, so that a host can share its agent's queue."""

MAX_NOTICE = 4096
MAX_RENEWAL = 3_600_000
"""Milliseconds that a lease is prolonged by at a time, at most."""

MAX_EARLY = 16384
"""Ids remembered on each side of their life: heard of before `expect`, and over."""


class Kind(IntEnum):
    """What the sender did with the receiver's pages."""

    READ = 0
    WRITTEN = 1


@dataclass(frozen=True)
class Notice:
    """`kind` of the request `id` is over for the sender, one of `senders` that the route has for it on the receiving
    rank.
    """

    kind: Kind
    id: str
    senders: int


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[int, int, str, int])


def check_id(request: str) -> None:
    """Raises `TransferError` for an id that no notice can carry."""
    if not isinstance(request, str) or not request or len(request.encode("utf-8", "replace")) > MAX_ID:
        raise TransferError(
            f"a request id is a text of 1 to {MAX_ID} bytes, not {request!r:.80}", request=str(request)[:80]
        )


def encode(notice: Notice) -> bytes:
    """The bytes of a notice."""
    return PREFIX + _encoder.encode((_FORM, int(notice.kind), notice.id, notice.senders))


def decode(message: bytes) -> Notice | None:
    """The notice, or `None` for one that is ours but does not decode or is of another version."""
    if len(message) > MAX_NOTICE:
        return None
    try:
        version, kind, request, senders = _decoder.decode(message[len(PREFIX) :])
        if version != _FORM or senders < 1 or len(request) > MAX_ID:
            return None
        return Notice(Kind(kind), request, senders)
    except (msgspec.MsgspecError, ValueError):
        return None


Key = tuple[Kind, str]


@dataclass
class _Awaited:
    senders: int | None
    lease_ends: float | None
    hold: int
    last: float | None
    """No reader can prolong the lease beyond this."""
    heard: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    """Of the reads that were confirmed."""

    @property
    def needed(self) -> int | None:
        """How many must be heard; where both sides name a number, the larger: pages freed late are only late."""
        counts = list(self.heard.values())
        if self.senders is not None:
            counts.append(self.senders)
        return max(counts, default=None)


class Ledger:
    """Who has been heard of which request. Not safe across threads by itself; the connector's lock covers it."""

    def __init__(self) -> None:
        self._awaited: dict[Key, _Awaited] = {}
        self._early: OrderedDict[Key, dict[str, int]] = OrderedDict()
        self._over: OrderedDict[Key, dict[str, int]] = OrderedDict()
        # No two promises of any process of this rank share a number.
        self._holds = itertools.count(time.time_ns())
        self.events: list[Event] = []

    @property
    def awaited(self) -> tuple[str, ...]:
        """Ids still waited for."""
        return tuple(request for _, request in self._awaited)

    def expect(
        self, kind: Kind, request: str, senders: int | None, lease_ends: float | None, last: float | None = None
    ) -> None:
        """Starts waiting; notices that came earlier count. Readers can prolong the lease, until `last` at most."""
        check_id(request)
        key = (kind, request)
        if key in self._awaited:
            raise TransferError(f"request {request} is expected already", request=request)
        if senders is not None and senders < 0:
            raise TransferError(f"request {request}: {senders} senders cannot be expected", request=request)
        self._over.pop(key, None)
        self._awaited[key] = _Awaited(senders, lease_ends, next(self._holds), last, self._early.pop(key, {}))
        self._settle(key)

    def forget(self, request: str) -> bool:
        """Stops waiting, without an event; whether there was anything."""
        keys = [key for key in self._awaited if key[1] == request]
        for key in keys:
            self._remember_over(key, self._awaited.pop(key))
        return bool(keys)

    def is_over(self, kind: Kind, request: str) -> bool:
        """Whether this rank's pages of the request are not held any more, for readers or for writers."""
        return (kind, request) in self._over

    def renew(self, ask: Ask, now: float) -> Held | Gone | None:
        """Prolongs a lease for a reader; `None` while the request is not expected yet, since it may be."""
        key = (Kind.READ, ask.id)
        if key not in self._awaited:
            return Gone(ask.id) if key in self._over else None
        awaited, milliseconds = self._awaited[key], min(ask.milliseconds, MAX_RENEWAL)
        if awaited.lease_ends is not None:
            wanted = now + milliseconds / 1000
            if awaited.last is not None:
                wanted = min(wanted, awaited.last)
            awaited.lease_ends = max(awaited.lease_ends, wanted)
            milliseconds = int((awaited.lease_ends - now) * 1000)
        return Held(ask.id, awaited.hold, max(0, milliseconds))

    def done(self, sender: str, done: Done) -> Confirmed | Gone | None:
        """Counts a reader in that wants to know whether the pages were held until it was done; its answer.

        A read that was counted is confirmed as often as it asks; another read by the same peer is another matter.
        """
        key = (Kind.READ, done.id)
        if key in self._over:
            return Confirmed(done.id) if self._over[key].get(sender) == done.token else Gone(done.id)
        if key not in self._awaited:
            return None
        awaited = self._awaited[key]
        if done.hold not in (0, awaited.hold):
            return Gone(done.id)
        awaited.heard[sender], awaited.tokens[sender] = done.senders, done.token
        self._settle(key)
        return Confirmed(done.id)

    def hear(self, sender: str, message: bytes) -> bool:
        """Counts a message in. False when it is none of ours; ours that does not decode is dropped with a warning."""
        if not message.startswith(PREFIX):
            return False
        notice = decode(message)
        if notice is None:
            log.warning("dropped a notice of %d bytes from %r that does not decode", len(message), sender)
            return True
        key = (notice.kind, notice.id)
        if key in self._awaited:
            self._awaited[key].heard[sender] = notice.senders
            self._settle(key)
        elif key not in self._over:
            self._early.setdefault(key, {})[sender] = notice.senders
            self._early.move_to_end(key)
            while len(self._early) > MAX_EARLY:
                self._early.popitem(last=False)
        return True

    def expire(self, now: float) -> None:
        """Ends leases that ran out by `now`."""
        for key, awaited in list(self._awaited.items()):
            if awaited.lease_ends is not None and awaited.lease_ends <= now:
                self._end(key)

    def void(self) -> None:
        """Ends all leases: the pages are about to be no pages of this rank's. What was heard early is of them, too."""
        self._early.clear()
        for key in list(self._awaited):
            self._end(key)

    def _end(self, key: Key) -> None:
        awaited = self._awaited.pop(key)
        self._remember_over(key, awaited)
        self.events.append(LeaseEnded(key[1], heard=tuple(awaited.heard), needed=awaited.needed))

    def _settle(self, key: Key) -> None:
        awaited = self._awaited[key]
        needed = awaited.needed
        if needed is None or len(awaited.heard) < needed:
            return
        self._remember_over(key, self._awaited.pop(key))
        heard = tuple(awaited.heard)
        kind, request = key
        self.events.append(Released(request, heard) if kind is Kind.READ else Arrived(request, heard))

    def _remember_over(self, key: Key, awaited: _Awaited) -> None:
        self._over[key] = awaited.tokens
        while len(self._over) > MAX_EARLY:
            self._over.popitem(last=False)
