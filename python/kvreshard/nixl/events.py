"""What `Connector.poll` reports. Each event is delivered once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import kvreshard as kvr

Direction = Literal["read", "write"]
Strategy = Literal["direct", "landed", "packed"]


@dataclass(frozen=True)
class Telemetry:
    """What one transfer with one peer cost.

    `posted` descriptors after NIXL's merging, `bytes` moved, `post_seconds` until the post returned, `seconds` until
    done; `prepared` tells numbered descriptors of a prepared list from an exact one. Without NIXL's telemetry the
    counts are the plan's and the times 0.
    """

    peer: str
    posted: int
    bytes: int
    post_seconds: float
    seconds: float
    prepared: bool


@dataclass(frozen=True)
class Predicted:
    """What the cost model expected of one peer's part: descriptors posted, bytes moved, seconds."""

    posted: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Share:
    """One peer's part of a request: by what strategy, and what it took.

    `posted` descriptors and `bytes` over the transport, as this side posted them (a packed part of which the peer
    issues the transfers counts what the peer was to post). `seconds` from the first step to the end, scatter included;
    `predicted` is what the cost model expected, where it was asked.
    """

    peer: str
    strategy: Strategy
    posted: int
    bytes: int
    seconds: float
    predicted: Predicted | None = None


@dataclass(frozen=True)
class Finished:
    """Every byte of request `id` is in the pages that it is for, and every peer was told.

    `direction` is the side of this rank: it read, or it wrote. `transfers` are NIXL's, `shares` one a peer.
    """

    id: str
    direction: Direction
    transfers: tuple[Telemetry, ...]
    shares: tuple[Share, ...] = ()

    @property
    def posted(self) -> int:
        """Descriptors posted, over all peers."""
        return sum(one.posted for one in (self.shares or self.transfers))

    @property
    def bytes(self) -> int:
        """Bytes moved, over all peers."""
        return sum(one.bytes for one in (self.shares or self.transfers))

    @property
    def strategies(self) -> tuple[Strategy, ...]:
        """By what strategy each peer's part went."""
        return tuple(one.strategy for one in self.shares)

    @property
    def seconds(self) -> float:
        """Of the slowest peer's part."""
        return max((one.seconds for one in self.shares), default=0.0)


@dataclass(frozen=True)
class Failed:
    """Request `id` failed in its `direction` for a `reason`; what its local pages hold is undefined.

    `pages` is "free" when nothing can write to (or read from) this rank's pages any more. "held" means that a transfer
    is still in flight: the pages must not be used until `Freed` of the same id. `peers` are those that it was with.
    """

    id: str
    direction: Direction
    reason: kvr.Error
    pages: Literal["held", "free"]
    peers: tuple[str, ...]


@dataclass(frozen=True)
class Freed:
    """The transfers of the failed request `id`, of this `direction`, have ended: its held pages are free."""

    id: str
    direction: Direction


@dataclass(frozen=True)
class Released:
    """All `readers` of request `id` have read this rank's pages, which are free."""

    id: str
    readers: tuple[str, ...]


@dataclass(frozen=True)
class Arrived:
    """All `writers` of request `id` have written into this rank's pages, which are complete."""

    id: str
    writers: tuple[str, ...]


@dataclass(frozen=True)
class LeaseEnded:
    """The time given to `expect` for request `id` is over, and only `heard` of `needed` peers were heard.

    A peer that was not heard may still be at it: a late reader would read pages of another request, a late writer would
    write into them.
    """

    id: str
    heard: tuple[str, ...]
    needed: int | None


@dataclass(frozen=True)
class PeerDown:
    """The connection to a peer is gone, for a `reason`.

    `requests` were in flight with it; each is reported as `Failed` as well.
    """

    peer: str
    reason: kvr.Error
    requests: tuple[str, ...]


Event = Finished | Failed | Freed | Released | Arrived | LeaseEnded | PeerDown
"""Any of what `Connector.poll` reports."""
