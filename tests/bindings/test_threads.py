"""The native module among threads, and over many calls."""

from __future__ import annotations

import functools
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import kvreshard as kvr
from tests.bindings.given import TOKENS, buffers, narrower, only_edge, page, rank, request


@pytest.fixture
def ticks() -> Iterator[list[None]]:
    """Grows whenever another thread runs, which it only can when this one gives the GIL up of its own accord."""
    ticks: list[None] = []
    running = True

    def tick() -> None:
        while running:
            ticks.append(None)
            time.sleep(0)

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=tick)
    thread.start()
    sys.setswitchinterval(1000)
    yield ticks
    sys.setswitchinterval(interval)
    running = False
    thread.join()


def many_pages() -> tuple[kvr.Plan, kvr.Request]:
    pages = 1 << 10
    local, remote = (rank(notation, layers=8, pages=pages) for notation in ("h n k[d] v[d]", "n h k[d] v[d]"))
    ids = np.random.default_rng(0).permutation(pages).astype(np.int32)
    return kvr.plan(local, remote), request(pages * TOKENS - 3, ids, ids)


def of_many_pages(method: Callable[..., object], **keywords: Any) -> Callable[[], object]:
    return functools.partial(method, *many_pages(), **keywords)


def many_layers() -> kvr.RankLayout:
    return rank(layers=4000, pages=1)


# Each takes milliseconds at least: the other thread needs time to wake up.
LONG: dict[str, Callable[[], Callable[[], object]]] = {
    "rows": lambda: kvr.plan(rank(layers=1000), rank("n h k[d] v[d]", layers=1000)).remote_rows,
    "flat": lambda: many_pages()[0].local_flat,
    "ids": lambda: of_many_pages(kvr.Plan.ids),
    "ids, out": lambda: of_many_pages(kvr.Plan.ids, out=buffers(1 << 20)),
    "lists": lambda: of_many_pages(kvr.Plan.lists),
    "posted": lambda: of_many_pages(kvr.Plan.posted),
    "verify": lambda: many_pages()[0].verify,
    "plan": lambda: functools.partial(kvr.plan, many_layers(), many_layers()),
    "route": lambda: functools.partial(
        kvr.route, local=kvr.Engine([many_layers()]), remote=kvr.Engine.uniform(many_layers())
    ),
    "to_bytes": lambda: many_layers().to_bytes,
    "from_bytes": lambda: functools.partial(kvr.RankLayout.from_bytes, many_layers().to_bytes()),
}


@pytest.mark.parametrize("name", LONG)
def test_long_calls_release_the_gil(ticks: list[None], name: str) -> None:
    long_call = LONG[name]()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        before = len(ticks)
        long_call()
        if len(ticks) > before:
            return
    pytest.fail(f"{name} never let another thread run")


# What a handshake and a request of a few layers call.
SHORT: dict[str, Callable[[kvr.RankLayout, kvr.Plan, kvr.Request], object]] = {
    "uniform": lambda layout, plan, wanted: kvr.Engine.uniform(layout),
    "route": lambda layout, plan, wanted: kvr.route(local=kvr.Engine([layout]), remote=kvr.Engine([layout])),
    "plan": lambda layout, plan, wanted: kvr.plan(layout, layout),
    "rows": lambda layout, plan, wanted: (plan.parts, plan.row_count, plan.digest, plan.local_rows()),
    "pair": lambda layout, plan, wanted: plan.pair(wanted),
    "ids": lambda layout, plan, wanted: plan.ids(wanted),
}


@pytest.mark.parametrize("name", SHORT)
def test_short_calls_keep_the_gil(ticks: list[None], name: str) -> None:
    """A thread that gives it up beside one that computes waits for it longer than these calls take."""
    layout = rank(layers=32)
    plan, wanted = kvr.plan(layout, rank(layers=32, side="remote")), request(TOKENS, [1], [2])
    message = layout.to_bytes()
    before = len(ticks)
    for _ in range(100):
        kvr.RankLayout.from_bytes(message)
        SHORT[name](layout, plan, wanted)
    assert len(ticks) == before


def test_a_call_that_keeps_the_gil_is_seen(ticks: list[None]) -> None:
    before = len(ticks)
    sum(range(1_000_000))
    assert len(ticks) == before


def test_objects_are_shared_between_threads() -> None:
    plan, wanted = kvr.plan(rank(), rank("n h k[d] v[d]", side="remote")), request(TOKENS, [1], [2])
    expected = [array.tolist() for array in plan.ids(wanted)]
    wrong: list[object] = []

    def work() -> None:
        for _ in range(50):
            if [array.tolist() for array in plan.ids(wanted)] != expected:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def refused(call: Callable[[], object]) -> None:
    with pytest.raises(kvr.Error):
        call()


LOOPS: dict[str, Callable[[kvr.Plan, kvr.Request], object]] = {
    "formats": lambda plan, wanted: (page(), page().types, repr(page())),
    "layouts": lambda plan, wanted: (rank(), rank().layers, rank().to_bytes()),
    "plans": lambda plan, wanted: kvr.plan(rank(), rank()).local_rows(),
    "ids": lambda plan, wanted: plan.ids(wanted),
    "out": lambda plan, wanted: plan.ids(wanted, buffers(4000)),
    "lists": lambda plan, wanted: plan.lists(wanted),
    "blocks": lambda plan, wanted: kvr.Blocks(np.arange(100)).ids,
    "routes": lambda plan, wanted: only_edge(),
    "errors": lambda plan, wanted: refused(lambda: kvr.plan(rank(), narrower())),
    "refused out": lambda plan, wanted: refused(lambda: plan.ids(wanted, buffers(1))),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_leave_nothing_behind(plan: kvr.Plan, wanted: kvr.Request, name: str) -> None:
    def run(times: int) -> int:
        for _ in range(times):
            LOOPS[name](plan, wanted)
        gc.collect()
        return sys.getallocatedblocks()

    run(20)
    before = run(20)
    after = run(200)
    # A leak of one object a turn would be 200; the interpreter's own caches move by a few.
    assert after - before < 100
