"""The constants of the cost model for one live pair: what a posted descriptor costs, and how fast bytes follow.

    time = posted * post + bytes / rate

Spans of the peer's registered memory are read into a buffer of our own, with descriptors of several sizes, and the two
constants fitted to the times. Reading changes nothing on the peer. Writing is measured only where the caller says that
the peer's pages are idle, since what is written there is what was read from there a moment before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import kvreshard as kvr

from .agent import Agent, Operation, Rows
from .buffers import buffer
from .connector import Connector
from .errors import NixlError, TransferError
from .events import Direction
from .passes import fit_passes, measure_passes
from .path import Path, judge
from .peer import Peer

SIZES = (256, 4 << 10, 64 << 10, 1 << 20)
"""Bytes a descriptor. From 1 MiB on the rate alone counts on every transport measured, below 4 KiB the post alone."""

BUFFER = 32 << 20
"""Bytes of our buffer, and the most that one measurement moves."""

PROBE = 8 << 20
"""Bytes of the transfer that a path is timed by."""

MAX_DESCRIPTORS = 2048
TIMEOUT = 30.0

_kept: list[object] = []
"""Buffers of transfers that did not end: bytes may still land in them."""


@dataclass(frozen=True)
class Sample:
    """One measured transfer: `posted` descriptors of `size` bytes each in `seconds`, the median of several."""

    posted: int
    size: int
    seconds: float


def calibrate(
    connector: Connector, peer: Peer, *, repeats: int = 5, idle: bool = False, keep: bool = True
) -> kvr.Transport:
    """Measures a live pair, in about a second on shared memory and a few on TCP, and returns its constants.

    `idle` says that nobody uses the peer's pages meanwhile: writes are measured too, and otherwise taken to cost what
    reads do. With `keep` the peer's requests are planned by the result from now on. What gathering and scattering costs
    is not a matter of the pair: it is measured on host memory, and stays what it was on devices. While this runs the
    connector's lock is held.

    Raises:
        NotConnected: The peer is lost or closed.
        TransferError: A transfer failed, or took more than 30 seconds.
    """
    reads = measure(connector, peer, "READ", repeats=repeats)
    writes = measure(connector, peer, "WRITE", repeats=repeats) if idle else reads
    (read_post, read_rate), (write_post, write_rate) = fit(reads), fit(writes)
    before = kvr.Transport.named(peer.transport) if isinstance(peer.transport, str) else peer.transport
    # The answer to a read of one byte has gone there and back.
    there_and_back = measure(connector, peer, "READ", sizes=(1,), most=1, repeats=max(9, repeats))[0].seconds
    pass_rate, piece = before.pass_bytes_per_us * 1e6, before.pass_piece_ps * 1e-12
    if {region.memory for region in connector.layout.regions} == {"DRAM"}:
        pass_rate, piece = fit_passes(*measure_passes(repeats=repeats))
    found = kvr.Transport(
        read_post_ns=round(read_post * 1e9),
        read_bytes_per_us=max(1, round(read_rate * 1e-6)),
        write_post_ns=round(write_post * 1e9),
        write_bytes_per_us=max(1, round(write_rate * 1e-6)),
        pass_bytes_per_us=max(1, round(pass_rate * 1e-6)),
        pass_piece_ps=round(piece * 1e12),
        pass_ns=before.pass_ns,
        round_trip_ns=round(there_and_back * 1e9),
    )
    if keep:
        peer.transport = found
    return found


def time_path(connector: Connector, peer: Peer, direction: Direction = "read") -> Path:
    """Times transfers of up to 8 MiB in one run, and says in words whether bytes take a long way round.

    Reads change nothing; writes put back what was just read, and are for pages that nobody uses meanwhile. The peer
    must make progress. The connector's lock is held for it.

    Raises:
        NotConnected: The peer is lost or closed.
        TransferError: A transfer failed, or took more than 30 seconds.
    """
    size = min(PROBE, max(region.bytes for region in peer.layout.regions))
    operation: Operation = "READ" if direction == "read" else "WRITE"
    (sample,) = measure(connector, peer, operation, sizes=(size,), most=1)
    return judge(peer, direction, sample.size / sample.seconds)


def fit(samples: Sequence[Sample]) -> tuple[float, float]:
    """Seconds a posted descriptor and bytes a second, by the least squares of relative errors; neither below zero."""
    times = np.array([sample.seconds for sample in samples])
    posted = np.array([float(sample.posted) for sample in samples])
    moved = np.array([float(sample.posted * sample.size) for sample in samples])
    terms = np.stack([posted, moved], axis=1) / times[:, None]
    (post, per_byte), *_ = np.linalg.lstsq(terms, np.ones(len(times)), rcond=None)
    if post < 0:
        post, per_byte = 0.0, float(np.sum(terms[:, 1]) / np.sum(terms[:, 1] ** 2))
    if per_byte <= 0:
        post, per_byte = float(np.sum(terms[:, 0]) / np.sum(terms[:, 0] ** 2)), 1e-15
    return float(post), float(1 / per_byte)


def measure(
    connector: Connector,
    peer: Peer,
    operation: Operation,
    *,
    sizes: Sequence[int] = SIZES,
    most: int = MAX_DESCRIPTORS,
    repeats: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Sample]:
    """Times transfers between a buffer of ours and the peer's regions, one for each descriptor size; writes put back
    what was just read.
    """
    with connector._open():
        peer.require_connected("calibration")
        agent = connector._agent
        home = connector.layout.regions[0]
        kind = peer.layout.regions[0].memory
        regions = [region for region in peer.layout.regions if region.memory == kind]
        ours = _allocate(home.memory, home.device)
        about = buffer(ours).storage
        registration = agent.register(about.base, about.bytes, about.device, about.memory)
        safe = False
        try:
            samples = []
            for size in sizes:
                count = min(most, about.bytes // size, sum(region.bytes // size for region in regions))
                if not count:
                    continue
                times = []
                for turn in range(repeats + 1):
                    local, remote = _rows([about], size, count), _rows(regions, size, count, turn)
                    sides = ((local, about.memory), (remote, kind))
                    if operation == "WRITE":
                        _run(agent, peer.name, "READ", sides, clock)
                    times.append(_run(agent, peer.name, operation, sides, clock))
                # The first one pages memory in and connects.
                samples.append(Sample(count, size, float(np.median(times[1:]))))
            safe = True
            return samples
        finally:
            if safe:
                agent.deregister(registration)
            else:
                _kept.append((ours, registration))


def _allocate(kind: str, device: int) -> Any:
    if kind == "DRAM":
        return np.zeros(BUFFER, np.uint8)
    import torch

    return torch.zeros(BUFFER, dtype=torch.uint8, device=f"cuda:{device}")


def _rows(regions: Sequence[kvr.Region], size: int, count: int, turn: int = 0) -> Rows:
    """`count` descriptors of `size` bytes that do not overlap, spread evenly over the regions.

    Other ones in every turn, where there is room, so that they are not read from a cache.
    """
    rooms = np.array([region.bytes // size for region in regions])
    ends = np.cumsum(rooms)
    slots = (np.arange(count) * int(ends[-1]) // count + turn) % int(ends[-1])
    at = np.searchsorted(ends, slots, side="right")
    rows = np.empty((count, 3), np.uint64)
    rows[:, 0] = np.array([region.base for region in regions], np.uint64)[at]
    rows[:, 0] += ((slots - (ends - rooms)[at]) * size).astype(np.uint64)
    rows[:, 1] = size
    rows[:, 2] = np.array([region.device for region in regions], np.uint64)[at]
    return rows


def _run(
    agent: Agent,
    peer: str,
    operation: Operation,
    sides: tuple[tuple[Rows, str], tuple[Rows, str]],
    clock: Callable[[], float],
) -> float:
    """Seconds from post to done."""
    handle = agent.make_exact(operation, peer, *sides, b"")
    begun, until = clock(), time.monotonic() + TIMEOUT
    ended = agent.post(handle, peer)
    while not ended:
        ended = agent.done(handle, peer)
        if time.monotonic() > until:
            raise TransferError(f"calibration: {len(sides[0][0])} descriptors took more than {TIMEOUT} s", peer=peer)
    seconds = clock() - begun
    try:
        agent.release(handle)
    except NixlError as error:
        raise TransferError(f"calibration: {error}", peer=peer) from error
    return seconds
