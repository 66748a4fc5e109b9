"""Landing: spans of the peer's pages are read as the peer built them, and rearranged into ours by the receiver.

Where two interiors share only short runs, a descriptor for each would take longer than the bytes. So spans of the
peer's pages are read into staging memory and scattered from there. Which byte goes where is the planner's.

    peer's pages --READ, whole--> staging (peer's format) --scatter--> our pages

The scatter reads staging and writes pages that the request owns, so doing it twice does no harm.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import torch

import kvreshard as kvr
from kvreshard.kernels import Mover, mover
from kvreshard.vllm.pairs import Pair
from kvreshard.vllm.staging import Buffer


class Landing:
    """How the pages of one plan are landed.

    Attributes:
        landed: What is read of each page, and the tiles that scatter it.
        memory: The kind of the peer's memory.
    """

    def __init__(self, plan: kvr.Plan, caches: Collection[torch.Tensor]) -> None:
        self.landed = plan.landed()
        self.memory = plan.remote.regions[0].memory
        self._mover: Mover = mover(self.landed.tiles, list(caches))

    def scatter(self, work: kvr.LandedChunk, buffer: Buffer) -> None:
        """Rearranges what was read into our pages."""
        self._mover.scatter(work, buffer.memory)
        buffer.settle()


class Landings:
    """How a pull rearranges: in staging buffers of `size` bytes, into the pages of `caches`."""

    def __init__(self, caches: Collection[torch.Tensor], size: int) -> None:
        self._caches, self._size = caches, size

    def price(self, pair: Pair, request: kvr.Request, transport: kvr.Transport) -> kvr.Cost | None:
        """What a request costs; `None` where its pages cannot be landed."""
        costs = pair.plan.costs(request, transport=transport, packs=False, chunk=self._size)
        return next((cost for cost in costs if cost.strategy == "landed"), None)

    def prepare(self, pair: Pair) -> Landing:
        """What lands the pages of a pair.

        Raises:
            kvreshard.LimitExceeded: A piece that is read at once does not fit a buffer.
        """
        landing = Landing(pair.plan, self._caches)
        largest = max(landing.landed.spans, default=0)
        if largest > self._size:
            raise kvr.LimitExceeded(
                f"{largest} bytes of a page are read at once, and a staging buffer has {self._size}: "
                "raise staging_bytes"
            )
        return landing


@dataclass
class Chunk:
    """Some spans of a peer's pages, read in one go.

    Attributes:
        landing: How they are landed.
        work: What is read, and what is scattered from it.
        agent: The NIXL agent that they are read from.
        buffer: Where they are read into, once they are.
    """

    landing: Landing
    work: kvr.LandedChunk
    agent: str
    buffer: Buffer | None = None


@dataclass
class Job:
    """What is left of one request.

    Attributes:
        waiting: Chunks not read yet.
        reading: Chunks being read, by transfer handle.
    """

    waiting: list[Chunk] = field(default_factory=list)
    reading: dict[int, Chunk] = field(default_factory=dict)


def exact(
    wrapper: Any, operation: str, lists: tuple[Any, Any], memory: tuple[str, str], agent: str, news: bytes = b""
) -> Any:
    """A transfer of exact lists, uint64 `(N, 3)` each with its kind of memory; made, not started."""
    local, remote = (wrapper.get_xfer_descs(rows, kind) for rows, kind in zip(lists, memory, strict=True))
    return wrapper.initialize_xfer(operation, local, remote, agent, notif_msg=news)
