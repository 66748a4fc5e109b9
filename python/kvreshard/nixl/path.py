"""Whether bytes take the way they should, judged in words by how fast a long run moves.

UCX says nothing when it falls back to TCP for device memory; half a gigabyte a second is all that shows it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass

from .agent import GET_ZCOPY
from .events import Direction, Telemetry
from .peer import Peer

log = logging.getLogger(__name__)

SLOW = 2e9
"""Bytes a second. Through TCP device memory moved at 0.5 GB/s; any way that is meant for it moves more than this."""

LONG = 1 << 20
"""Bytes a descriptor from which on a transfer tells how fast bytes follow, not how fast descriptors are posted."""

SURE = 2
"""Slow transfers in a row after which it is said: the first one also connects and maps memory."""


@dataclass(frozen=True)
class Path:
    """How fast a long run moves to or from a peer.

    Attributes:
        bytes_per_second: The rate.
        slow: Whether device memory goes a long way round.
        said: What to think of it, in words.
    """

    bytes_per_second: float
    slow: bool
    said: str


def judge(peer: Peer, direction: Direction, rate: float) -> Path:
    """What to think of `rate` bytes a second."""
    what = "reads from" if direction == "read" else "writes to"
    said = f"{what} {peer.name} move {rate / 1e9:.3g} GB/s"
    slow = rate < SLOW and "VRAM" in peer.memory
    if slow:
        said += ": device memory goes a long way round, most likely through TCP. "
        if direction == "read" and os.environ.get(GET_ZCOPY) != "y":
            said += f"Set {GET_ZCOPY}=y before the NIXL agent is made"
        else:
            said += "See that UCX_TLS leaves cuda_ipc or an RDMA transport in, and what `kvreshard doctor` says"
    return Path(rate, slow, said)


def watch(peer: Peer, direction: Direction, measured: Sequence[Telemetry]) -> None:
    """Looks at transfers that NIXL has timed; a slow path is logged, once a peer and direction."""
    if "VRAM" not in peer.memory:
        return
    for one in measured:
        if one.seconds <= 0 or one.bytes < LONG * max(one.posted, 1):
            continue
        found = judge(peer, direction, one.bytes / one.seconds)
        count = peer.slow.get(direction, 0)
        if count < SURE:
            peer.slow[direction] = count + 1 if found.slow else 0
            if peer.slow[direction] == SURE:
                log.warning("%s", found.said)
