"""The thread rule: any thread may call anything; each event is delivered once; a waiting poll keeps nobody out."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from tests.connector_rank import Spec, publish, request, running, wait

pytest.importorskip("nixl")

from kvreshard.nixl import Connector, Event, Finished

THREADS = 4
EACH = 40


def test_threads_share_a_connector() -> None:
    spec = Spec("here", engine="decode", pages=THREADS)
    mine = spec.arrays(1)
    with running(Spec("there", pages=THREADS)) as (there,), Connector("here") as here:
        publish(here, spec, mine)
        theirs = there.call("pages")
        peer = here.connect(there.call("metadata"))
        events: list[list[Event]] = [[] for _ in range(THREADS)]
        failures: list[BaseException] = []
        stop = threading.Event()

        def reads(thread: int) -> None:
            try:
                for number in range(EACH):
                    here.read(peer, request((0, 16), [thread], [thread]), id=f"{thread}.{number}")
                    events[thread] += here.poll(timeout=0.001)
                    assert here.regions
                while not stop.is_set():
                    events[thread] += here.poll(timeout=0.01)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=reads, args=(thread,)) for thread in range(THREADS)]
        for thread in threads:
            thread.start()
        ends = time.monotonic() + 30
        while sum(map(len, events)) < THREADS * EACH and not failures and time.monotonic() < ends:
            time.sleep(0.01)
        stop.set()
        for thread in threads:
            thread.join(10)
        assert failures == []
        delivered = [event for some in events for event in some]
        assert all(isinstance(event, Finished) for event in delivered)
        ids = [event.id for event in delivered if isinstance(event, Finished)]
        assert sorted(ids) == sorted(f"{thread}.{number}" for thread in range(THREADS) for number in range(EACH))
        for layer in range(spec.layers):
            np.testing.assert_array_equal(mine[layer], theirs[layer])


def test_a_waiting_poll_keeps_nobody_out() -> None:
    spec = Spec("here", engine="decode")
    with running(Spec("there")) as (there,), Connector("here") as here:
        publish(here, spec, spec.arrays(1))
        peer = here.connect(there.call("metadata"))
        got: list[Event] = []
        waiting = threading.Thread(target=lambda: got.extend(here.poll(timeout=20)))
        waiting.start()
        time.sleep(0.05)
        started = time.monotonic()
        here.read(peer, request((0, 16), [1], [1]), id="r")
        waiting.join(20)
        assert time.monotonic() - started < 10
        assert [type(event) for event in got] == [Finished]


def test_closing_under_a_waiting_poll_ends_it() -> None:
    here = Connector("here")
    got: list[list[Event]] = []
    waiting = threading.Thread(target=lambda: got.append(here.poll(timeout=60)))
    waiting.start()
    time.sleep(0.05)
    here.close()
    waiting.join(10)
    assert got == [[]]


def test_with_the_progress_thread_a_rank_need_not_poll_to_be_read() -> None:
    spec = Spec("here", engine="decode")
    mine = spec.arrays(1)
    theirs = spec.arrays(2)
    with Connector("busy", progress_thread=True) as busy, Connector("here") as here:
        publish(busy, Spec("busy"), theirs)
        publish(here, spec, mine)
        peer = here.connect(busy.metadata())
        here.read(peer, request((0, 16), [1], [2]), id="r")
        wait(here, "Finished")
        np.testing.assert_array_equal(mine[0][1], theirs[0][2])
