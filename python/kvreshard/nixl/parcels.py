"""One packed request as one side sees it: which of its pages go where in which chunk.

Both sides make it of the same plan, the receiver's read, and so agree about every byte without exchanging one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

import kvreshard as kvr
from kvreshard.kernels import Mover, mover

from . import control
from .errors import NixlError
from .memory import Memory
from .peer import Peer
from .staging import Fence

Role = Literal["receiver", "sender"]

MAX_KERNELS = 256
"""Plans whose kernels are kept."""


@dataclass
class Parcel:
    """A packed request of which this side is the `role`. `began` when the first chunk moved, `state` says how it ended;
    `held` while a kernel is at its pages. Of its chunks so many are `scattered`.
    """

    name: str
    id: str
    peer: Peer
    role: Role
    chunks: list[kvr.Chunk]
    mover: Mover
    message: control.Parcel
    ours: bool
    """Whether this side issued it."""
    clear: Callable[[], None] | None = None
    """Clears what this side's pages own and the request does not cover, for a peer that writes."""
    after: Fence | None = None
    """What its pages must wait for before they are gathered."""
    wanted: bool = False
    began: bool = False
    scattered: int = 0
    state: Literal["open", "done", "failed"] = "open"
    error: NixlError | None = None
    held: bool = False
    next: float = field(default=0.0)
    sent: int = 0

    @property
    def key(self) -> tuple[str, str, Role]:
        """What it is known by."""
        return self.peer.name, self.name, self.role


@dataclass(frozen=True)
class Kernels:
    """Tiles and mover of one side of a plan."""

    plan: kvr.Plan
    tiles: kvr.Tiles
    mover: Mover


class Workshop:
    """Makes the kernels of plans; each once."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._made: dict[tuple[str, Role], Kernels] = {}

    def clear(self) -> None:
        """Forgets them: the memory is about to change."""
        self._made.clear()

    def kernels(self, plan: kvr.Plan, role: Role) -> Kernels:
        """Of the receiver's read `plan`, for this side's `role`."""
        key = (plan.digest, role)
        if key not in self._made:
            if len(self._made) >= MAX_KERNELS:
                # Peers that come back have other addresses, and so other plans.
                self._made.clear()
            side: Literal["local", "remote"] = "local" if role == "receiver" else "remote"
            tiles = plan.packed_tiles(side)
            own = plan.local if role == "receiver" else plan.remote
            self._made[key] = Kernels(plan, tiles, mover(tiles, self._memory.spans(own)))
        return self._made[key]


def blocks(lists: Sequence[kvr.Blocks]) -> list[tuple[int, bytes]]:
    """Lists of blocks, for a message."""
    return [(one.first_token, one.ids.astype("<i4").tobytes()) for one in lists]


def unblocks(lists: Sequence[tuple[int, bytes]]) -> list[kvr.Blocks]:
    """Lists of blocks, from a message."""
    return [kvr.Blocks(np.frombuffer(ids[: len(ids) // 4 * 4], "<i4").astype(np.int32), first) for first, ids in lists]


def size(chunks: Sequence[kvr.Chunk]) -> tuple[int, int]:
    """Bytes and chunk bytes that the ring protocol is told: all chunks as long as the longest, but for the last."""
    if not chunks:
        return 0, 0
    longest = max(chunk.bytes for chunk in chunks)
    return (len(chunks) - 1) * longest + chunks[-1].bytes, longest
