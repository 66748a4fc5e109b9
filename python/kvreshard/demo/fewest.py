"""The fewest runs that can carry a set of elements, found by looking at every one of them.

A run is a stretch of bytes contiguous on both sides. Elements sorted by their local address need a new run exactly
where the next one is not adjacent on both sides, so counting those places gives the minimum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Runs:
    """Runs by ascending local address: byte addresses on both sides and lengths in bytes, each int64 [runs]."""

    local: Ints
    remote: Ints
    lengths: Ints

    def __len__(self) -> int:
        return len(self.local)

    @property
    def bytes(self) -> int:
        """Bytes of all runs together."""
        return int(self.lengths.sum())


def region_labels(addresses: Ints, starts: Ints) -> Ints:
    """Index of the region that each address lies in: int64, for ascending region starts."""
    labels: Ints = np.searchsorted(starts, addresses, side="right").astype(np.int64) - 1
    if len(labels) and labels.min() < 0:
        raise ValueError("an address lies before the first region")
    return labels


def fewest_runs(
    local: Ints,
    remote: Ints,
    element_bytes: int | Ints,
    *,
    local_regions: Ints | None = None,
    remote_regions: Ints | None = None,
    local_pages: Ints | None = None,
    remote_pages: Ints | None = None,
) -> Runs:
    """The fewest runs contiguous on both sides.

    `local` and `remote` are byte addresses of the same elements, int64 of any equal shape; `element_bytes` one size
    or one for each element. `local_regions` and `remote_regions` are the ascending starts of the regions
    (registrations), which no run may cross. `local_pages` and `remote_pages` label each element (any numbering);
    where given, a run stays inside one page of that side. Raises ValueError if two elements share a local byte: each
    needs a place of its own.
    """
    local, remote = np.ravel(local), np.ravel(remote)
    if local.shape != remote.shape:
        raise ValueError(f"{len(local)} local and {len(remote)} remote elements")
    size = np.broadcast_to(np.asarray(element_bytes, dtype=np.int64), local.shape)
    if not len(local):
        return Runs(local, remote, size)
    labels = [np.ravel(pages) for pages in (local_pages, remote_pages) if pages is not None]
    if local_regions is not None:
        labels.append(region_labels(local, local_regions))
    if remote_regions is not None:
        labels.append(region_labels(remote, remote_regions))

    if (local[1:] < local[:-1]).any():
        order = np.argsort(local, kind="stable")
        local, remote, size = local[order], remote[order], size[order]
        labels = [label[order] for label in labels]
    ends = local + size
    if (local[1:] < ends[:-1]).any():
        raise ValueError("two elements share a local byte")
    breaks = (local[1:] != ends[:-1]) | (remote[1:] != remote[:-1] + size[:-1])
    for label in labels:
        breaks |= label[1:] != label[:-1]
    first = np.concatenate(([0], np.flatnonzero(breaks) + 1))
    return Runs(local[first], remote[first], np.add.reduceat(size, first))
