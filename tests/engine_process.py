"""A process that is a whole engine: a connector for each rank, all driven through one pipe and polled in between.

Both processes work the route out by themselves, from the layouts alone.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import kvreshard as kvr
from tests.convert import to_rank, to_request
from tests.oracle.engines import EVER, Bytes, filled, span
from tests.oracle.model import Blocks, Rank, Request

TIMEOUT = 60.0


def moved(rank: Rank, by: int) -> Rank:
    """The same rank with its memory elsewhere."""
    regions = tuple(dataclasses.replace(region, base=region.base + by) for region in rank.regions)
    return dataclasses.replace(rank, regions=regions)


class _Engine:
    """What the process holds: ranks with their memory, and peers by the other engine's rank number."""

    def __init__(self) -> None:
        self.connectors: list[Any] = []
        self.memories: list[Bytes] = []
        self.layouts: list[kvr.RankLayout] = []
        self.peers: dict[tuple[int, int], Any] = {}
        self.events: list[tuple[int, Any]] = []
        self.route: kvr.Route | None = None
        self.issues = False

    def poll(self) -> None:
        """Progress of every rank."""
        for number, connector in enumerate(self.connectors):
            self.events += [(number, event) for event in connector.poll()]

    def open(
        self, name: str, ranks: Sequence[Rank], blocks: Sequence[Sequence[Blocks]], has: bool, seed: int
    ) -> list[tuple[Bytes, bytes]]:
        """Lays every rank's memory out and registers it; each rank's bytes (contents if it `has` them) and metadata."""
        from kvreshard.nixl import Connector

        told = []
        for number, (rank, lists) in enumerate(zip(ranks, blocks, strict=True)):
            memory = filled(rank, lists if has else [Blocks(())] * len(lists), (0, EVER), seed + number)
            connector = Connector(f"{name}-{number}")
            # A stretch of our own, so that regions which touch in the scenario touch here.
            here = moved(rank, memory.ctypes.data - span(rank)[0])
            layout = to_rank(here, name)
            for region in layout.regions:
                connector.register(region)
            connector.publish(layout)
            self.connectors.append(connector)
            self.memories.append(memory)
            self.layouts.append(layout)
            told.append((memory.copy(), connector.metadata()))
        return told

    def meet(self, metadata: Sequence[bytes], layouts: Sequence[bytes], direction: Any, issues: bool) -> list[int]:
        """Routes to the other engine; the issuing one connects along it. Readers (or writers) of each of our ranks."""
        others = kvr.Engine([kvr.RankLayout.from_bytes(data) for data in layouts])
        sides = kvr.Engine(self.layouts), others
        local, remote = sides if issues else sides[::-1]
        self.route = kvr.route(local=local, remote=remote, direction=direction)
        self.issues = issues
        counts = self.route.readers if direction == "read" else self.route.writers
        if issues:
            for edge in self.route.edges:
                peer = self.connectors[edge.local].connect(
                    metadata[edge.remote], edge=edge, direction=direction, senders=counts[edge.remote]
                )
                self.peers[edge.local, edge.remote] = peer
            for mine, theirs in self.route.notify if direction == "read" else []:
                self.peers[mine, theirs] = self.connectors[mine].connect(
                    metadata[theirs], direction=None, senders=counts[theirs]
                )
        return counts

    def expect(self, id: str, kind: str, counts: Sequence[int]) -> None:
        """Every rank waits for those that report to it."""
        for connector, count in zip(self.connectors, counts, strict=True):
            connector.expect(id, **{kind: count})

    def issue(self, id: str, request: Callable[[int, int], kvr.Request], **options: Any) -> list[str]:
        """One request along every edge of the route, a rank's in one call; ids of the ranks' requests."""
        assert self.route is not None
        direction, found = self.route.direction, []
        for number, connector in enumerate(self.connectors):
            edges = self.route.edges_of(local=number)
            parts = [(self.peers[number, edge.remote], request(number, edge.remote)) for edge in edges]
            if parts:
                issue = connector.read_all if direction == "read" else connector.write_all
                issue(parts, id=id, **options)
                found.append(id)
        return found

    def tell_idle(self, id: str) -> None:
        """Tells the replicas that nobody reads from."""
        assert self.route is not None
        for mine, theirs in self.route.notify if self.route.direction == "read" else []:
            self.connectors[mine].notify(self.peers[mine, theirs], id)

    def tell(self, id: str) -> None:
        """Tells every peer that the last part of a request has come."""
        assert self.route is not None
        for edge in self.route.edges:
            peer = self.peers[edge.local, edge.remote]
            self.connectors[edge.local].notify(peer, id, direction=self.route.direction)

    def close(self) -> None:
        """Ends all connectors."""
        for connector in self.connectors:
            connector.close()
        self.__init__()  # type: ignore[misc]


def _serve(pipe: Connection) -> None:
    engine = _Engine()

    def issue(id: str, requests: dict[tuple[int, int], Request], more: bool, options: dict[str, Any]) -> list[str]:
        return engine.issue(id, lambda mine, theirs: to_request(requests[mine, theirs], more=more), **options)

    def take_events() -> list[tuple[int, str, str, int]]:
        found = [
            (
                number,
                type(event).__name__,
                getattr(event, "id", ""),
                sum(t.posted for t in getattr(event, "transfers", ())),
            )
            for number, event in engine.events
        ]
        engine.events.clear()
        return found

    commands: dict[str, Callable[..., Any]] = {
        "open": engine.open,
        "layouts": lambda: [layout.to_bytes() for layout in engine.layouts],
        "meet": engine.meet,
        "expect": engine.expect,
        "issue": issue,
        "tell_idle": engine.tell_idle,
        "tell": engine.tell,
        "events": take_events,
        "memories": lambda: [memory.copy() for memory in engine.memories],
        "fill": lambda rank, at, values: engine.memories[rank].__setitem__(at, values),
        "close": engine.close,
    }
    while True:
        engine.poll()
        if not pipe.poll(0.0005):
            continue
        name, arguments = pipe.recv()
        try:
            if name == "quit":
                engine.close()
                pipe.send((True, None))
                return
            pipe.send((True, commands[name](*arguments)))
        except Exception:
            pipe.send((False, traceback.format_exc()))


class EngineProcess:
    """The parent's hold on an engine."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def call(self, name: str, *arguments: Any) -> Any:
        """Runs a command there."""
        self._pipe.send((name, arguments))
        assert self._pipe.poll(TIMEOUT), f"the engine does not answer {name}"
        good, result = self._pipe.recv()
        assert good, result
        return result

    def wait(self, wanted: set[tuple[int, str, str]]) -> list[tuple[int, str, str, int]]:
        """Asks for events until each of the wanted (rank, kind, request) was seen; a failure ends it."""
        seen: list[tuple[int, str, str, int]] = []
        ends = time.monotonic() + TIMEOUT
        while not wanted <= {event[:3] for event in seen}:
            assert time.monotonic() < ends, f"waited for {wanted}, saw {seen}"
            seen += self.call("events")
            assert not [event for event in seen if event[1] in ("Failed", "PeerDown")], seen
            time.sleep(0.001)
        return seen

    def end(self) -> None:
        """Stops the process."""
        if self.process.is_alive():
            self.process.kill()
            self.process.join(TIMEOUT)
