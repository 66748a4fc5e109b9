"""One rank of an engine: a process with its own memory and its own NIXL agent, told what to do through a pipe.

Between commands it polls its connector, as an engine would: with NIXL's progress thread off, a rank that is read from
answers only then.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Literal

import kvreshard as kvr
from kvreshard.demo.memory import Memory, Place
from kvreshard.demo.needed import runs_needed
from kvreshard.demo.scenarios import Scenario, Strategy, Which
from kvreshard.nixl import Arrived, Connector, Event, Failed, Finished, LeaseEnded, Peer, Released

STAGING = 64 << 20
"""Bytes of staging memory, for strategies that need some."""
TIMEOUT = 60.0
"""Seconds that a rank waits for a transfer or a notice before it reports a failure."""


@dataclass(frozen=True)
class Spec:
    """Which rank a process is. With `backwards` it writes pages that are not what its format says; with `devices` its
    pages are on one of so many.
    """

    scenario: Scenario
    which: Which
    rank: int
    backwards: bool = False
    devices: int = 0

    @property
    def name(self) -> str:
        """The name of its NIXL agent."""
        return f"{self.scenario.name}-{self.which}-{self.rank}"

    @property
    def device(self) -> str | None:
        """The device of its pages: prefill's ranks begin with the first one, decode's with the last."""
        if not self.devices:
            return None
        return f"cuda:{(self.rank if self.which == 'prefill' else -1 - self.rank) % self.devices}"

    @property
    def issues(self) -> bool:
        """Whether this side issues the transfers."""
        return (self.which == "prefill") == self.scenario.push


@dataclass(frozen=True)
class Ready:
    """What a rank tells the others: its connector's metadata, its layout as a message, and where its pages lie."""

    metadata: bytes
    layout: bytes
    places: dict[int, Place]


@dataclass(frozen=True)
class Refusal:
    """An error of kvreshard, by the name of its class."""

    kind: str
    text: str


@dataclass(frozen=True)
class Crash:
    """Anything else that was raised."""

    trace: str


@dataclass(frozen=True)
class Moved:
    """One rank's transfers: descriptors posted and bytes moved as NIXL counts them, seconds from call to end.

    `strategies` by peer, and the seconds that the cost model expected of the slowest.
    """

    posted: int
    bytes: int
    seconds: float
    strategies: tuple[str, ...] = ()
    expected: float = 0.0


@dataclass(frozen=True)
class Checked:
    """What a decode rank found in its pages, the fewest runs that could have brought it there, and a digest of its
    memory, every byte of it.
    """

    elements: int
    problems: tuple[str, ...]
    fewest: int
    digest: str


class Rank:
    """The commands that a rank understands."""

    def __init__(self, spec: Spec) -> None:
        self.spec, self.scenario = spec, spec.scenario
        side = self.scenario.side(spec.which)
        self.memory = Memory(self.scenario, spec.which, spec.rank, spec.device)
        if spec.which == "prefill":
            whole_pages = self.scenario.pages("prefill") * side.tokens
            self.memory.write((0, whole_pages), backwards=spec.backwards)
        elif self.scenario.first:
            self.memory.write((0, self.scenario.first))
        self.memory.remember()
        staging = STAGING if self.scenario.staging or self.scenario.strategy != "direct" else 0
        self.connector = Connector(spec.name, deadline=TIMEOUT, staging=staging)
        form = self.scenario.declared(spec.which, spec.rank)
        totals = {"h": side.heads or self.scenario.heads} if self.scenario.heads else None
        for number, pages in self.memory.moved.items():
            self.connector.add_layer(f"layers.{number}", pages, form, totals=totals)
        self.connector.publish(engine=spec.which, tp=(spec.rank, side.tp))
        self.peers: list[Peer] = []
        self.told: list[Peer] = []
        self.events: list[Event] = []
        self.strategy: Strategy = self.scenario.strategy
        self.turn = 0
        self._awaited = 0

    @property
    def id(self) -> str:
        """The id of the request that is under way or next."""
        return f"request-{self.turn}"

    def idle(self) -> None:
        """Lets NIXL make progress; keeps the events for the command that asks for them."""
        self.events += self.connector.poll()

    def _next(self) -> list[Event]:
        """Waits for events."""
        events, self.events = self.events, []
        return events or self.connector.poll(timeout=1.0)

    def ready(self) -> Ready:
        """What the other ranks need to know."""
        return Ready(self.connector.metadata(), self.connector.layout.to_bytes(), self.memory.places)

    def join(self, ours: Sequence[Ready], theirs: Sequence[Ready]) -> None:
        """Works out the route between both engines; then connects and plans, or expects notices."""
        local, remote = (
            kvr.Engine([kvr.RankLayout.from_bytes(one.layout) for one in side])
            for side in ((ours, theirs) if self.spec.issues else (theirs, ours))
        )
        direction: Literal["read", "write"] = "write" if self.scenario.push else "read"
        route = kvr.route(local=local, remote=remote, direction=direction)
        if not self.spec.issues:
            self._awaited = (route.writers if self.scenario.push else route.readers)[self.spec.rank]
            self._expect()
            return
        counts = route.writers if self.scenario.push else route.readers
        for edge in route.edges_of(local=self.spec.rank):
            self.peers.append(
                self.connector.connect(
                    theirs[edge.remote].metadata, edge=edge, direction=direction, senders=counts[edge.remote]
                )
            )
        for here, there in route.notify:
            if here == self.spec.rank:
                self.told.append(self.connector.connect(theirs[there].metadata, direction=None, senders=counts[there]))

    def _expect(self) -> None:
        if self.scenario.push:
            self.connector.expect(self.id, writers=self._awaited, lease=TIMEOUT)
        else:
            self.connector.expect(self.id, readers=self._awaited, lease=TIMEOUT)

    def again(self, strategy: Strategy) -> None:
        """Prepares for another turn by `strategy`: the memory is as it was before the last."""
        self.strategy, self.turn = strategy, self.turn + 1
        self.memory.restore()
        if not self.spec.issues:
            self._expect()

    def move(self) -> Moved:
        """Issues the request to all peers and waits for its end."""
        begun = time.perf_counter()
        issue = self.connector.write_all if self.scenario.push else self.connector.read_all
        request = self._request()
        issue([(peer, request) for peer in self.peers], id=self.id, strategy=self.strategy)
        for peer in self.told:
            self.connector.notify(peer, self.id)
        while True:
            for event in self._next():
                if isinstance(event, Failed):
                    raise event.reason
                if isinstance(event, Finished):
                    seconds = time.perf_counter() - begun
                    expected = max((one.predicted.seconds for one in event.shares if one.predicted), default=0.0)
                    return Moved(event.posted, event.bytes, seconds, event.strategies, expected)

    def _request(self) -> kvr.Request:
        one = self.scenario
        # The decode side names only the pages that it wants filled.
        there_already = one.first // one.decode.tokens
        decode = kvr.Blocks(one.blocks("decode")[there_already:], first_token=there_already * one.decode.tokens)
        prefill = kvr.Blocks(one.blocks("prefill"))
        local, remote = (prefill, decode) if one.push else (decode, prefill)
        return kvr.Request((one.first, one.end), [local], [remote])

    def told_of_the_end(self) -> list[str]:
        """Waits, on the side that does not issue, until every peer has said that it is done; what is wrong if not."""
        while True:
            for event in self._next():
                if isinstance(event, (Arrived, Released)):
                    return []
                if isinstance(event, LeaseEnded):
                    return [f"{self.spec.name} heard only of {list(event.heard)} in {TIMEOUT:.0f} s"]

    def check(self, there: Sequence[dict[int, Place]]) -> Checked:
        """Reads all pages of a decode rank."""
        elements, problems = self.memory.check()
        fewest = runs_needed(self.scenario, self.spec.rank, self.memory.places, there)
        return Checked(elements, tuple(problems), fewest, self.memory.digest())

    def unchanged(self) -> list[str]:
        """Whether a prefill rank still holds what it wrote."""
        return self.memory.unchanged()

    def quit(self) -> list[str]:
        """Closes the connector; what it left in flight."""
        return [f"{one} was still in flight" for one in self.connector.close()]


def serve(pipe: Connection, spec: Spec) -> None:
    """The process: makes the rank, tells that it is ready, then obeys until told to quit."""
    # NIXL tells of every agent on standard output, which is the table's.
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
    try:
        rank = Rank(spec)
        pipe.send(rank.ready())
        while True:
            rank.idle()
            if not pipe.poll(0.0005):
                continue
            name, arguments = pipe.recv()
            try:
                pipe.send(getattr(rank, name)(*arguments))
            except kvr.Error as error:
                pipe.send(Refusal(type(error).__name__, str(error)))
            if name == "quit":
                return
    except (EOFError, KeyboardInterrupt):
        return
    except Exception:
        pipe.send(Crash(traceback.format_exc()))
