"""The thread rule: any thread may call anything; each event is delivered once; a waiting poll keeps nobody out."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest

import kvreshard as kvr
from tests.connector_rank import Spec, publish, request, running, wait

pytest.importorskip("nixl")

from kvreshard.nixl import Closed, Connector, Event, Failed, Finished, Freed, NotConnected, Peer, PeerBusy
from kvreshard.nixl.events import Strategy

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


class Hands:
    """Threads at one connector. What they may be refused is expected; anything else that is raised is kept."""

    def __init__(self, here: Connector, *allowed: type[Exception]) -> None:
        self.here, self.allowed = here, allowed
        self.events: list[Event] = []
        self.issued: list[str] = []
        self.failures: list[BaseException] = []
        self.turns: Counter[str] = Counter()
        self.over = threading.Event()
        self.threads: list[threading.Thread] = []

    def start(self, name: str, work: Callable[[int], None], turns: int | None = None) -> None:
        """Does `work` with 0, 1, ... in a thread, `turns` times or until all is over."""

        def run() -> None:
            for turn in count() if turns is None else range(turns):
                if self.over.is_set():
                    return
                try:
                    work(turn)
                    self.turns[name] += 1
                except Closed:
                    return
                except self.allowed:
                    time.sleep(0.001)
                except BaseException as error:
                    self.failures.append(error)
                    return

        self.threads.append(threading.Thread(target=run, name=name))
        self.threads[-1].start()

    def issue(self, call: Callable[..., None], peer: Peer, pages: kvr.Request, id: str, **options: Any) -> None:
        """Reads or writes; takes note of it unless it is refused."""
        call(peer, pages, id=id, **options)
        self.issued.append(id)

    def ends(self) -> Counter[str]:
        """How often each request was said to be over."""
        return Counter(event.id for event in self.events if isinstance(event, (Finished, Failed)))

    def join(self) -> None:
        """Waits for all threads."""
        self.over.set()
        for thread in self.threads:
            thread.join(30)
            assert not thread.is_alive(), thread.name


STAGED: Any = {"staging": 24 * Spec("").format.page_bytes, "slot_bytes": 2 * Spec("").format.page_bytes}


@pytest.mark.parametrize("closing", [False, True], ids=["to the end", "closed in the middle"])
def test_everything_at_once(closing: bool) -> None:
    """Register, connect and disconnect, read, write, expect, ask, and poll in two threads, then close."""
    form = "n h k[d] v[d]"
    spec = Spec("here", engine="decode", pages=16)
    specs = [Spec(f"there-{number}", notation=form, options=STAGED) for number in (0, 1)]
    mine = spec.arrays(1)
    with running(*specs) as ranks, Connector("here", **STAGED) as here:
        publish(here, spec, mine)
        theirs = [rank.spec.arrays(rank.seed) for rank in ranks]
        steady, passing = (rank.call("metadata") for rank in ranks)
        peer = here.connect(steady)
        peer.plan("write")
        # The passing peer is disconnected under those who use it, which they are told.
        hands = Hands(here, NotConnected, PeerBusy)

        def read(thread: int, strategy: Strategy) -> Callable[[int], None]:
            pages = request((0, 32), [2 * thread, 2 * thread + 1], [2 * thread, 2 * thread + 1])
            return lambda turn: hands.issue(here.read, peer, pages, f"{strategy}.{turn}", strategy=strategy)

        def write(turn: int) -> None:
            hands.issue(here.write, peer, request((0, 16), [8], [12]), f"write.{turn}", strategy="direct")

        def come_and_go(turn: int) -> None:
            other = here.connect(passing)
            hands.issue(here.read, other, request((0, 16), [9], [3]), f"passing.{turn}", strategy="direct")
            here.disconnect(other)

        def register(turn: int) -> None:
            # What is registered now may be closed by the next line.
            assert here.register(np.zeros(4096, np.uint8)).bytes == 4096

        def ask(turn: int) -> None:
            here.expect(f"asked.{turn}", readers=1)
            assert here.metadata()
            assert here.forget(f"asked.{turn}")
            here.cancel("no such request")
            assert here.layout.engine == "decode"

        def poll(turn: int) -> None:
            hands.events.extend(here.poll(timeout=0.01))

        strategies: list[Strategy] = ["direct", "landed", "packed"]
        for thread, strategy in enumerate(strategies):
            hands.start(strategy, read(thread, strategy), EACH)
        hands.start("write", write, EACH)
        hands.start("passing", come_and_go, EACH)
        hands.start("register", register, EACH)
        hands.start("ask", ask, EACH)
        for number in range(2):
            hands.start(f"poll {number}", poll)
        until = time.monotonic() + 60
        if closing:
            while len(hands.events) < EACH and time.monotonic() < until:
                time.sleep(0.001)
            here.close(timeout=5.0)
            hands.events.extend(here.poll())
        else:
            while time.monotonic() < until and any(one.is_alive() for one in hands.threads[:-2]):
                time.sleep(0.01)
            while time.monotonic() < until and len(hands.ends()) < len(hands.issued):
                time.sleep(0.01)
        hands.join()
        hands.events.extend(here.poll())
        assert hands.failures == []
        # Each that was issued is over once, and nothing else is.
        assert hands.ends() == Counter(hands.issued)
        assert {type(event) for event in hands.events} <= {Finished, Failed, Freed}
        if closing:
            assert here.in_flight == ()
            return
        assert not [event for event in hands.events if isinstance(event, Failed)]
        for name in (*strategies, "write", "register", "ask"):
            assert hands.turns[name] == EACH, name
        assert hands.turns["passing"] > 0
        shape = (spec.tokens, spec.heads, 2 * spec.size)
        for layer, pages in enumerate(mine):
            for page in range(6):
                wanted = theirs[0][layer][page].view(np.uint16).reshape(shape).swapaxes(0, 1)
                np.testing.assert_array_equal(pages[page].view(np.uint16).reshape(wanted.shape), wanted)
        written = ranks[0].call("pages", during=here)
        for layer, pages in enumerate(mine):
            wanted = pages[8].view(np.uint16).reshape(spec.heads, spec.tokens, 2 * spec.size).swapaxes(0, 1)
            np.testing.assert_array_equal(written[layer][12].view(np.uint16).reshape(wanted.shape), wanted)
