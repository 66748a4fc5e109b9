"""The stage of every fault: this process reads and writes, one rank process is hit, another one must not notice."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

import kvreshard as kvr
from kvreshard.nixl import Connector, Failed, Freed, PeerDown
from kvreshard.nixl.order import Options
from kvreshard.nixl.peer import Peer
from tests.connector_rank import Bytes, Plain, Rank, Spec, publish, running, to_request

# Over TCP a transfer needs its peer's process, so stopping that holds the transfer; shared memory would not notice.
# NIXL makes no agent beside an NVIDIA device without the copy transport.
TCP = "tcp,cuda_copy" if Path("/dev/nvidiactl").exists() else "tcp"

TIMEOUT = 60.0
"""Seconds after which a test gives up. What the faults take is reported and not asserted."""

SHUFFLED = "k[h d/8 n d%8] v[h n/8 d n%8]"
PACKED = "h n k[d] v[d]"
TOKENS = "n h k[d] v[d]"

OTHERS = 4
"""Pages at the end of this rank's that the bystander's requests go into."""

Strategy = Literal["direct", "landed", "packed"]

seen: list[tuple[str, str, float]] = []
"""Of every fault of this run: the test, what the caller saw, and after how many seconds."""

_names = itertools.count()


def moved(pages: Bytes, source: Spec, target: Spec) -> Bytes:
    """What the source's pages are in the target's format, by the page formats' formulas."""
    if source.notation == target.notation:
        return pages.copy()
    count, spec = len(pages), source
    if {source.notation, target.notation} == {PACKED, TOKENS}:
        both = pages.view(np.uint16).reshape(count, *_rows(source), 2 * spec.size).swapaxes(1, 2)
        return np.ascontiguousarray(both).reshape(count, -1).view(np.uint8)
    if (source.notation, target.notation) == (PACKED, SHUFFLED):
        both = pages.view(np.uint16).reshape(count, spec.heads, spec.tokens, 2, spec.size)
        k = both[:, :, :, 0].reshape(count, spec.heads, spec.tokens, spec.size // 8, 8).transpose(0, 1, 3, 2, 4)
        v = both[:, :, :, 1].reshape(count, spec.heads, spec.tokens // 8, 8, spec.size).transpose(0, 1, 2, 4, 3)
        return np.concatenate([k.reshape(count, -1), v.reshape(count, -1)], axis=1).view(np.uint8)
    assert (source.notation, target.notation) == (SHUFFLED, PACKED)
    k, v = np.split(pages.view(np.uint16).reshape(count, -1), 2, axis=1)
    k = k.reshape(count, spec.heads, spec.size // 8, spec.tokens, 8).transpose(0, 1, 3, 2, 4)
    v = v.reshape(count, spec.heads, spec.tokens // 8, spec.size, 8).transpose(0, 1, 2, 4, 3)
    shape = (count, spec.heads, spec.tokens, 1, spec.size)
    both = np.concatenate([k.reshape(shape), v.reshape(shape)], axis=3)
    return np.ascontiguousarray(both).reshape(count, -1).view(np.uint8)


def _rows(spec: Spec) -> tuple[int, int]:
    return (spec.heads, spec.tokens) if spec.notation == PACKED else (spec.tokens, spec.heads)


def kind(event: Any) -> tuple[str, str]:
    """Class and id of an event; of `PeerDown`, the peer."""
    return type(event).__name__, event.peer if isinstance(event, PeerDown) else event.id


@dataclass
class Scene:
    """This rank, the one that is hit (`victim`) and the one that must go on (`bystander`).

    Requests take pages 0, 1, ... of both sides, in other orders on each. `mine` is the memory of this rank.
    """

    here: Connector
    spec: Spec
    mine: list[Bytes]
    victim: Rank
    bystander: Rank
    test: str
    before: list[Bytes] = field(init=False)
    events: list[Any] = field(default_factory=list)
    hit: float | None = None

    def __post_init__(self) -> None:
        self.before = [array.copy() for array in self.mine]

    # Requests

    def plain(self, count: int, *, first: int = 0) -> Plain:
        """`count` pages from `first` on, in order here and backwards there."""
        pages = list(range(first, first + count))
        return (0, count * self.spec.tokens), pages, pages[::-1], 0, 0

    def request(self, count: int, *, first: int = 0) -> kvr.Request:
        """The same as kvreshard has it."""
        return to_request(self.plain(count, first=first))

    def turned(self, count: int, *, first: int = 0) -> Plain:
        """The same as the victim asks for it."""
        tokens, mine, theirs, _, _ = self.plain(count, first=first)
        return tokens, theirs, mine, 0, 0

    def connect(self, rank: Rank | None = None, *, direction: Literal["read", "write"] = "read") -> Peer:
        """This rank's peer, of the victim where none is given."""
        return self.here.connect((rank or self.victim).call("metadata", during=self), direction=direction)

    # Events

    def poll(self, timeout: float = 0.0) -> list[Any]:
        """Takes note of what happens; also what a call to a rank process does meanwhile."""
        new = self.here.poll(timeout=timeout)
        for event in new:
            if isinstance(event, (Failed, PeerDown, Freed)) and self.hit is not None:
                seen.append((self.test, " ".join(kind(event)), time.monotonic() - self.hit))
        self.events += new
        return new

    def wait(self, *wanted: tuple[str, str], timeout: float = TIMEOUT) -> None:
        """Polls until each of the wanted (class, id or peer) was seen."""
        ends = time.monotonic() + timeout
        while not set(wanted) <= set(map(kind, self.events)):
            assert time.monotonic() < ends, f"waited for {wanted}, saw {self.events}"
            for name, id in wanted:
                assert name != "Finished" or ("Failed", id) not in map(kind, self.events), self.of(id)
            self.poll(timeout=0.01)

    def settle(self, seconds: float = 0.3) -> None:
        """Polls for a while: what is to come, comes."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self.poll(timeout=0.01)

    def of(self, id: str) -> list[Any]:
        """What was said of a request, in order."""
        return [event for event in self.events if kind(event)[1] == id]

    def failed(self, id: str) -> Failed:
        """The one failure of a request."""
        (event,) = [event for event in self.of(id) if isinstance(event, Failed)]
        assert isinstance(event, Failed)
        assert event.reason.request == id  # type: ignore[attr-defined]
        return event

    def await_theirs(self, *wanted: tuple[str, str]) -> None:
        """Waits for events of the victim's."""
        found: list[tuple[str, str]] = []
        ends = time.monotonic() + TIMEOUT
        while not set(wanted) <= set(found):
            assert time.monotonic() < ends, f"waited for {wanted}, the victim saw {found}"
            found += self.victim.call("events", during=self)
            # An answer that is there at once leaves no time for this side's progress, which theirs may need.
            self.poll(timeout=0.002)
            for name, id in wanted:
                if name == "Finished" and ("Failed", id) in found:
                    raise AssertionError(f"{id} failed at the victim: {self.victim.call('reasons', during=self)}")

    # Faults

    @contextmanager
    def fault(self) -> Iterator[None]:
        """From here on the clock runs."""
        self.hit = time.monotonic()
        yield

    def kill(self) -> None:
        """Kills the victim."""
        with self.fault():
            self.victim.kill()

    def stop(self) -> None:
        """Stops the victim; `go_on` continues it."""
        with self.fault():
            self.victim.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Continues it."""
        self.victim.signal(signal.SIGCONT)

    # Bytes

    def theirs(self, rank: Rank | None = None) -> list[Bytes]:
        """What a rank's pages held when it began."""
        rank = rank or self.victim
        return rank.spec.arrays(rank.seed)

    def changed(self) -> int:
        """Pages of this rank that changed since the beginning."""
        return sum(int((a != b).any(axis=1).sum()) for a, b in zip(self.mine, self.before, strict=True))

    def check_read(self, count: int, source: list[Bytes], *, first: int = 0) -> None:
        """The request's pages are the source's, byte for byte."""
        _, mine, theirs, _, _ = self.plain(count, first=first)
        for here, there in zip(self.mine, source, strict=True):
            np.testing.assert_array_equal(here[mine], moved(there[theirs], self.victim.spec, self.spec))

    def check_written(self, count: int, target: list[Bytes], *, first: int = 0) -> None:
        """The victim's pages of the request are this rank's."""
        _, mine, theirs, _, _ = self.plain(count, first=first)
        for here, there in zip(self.mine, target, strict=True):
            np.testing.assert_array_equal(there[theirs], moved(here[mine], self.spec, self.victim.spec))

    def untouched(self, count: int, *, first: int = 0) -> None:
        """No page outside the request has changed, but for those that others write."""
        inside = set(range(first, first + count)) | set(range(self.spec.pages - OTHERS, self.spec.pages))
        outside = [page for page in range(self.spec.pages) if page not in inside]
        for now, before in zip(self.mine, self.before, strict=True):
            np.testing.assert_array_equal(now[outside], before[outside])

    @contextmanager
    def still(self, count: int) -> Iterator[None]:
        """Pages that are free: whatever happens inside, nothing is written to them."""
        at = [array[:count].copy() for array in self.mine]
        yield
        for now, then in zip(self.mine, at, strict=True):
            np.testing.assert_array_equal(now[:count], then)

    def others_go_on(self) -> None:
        """While the fault lasts: a request with the bystander, from the first word to the last byte."""
        id = f"others/{next(_names)}"
        peer = self.connect(self.bystander)
        first, pages = self.spec.pages - OTHERS, list(range(OTHERS))
        tokens = (0, OTHERS * self.spec.tokens)
        mine = list(range(first, self.spec.pages))
        for array in self.mine:
            array[first:] = 0
        self.here.read(peer, to_request((tokens, mine, pages, 0, 0)), id=id, strategy="direct")
        self.wait(("Finished", id))
        for here, there in zip(self.mine, self.theirs(self.bystander), strict=True):
            np.testing.assert_array_equal(here[first:], moved(there[:OTHERS], self.bystander.spec, self.spec))

    def recover(self, strategy: Strategy = "direct", *, count: int = 20, direction: str = "read") -> None:
        """Another process under the victim's name: the next transfer with it, byte for byte. The host has said that the
        one before is gone.
        """
        self.here.gone("victim")
        with running(replace(self.victim.spec, pages=max(count, 32))) as (again,):
            self.victim = again
            self.next_is_right(self.here.connect(again.call("metadata", during=self)), strategy, count, direction)

    def next_is_right(
        self, peer: Peer, strategy: Strategy = "direct", count: int = 20, direction: str = "read"
    ) -> None:
        """The next transfer with the victim, byte for byte."""
        id = f"next/{next(_names)}"
        options: Options = {"strategy": strategy}
        before = self.victim.call("pages", during=self)
        if direction == "read":
            for array in self.mine:
                array[:count] = 0
            self.here.read(peer, self.request(count), id=id, **options)
            self.wait(("Finished", id))
            self.check_read(count, before)
            return
        self.victim.call("expect", id, {"writers": 1}, during=self)
        self.here.write(peer, self.request(count), id=id, **options)
        self.wait(("Finished", id))
        self.await_theirs(("Arrived", id))
        after = self.victim.call("pages", during=self)
        self.check_written(count, after)
        for now, then in zip(after, before, strict=True):
            np.testing.assert_array_equal(now[count:], then[count:])


def staging(spec: Spec, slots: int = 12) -> dict[str, Any]:
    """Options of a connector whose slots hold two pages; a third of them is for landing, receiving and sending each."""
    slot = 2 * spec.format.page_bytes
    return {"staging": slots * slot, "slot_bytes": slot}


@dataclass(frozen=True)
class Staged:
    """Who may be on stage, so that a test names only what matters to it."""

    bystander: Rank
    test: str
    folder: Path
    stack: ExitStack
    environment: Any

    def scene(
        self,
        *,
        pages: int = 64,
        tcp: bool = False,
        strategy: Strategy = "direct",
        shared: bool = False,
        slots: int = 12,
        runs: bool = False,
        victim_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> Scene:
        """A connector here and a victim, with `pages` pages each; of two formats where kernels have to work.

        With `runs`, tokens lie outside heads here: a page is 128 runs, and takes a while over shared memory, too.
        `slots` are those of each side's staging memory. `shared` gives the victim's memory to look into,
        `victim.spec.window()`.
        """
        notation = SHUFFLED if strategy != "direct" else TOKENS if runs else PACKED
        spec = Spec(f"here-{next(_names)}", engine="decode", pages=pages, notation=notation)
        rings = staging(spec, slots) if strategy != "direct" else {}
        there = Spec(
            "victim",
            pages=pages,
            shared=str(self.folder / "victim") if shared else "",
            environment={"UCX_TLS": TCP} if tcp else {},
            options={**(rings if strategy == "packed" else {}), **(victim_options or {})},
        )
        if tcp:
            self.environment.setenv("UCX_TLS", TCP)
        mine = spec.arrays(1)
        (victim,) = self.stack.enter_context(running(there))
        here = self.stack.enter_context(Connector(spec.name, **{**rings, **options}))
        publish(here, spec, mine)
        return Scene(here, spec, mine, victim, self.bystander, self.test)


class Watch:
    """Looks at memory from a thread and acts once when a page has changed: in the middle of a call that copies."""

    def __init__(self, pages: list[Bytes], act: Any) -> None:
        self._first = [array[:, :64].copy() for array in pages]
        self._pages, self._act = pages, act
        self._over = threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._over.is_set():
            if any((now[:, :64] != then).any() for now, then in zip(self._pages, self._first, strict=True)):
                self._act()
                return

    def __enter__(self) -> Watch:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.thread.join()
