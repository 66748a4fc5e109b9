"""Notices: how the side whose pages are read (or written) learns that it is over.

A reader's last transfer carries a notice; NIXL delivers it once the bytes have arrived, under the reader's agent name.
The producer knows from the route how many readers a request has on this rank and counts distinct names: a retry counts
once.

    consumer 0  --- read, notice(id, readers=2) --->  producer   heard {0}
    consumer 1  --- notice(id, readers=2), no bytes ->           heard {0, 1}  -> Released(id)
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import IntEnum

import msgspec

from .errors import TransferError
from .events import Arrived, Event, LeaseEnded, Released

log = logging.getLogger(__name__)

VERSION = 1
"""Newest version of notices that is understood."""

PREFIX = b"kvreshard\x00"
"""What every notice begins with, so that a host can share its agent's queue."""

MAX_ID = 1024
MAX_NOTICE = 4096
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
    return PREFIX + _encoder.encode((VERSION, int(notice.kind), notice.id, notice.senders))


def decode(message: bytes) -> Notice | None:
    """The notice, or `None` for one that is ours but does not decode or is of another version."""
    if len(message) > MAX_NOTICE:
        return None
    try:
        version, kind, request, senders = _decoder.decode(message[len(PREFIX) :])
        if version != VERSION or senders < 1 or len(request) > MAX_ID:
            return None
        return Notice(Kind(kind), request, senders)
    except (msgspec.MsgspecError, ValueError):
        return None


Key = tuple[Kind, str]


@dataclass
class _Awaited:
    senders: int | None
    lease_ends: float | None
    heard: dict[str, int] = field(default_factory=dict)

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
        self._over: OrderedDict[Key, None] = OrderedDict()
        self.events: list[Event] = []

    @property
    def awaited(self) -> tuple[str, ...]:
        """Ids still waited for."""
        return tuple(request for _, request in self._awaited)

    def expect(self, kind: Kind, request: str, senders: int | None, lease_ends: float | None) -> None:
        """Starts waiting; notices that came earlier count."""
        check_id(request)
        key = (kind, request)
        if key in self._awaited:
            raise TransferError(f"request {request} is expected already", request=request)
        if senders is not None and senders < 0:
            raise TransferError(f"request {request}: {senders} senders cannot be expected", request=request)
        self._over.pop(key, None)
        self._awaited[key] = _Awaited(senders, lease_ends, self._early.pop(key, {}))
        self._settle(key)

    def forget(self, request: str) -> bool:
        """Stops waiting, without an event; whether there was anything."""
        keys = [key for key in self._awaited if key[1] == request]
        for key in keys:
            del self._awaited[key]
            self._remember_over(key)
        return bool(keys)

    def hear(self, sender: str, message: bytes) -> bool:
        """Counts a message in. False when it is none of ours; ours that does not decode is dropped with a warning."""
        if not message.startswith(PREFIX):
            return False
        notice = decode(message)
        if notice is None:
            log.warning("dropped a notice of %d bytes from %s that does not decode", len(message), sender)
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
                del self._awaited[key]
                self._remember_over(key)
                self.events.append(LeaseEnded(key[1], heard=tuple(awaited.heard), needed=awaited.needed))

    def _settle(self, key: Key) -> None:
        awaited = self._awaited[key]
        needed = awaited.needed
        if needed is None or len(awaited.heard) < needed:
            return
        del self._awaited[key]
        self._remember_over(key)
        heard = tuple(awaited.heard)
        kind, request = key
        self.events.append(Released(request, heard) if kind is Kind.READ else Arrived(request, heard))

    def _remember_over(self, key: Key) -> None:
        self._over[key] = None
        while len(self._over) > MAX_EARLY:
            self._over.popitem(last=False)
