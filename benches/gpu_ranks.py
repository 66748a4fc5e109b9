"""The ranks of `gpu_transfers.py`: pages in device memory, filled and checked by formulas, moved by connectors.

A process hosts some ranks of one side and obeys the driver through a pipe. Between commands it polls.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

import kvreshard as kvr
from benches.gpu_trace import Trace
from kvreshard.nixl import Arrived, Connector, Failed, Finished, Peer, Released

os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")

LAYERS, HEADS, SIZE = 32, 8, 128
PACKED, SLOTS, SHUFFLED = "h n k[d] v[d]", "k[h n d] v[h n d]", "k[h d/8 n d%8] v[h n/8 d n%8]"
TIMEOUT = 60.0

Which = Literal["prefill", "decode"]
How = Literal["no", "traced", "profiled"]
Ids = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Half:
    """One side of a case: notation, tokens of a page, and the device of each rank."""

    notation: str
    tokens: int
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """What moves: `tokens` from prefill's pages to decode's, in a pool of as many; scattered unless `consecutive`."""

    name: str
    prefill: Half
    decode: Half
    tokens: int
    consecutive: bool = False
    flow: Literal["push", "pull"] = "push"
    staging: int = 3 << 29
    slot: int = 64 << 20

    def half(self, which: Which) -> Half:
        """One of its sides."""
        return self.prefill if which == "prefill" else self.decode

    def ids(self, which: Which) -> Ids:
        """The pages of a side, in the order of the tokens."""
        pages = self.tokens // self.half(which).tokens
        if self.consecutive:
            return np.arange(pages, dtype=np.int32)
        return np.random.default_rng(7 + (which == "decode")).permutation(pages).astype(np.int32)

    @property
    def bytes(self) -> int:
        """Of all ranks and layers together."""
        return 2 * LAYERS * HEADS * SIZE * 2 * self.tokens


@dataclass(frozen=True)
class Told:
    """What a rank tells the other side: metadata, layout, and its flat buffer for one merged transfer."""

    metadata: bytes
    layout: bytes
    buffer: int
    device: int
    memory: str


@dataclass(frozen=True)
class Moved:
    """When a process began and ended, by one clock for all processes of a machine; what it posted, and its own work."""

    begun: float
    ended: float
    posted: int = 0
    bytes: int = 0
    strategies: tuple[str, ...] = ()
    host: dict[str, float] = field(default_factory=dict)


def elements(layer: int, tokens: int, device: str) -> torch.Tensor:
    """K and V of a layer: int16 [2, heads, tokens, size], the same in every process and on every GPU."""
    generator = torch.Generator(device=device).manual_seed(1000 + layer)
    shape = (2, HEADS, tokens, SIZE)
    return torch.randint(-(2**15), 2**15 - 1, shape, dtype=torch.int16, device=device, generator=generator)


def written(half: Half, of: torch.Tensor) -> torch.Tensor:
    """Pages of `of` ([2, heads, tokens, size]) as int16 [pages, elements], by the formulas of the formats."""
    of = of.unflatten(2, (-1, half.tokens))
    pages = of.shape[2]
    if half.notation == PACKED:
        return of.permute(2, 1, 3, 0, 4).reshape(pages, -1)
    if half.notation == SLOTS:
        return of.permute(2, 0, 1, 3, 4).reshape(pages, -1)
    k = of[0].unflatten(3, (SIZE // 8, 8)).permute(1, 0, 3, 2, 4).reshape(pages, -1)
    v = of[1].unflatten(2, (half.tokens // 8, 8)).permute(1, 0, 2, 4, 3).reshape(pages, -1)
    return torch.cat([k, v], dim=1)


def synchronise(device: str) -> None:
    """Waits for a device; a host has nothing to wait for."""
    if device != "cpu":
        torch.cuda.synchronize(device)


class Rank:
    """One rank: caches, connector, peers."""

    def __init__(self, case: Case, which: Which, index: int) -> None:
        self.case, self.which, self.index, self.half = case, which, index, case.half(which)
        self.size, self.device = len(self.half.devices), self.half.devices[index]
        heads = HEADS // self.size
        self.heads = slice(index * heads, (index + 1) * heads)
        form = kvr.PageFormat(self.half.notation, h=heads, n=self.half.tokens, d=SIZE, dtype="bf16")
        self.connector = Connector(
            f"{which}-{index}-{os.getpid()}-{time.time_ns()}",
            staging=case.staging,
            slot_bytes=case.slot,
            deadline=TIMEOUT,
            flow=case.flow,
        )
        pages = case.tokens // self.half.tokens
        self.caches = []
        for layer in range(LAYERS):
            cache = torch.full((pages, form.page_bytes // 2), -1, dtype=torch.int16, device=self.device)
            self.connector.add_layer(f"layers.{layer}", cache.view(torch.uint8), form, totals={"h": HEADS})
            self.caches.append(cache)
        self.merged = torch.zeros(case.bytes, dtype=torch.uint8, device=self.device)
        self.connector.register(self.merged)
        self.connector.publish(engine=which, tp=(index, self.size))
        self.peers: list[Peer] = []
        self.told_of: list[Told] = []
        synchronise(self.device)

    def told(self) -> Told:
        """What the other side needs to know."""
        kind = "DRAM" if self.device == "cpu" else "VRAM"
        device = 0 if self.device == "cpu" else self.merged.get_device()
        layout = self.connector.layout.to_bytes()
        return Told(self.connector.metadata(), layout, self.merged.data_ptr(), device, kind)

    def fill(self) -> None:
        """Writes every layer's pages."""
        at = torch.from_numpy(self.case.ids(self.which)).long().to(self.device)
        for layer, cache in enumerate(self.caches):
            cache[at] = written(self.half, elements(layer, self.case.tokens, self.device)[:, self.heads])
        synchronise(self.device)

    def parts(self) -> list[tuple[Peer, kvr.Request]]:
        """The request, with each of the peers."""
        ours, theirs = (kvr.Blocks(self.case.ids(which)) for which in (self.which, _other(self.which)))
        request = kvr.Request((0, self.case.tokens), [ours], [theirs])
        return [(peer, request) for peer in self.peers]

    def wrong(self) -> int:
        """Elements of all pages that are not what they should be; clears the pages for the next turn."""
        at = torch.from_numpy(self.case.ids(self.which)).long().to(self.device)
        count = torch.zeros((), dtype=torch.int64, device=self.device)
        for layer, cache in enumerate(self.caches):
            of = elements(layer, self.case.tokens, self.device)[:, self.heads]
            count += (cache[at] != written(self.half, of)).sum()
            cache.fill_(-1)
        return int(count)


class Process:
    """The commands that a process understands."""

    def __init__(self, which: Which, indexes: tuple[int, ...]) -> None:
        self.which, self.indexes = which, indexes
        self.ranks: list[Rank] = []
        self.trace = Trace()
        self.events: list[tuple[int, object]] = []

    def build(self, case: Case) -> list[Told]:
        """Makes the ranks of a case."""
        self.ranks = [Rank(case, self.which, index) for index in self.indexes]
        if self.which == "prefill":
            for rank in self.ranks:
                rank.fill()
        return [rank.told() for rank in self.ranks]

    def join(self, prefill: list[Told], decode: list[Told]) -> None:
        """Connects each rank to those of the other side that a route pairs it with, for both directions."""
        ours, theirs = (prefill, decode) if self.which == "prefill" else (decode, prefill)
        direction: Literal["read", "write"] = "write" if self.which == "prefill" else "read"
        mine, others = (kvr.Engine([kvr.RankLayout.from_bytes(one.layout) for one in side]) for side in (ours, theirs))
        route = kvr.route(local=mine, remote=others, direction=direction)
        counts = route.writers if self.which == "prefill" else route.readers
        for rank in self.ranks:
            for edge in route.edges_of(local=rank.index):
                data = theirs[edge.remote].metadata
                peer = rank.connector.connect(data, edge=edge, direction=direction, senders=counts[edge.remote])
                rank.peers.append(peer)
                rank.told_of.append(theirs[edge.remote])

    def move(self, id: str, strategy: Any, traced: How) -> Moved:
        """Issues the request on all ranks and waits for its end; this side is the one that issues."""
        for rank in self.ranks:
            synchronise(rank.device)
        # Its blocks are what an engine has at hand.
        parts = [rank.parts() for rank in self.ranks]
        with self.trace.on(traced):
            begun = time.perf_counter()
            for rank, pairs in zip(self.ranks, parts, strict=True):
                issue = rank.connector.write_all if self.which == "prefill" else rank.connector.read_all
                issue(pairs, id=id, strategy=strategy)
            found = self._wait(lambda event: isinstance(event, Finished) and event.id == id, len(self.ranks))
            ended = time.perf_counter()
        posted = sum(event.posted for event in found)
        bytes = sum(event.bytes for event in found)
        names = sorted({name for event in found for name in event.strategies})
        return Moved(begun, ended, posted, bytes, tuple(names), self.trace.summary())

    def heard(self, id: str) -> Moved:
        """Waits until every rank has been told of the end of a request, on the side that did not issue it."""
        begun = time.perf_counter()
        for rank in self.ranks:
            count = len(rank.peers)
            rank.connector.expect(id, **({"readers": count} if self.which == "prefill" else {"writers": count}))
        self._wait(lambda event: isinstance(event, (Arrived, Released)) and event.id == id, len(self.ranks))
        return Moved(begun, time.perf_counter(), host=self.trace.summary())

    def watch(self, traced: How) -> None:
        """Begins or ends tracing on the side that does not issue."""
        if traced == "no":
            self.trace.stop()
        else:
            self.trace.start(profiled=traced == "profiled")

    def profile(self) -> str:
        """What Python's profiler found."""
        return self.trace.profile()

    def log(self) -> list[tuple[float, float, str]]:
        """What was traced."""
        return self.trace.lines()

    def one_run(self, whole: bool) -> Moved:
        """Writes as many bytes as the request has from flat buffers into the peers': one descriptor a pair of ranks, or
        all (`whole`) as one from the first rank to the last of its peers.
        """
        flights = []
        for rank in self.ranks[:1] if whole else self.ranks:
            synchronise(rank.device)
            agent, mine = rank.connector._agent, rank.told()
            sizes = len(rank.case.prefill.devices), len(rank.case.decode.devices)
            size = rank.case.bytes // (1 if whole else max(sizes))
            pairs = list(enumerate(zip(rank.peers, rank.told_of, strict=True)))
            for at, (peer, there) in pairs[-1:] if whole else pairs:
                shift = 0 if whole else at * size
                ours = np.array([[mine.buffer + shift, size, mine.device]], np.uint64)
                # Of several writers into one buffer each has its own part.
                theirs = np.array([[there.buffer + (0 if whole else rank.index * size), size, there.device]], np.uint64)
                handle = agent.make_exact("WRITE", peer.name, (ours, mine.memory), (theirs, there.memory), b"")
                flights.append((agent, peer.name, handle))
        begun = time.perf_counter()
        left = [flight for flight in flights if not flight[0].post(flight[2], flight[1])]
        while left:
            left = [flight for flight in left if not flight[0].done(flight[2], flight[1])]
        ended = time.perf_counter()
        for agent, _, handle in flights:
            agent.release(handle)
        return Moved(begun, ended, len(flights), self.ranks[0].case.bytes if self.ranks else 0)

    def wrong(self) -> int:
        """Wrong elements of all ranks."""
        return sum(rank.wrong() for rank in self.ranks)

    def end(self) -> None:
        """Lets go of a case."""
        for rank in self.ranks:
            rank.connector.close()
        self.ranks.clear()
        self.events.clear()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def idle(self) -> None:
        """Progress between commands; keeps what happens."""
        for at, rank in enumerate(self.ranks):
            self.events += [(at, event) for event in rank.connector.poll()]

    def _wait(self, wanted: Callable[[Any], bool], count: int) -> list[Any]:
        found: list[Any] = []
        until = time.perf_counter() + TIMEOUT
        while len(found) < count:
            self.idle()
            for _, event in self.events:
                if isinstance(event, Failed):
                    raise event.reason
            found += [event for _, event in self.events if wanted(event)]
            self.events = [(at, event) for at, event in self.events if not wanted(event)]
            if time.perf_counter() > until:
                raise TimeoutError(f"{self.which}: {len(found)} of {count} ranks after {TIMEOUT} s")
        return found


def _other(which: Which) -> Which:
    return "decode" if which == "prefill" else "prefill"


def cores(count: int, each: int) -> list[set[int]]:
    """`each` processor cores for each of `count` processes, as far from one another as can be; none where too few."""
    all = sorted(os.sched_getaffinity(0))
    apart = len(all) // count
    return [set(all[at * apart : at * apart + each]) for at in range(count)] if 0 < each <= apart else []


def serve(pipe: Connection, which: Which, indexes: tuple[int, ...], bound: set[int]) -> None:
    """The process: obeys until told to quit, `bound` to these cores if there are some."""
    if bound:
        os.sched_setaffinity(0, bound)
    try:
        process = Process(which, indexes)
        pipe.send(None)
        while True:
            process.idle()
            if not pipe.poll():
                continue
            command, arguments = pipe.recv()
            if command == "quit":
                return
            pipe.send(getattr(process, command)(*arguments))
    except (EOFError, KeyboardInterrupt):
        return
    except BaseException:
        pipe.send(RuntimeError(f"{which} {indexes}:\n{traceback.format_exc()}"))
