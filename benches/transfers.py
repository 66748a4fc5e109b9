"""Real NIXL between two processes of this host: the same bytes by our choice and by vLLM's lists; the cost model."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from tests.connector_rank import Rank, Spec, publish, request, running

import kvreshard as kvr
from kvreshard.nixl import Connector, Peer
from kvreshard.nixl.calibrate import SIZES, fit, measure
from kvreshard.nixl.issue import choose

from . import stock
from .table import Row, short

SPEC = Spec("there", layers=80, heads=2, total_heads=2, size=128, pages=128)
BLOCKS = 64


def rows() -> Iterator[Row]:
    """Everything that moves bytes."""
    spec = Spec("here", engine="decode", layers=80, heads=2, total_heads=2, size=128, pages=128)
    with Connector("here") as here, running(SPEC) as (there,):
        publish(here, spec, spec.arrays(1))
        peer = here.connect(there.call("metadata"))
        yield from ours_and_theirs(here, peer, there)
        yield from model(here, peer)


def ours_and_theirs(here: Connector, peer: Peer, there: Rank) -> Iterator[Row]:
    """64 blocks of 80 layers by ids of vLLM's rows, and by what the connector chooses."""
    plan = peer.plan("read")
    rng = np.random.default_rng(7)
    orders = {
        "scattered": (rng.permutation(SPEC.pages)[:BLOCKS], rng.permutation(SPEC.pages)[:BLOCKS]),
        "consecutive": (np.arange(BLOCKS), np.arange(BLOCKS) + 32),
    }
    for name, (mine, theirs) in orders.items():
        wanted = request((0, BLOCKS * SPEC.tokens), mine.tolist(), theirs.tolist())
        pairing = plan.pair(wanted)
        ours, stocks = [], []
        for _ in range(11):
            ours.append(moved(here, peer, _ours(here, peer, plan, pairing)))
            if stock.installed():
                stocks.append(moved(here, peer, _theirs(here, peer, mine, theirs)))
        posted, seconds = ours[0][0], statistics.median(one[1] for one in ours)
        beside = "vLLM is not installed"
        if stocks:
            middle = statistics.median(one[1] for one in stocks)
            beside = f"vLLM 0.33's lists: {stocks[0][0]:,} posted, {short(middle)}"
        predicted = sum(piece.posted for piece in choose(plan, pairing))
        what = f"NIXL: {BLOCKS} {name} blocks, 80 layers, 80 MiB, read"
        yield Row(what, f"{posted:,} posted, {short(seconds)}", f"{predicted:,} posted, as predicted", beside)


def moved(here: Connector, peer: Peer, handles: list[Any]) -> tuple[int, float]:
    """Descriptors by NIXL's telemetry, and CPU seconds from post to done: over shared memory the post copies."""
    agent, posted, seconds = here._agent, 0, 0.0
    for handle in handles:
        begun = time.thread_time()
        done = agent.post(handle, peer.name)
        while not done:
            done = agent.done(handle, peer.name)
        seconds += time.thread_time() - begun
        measured = agent.measured(handle)
        posted += measured.posted if measured else 0
        agent.release(handle)
    return posted, seconds


def _ours(here: Connector, peer: Peer, plan: kvr.Plan, pairing: kvr.Pairing) -> list[Any]:
    handles = []
    for piece in choose(plan, pairing):
        if piece.ids is None:
            ours, theirs = zip(piece.lists, piece.memory, strict=True)
            handles.append(here._agent.make_exact("READ", peer.name, ours, theirs, b""))
        else:
            local, remote = peer.prepared(plan, piece.part)
            handles.append(here._agent.make_prepared("READ", local, piece.ids[0], remote, piece.ids[1], b""))
    return handles


def _theirs(here: Connector, peer: Peer, mine: Any, theirs: Any) -> list[Any]:
    def bases(layout: kvr.RankLayout) -> list[int]:
        return [segment.region.base + segment.offset for layer in layout.layers for segment in layer.segments]

    worker = stock.StockWorker(bases(here.layout), bases(peer.layout), SPEC.format.page_bytes, SPEC.pages)
    local, remote = worker.rows()
    ids = worker.ids(mine.tolist(), theirs.tolist())
    prepared = here._agent.prepare(None, local, "DRAM"), here._agent.prepare(peer.name, remote, "DRAM")
    narrow = [side.astype(np.int32) for side in ids]
    return [here._agent.make_prepared("READ", prepared[0], narrow[0], prepared[1], narrow[1], b"")]


def model(here: Connector, peer: Peer) -> Iterator[Row]:
    """Time a descriptor of 256 B to 1 MiB, measured and as the calibrated constants predict it."""
    for operation in ("READ", "WRITE"):
        post, rate = fit(measure(here, peer, operation, sizes=SIZES, clock=time.thread_time))
        sizes = [256 << shift for shift in range(0, 13, 2)]
        for sample in measure(here, peer, operation, sizes=sizes, clock=time.thread_time):
            predicted = sample.posted * post + sample.posted * sample.size / rate
            error = predicted / sample.seconds - 1
            what = f"NIXL: {operation} of {sample.posted:,} descriptors of {sample.size:,} bytes"
            beside = f"predicted {short(predicted)} ({error:+.0%}) from {short(post)} a post and {rate * 1e-9:.2f} GB/s"
            yield Row(what, f"{short(sample.seconds)}, {short(sample.seconds / sample.posted)} each", "", beside)
