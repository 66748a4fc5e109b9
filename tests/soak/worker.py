"""One of the six ranks: a process that becomes whatever rank of whatever engine it is told to be, again and again."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal

import kvreshard as kvr
from kvreshard.demo.memory import Memory
from kvreshard.demo.scenarios import Scenario, Which

TIMEOUT = 120.0
DEADLINE = 60.0


@dataclass(frozen=True)
class Role:
    """Which rank of which engine a process is, under which name."""

    scenario: Scenario
    which: Which
    rank: int
    name: str
    options: dict[str, Any]

    @property
    def issues(self) -> bool:
        """Whether this side issues the transfers."""
        return (self.which == "prefill") == self.scenario.push


@dataclass(frozen=True)
class Outcome:
    """How a request ended on one rank. `pages` of a failure that is not over yet is "held"."""

    kind: str
    seconds: float = 0.0
    bytes: int = 0
    strategies: tuple[str, ...] = ()
    reason: str = ""
    text: str = ""
    pages: str = ""


class _Rank:
    def __init__(self) -> None:
        self.connector: Any = None
        self.ends: dict[str, Outcome] = {}
        self.begun: dict[str, float] = {}
        self.downs: list[str] = []

    def poll(self) -> None:
        from kvreshard.nixl import Arrived, Failed, Finished, Freed, LeaseEnded, PeerDown, Released

        if self.connector is None:
            return
        for event in self.connector.poll():
            seconds = time.perf_counter() - self.begun.get(getattr(event, "id", ""), 0.0)
            match event:
                case Finished():
                    self.ends[event.id] = Outcome("finished", seconds, event.bytes, event.strategies)
                case Failed():
                    name, text = type(event.reason).__name__, str(event.reason)
                    self.ends[event.id] = Outcome("failed", seconds, 0, (), name, text, event.pages)
                case Freed():
                    was = self.ends[event.id]
                    self.ends[event.id] = Outcome("failed", was.seconds, 0, (), was.reason, was.text, "free")
                case Arrived() | Released():
                    self.ends[event.id] = Outcome("heard")
                case PeerDown():
                    self.downs.append(f"{self.role.name} lost {event.peer}: {event.reason}")
                case LeaseEnded():
                    self.ends[event.id] = Outcome("not heard", text=f"{event.heard} of {event.needed}")

    def become(self, role: Role) -> tuple[bytes, bytes]:
        """Lays out memory and registers it; what the others need to know."""
        from kvreshard.nixl import Connector

        self.close(0.0)
        self.role, self.ends, self.downs = role, {}, []
        one, side = role.scenario, role.scenario.side(role.which)
        self.memory = Memory(one, role.which, role.rank)
        if role.which == "prefill":
            self.memory.write((0, one.pages("prefill") * side.tokens))
        elif one.first:
            self.memory.write((0, one.first))
        self.memory.remember()
        self.connector = Connector(role.name, deadline=DEADLINE, **role.options)
        form = one.declared(role.which, role.rank)
        totals = {"h": side.heads or one.heads} if one.heads else None
        for number, pages in self.memory.layers.items():
            self.connector.add_layer(f"layers.{number}", pages, form, totals=totals)
        self.connector.publish(engine=role.name.rpartition("/")[0], tp=(role.rank, side.tp))
        return self.connector.metadata(), self.connector.layout.to_bytes()

    def join(self, ours: Sequence[tuple[bytes, bytes]], theirs: Sequence[tuple[bytes, bytes]]) -> None:
        """Connects along the route."""
        one = self.role.scenario
        local, remote = (
            kvr.Engine([kvr.RankLayout.from_bytes(layout) for _, layout in side])
            for side in ((ours, theirs) if self.role.issues else (theirs, ours))
        )
        direction: Literal["read", "write"] = "write" if one.push else "read"
        route = kvr.route(local=local, remote=remote, direction=direction)
        counts = route.writers if one.push else route.readers
        self.peers, self.told, self.awaited = [], [], counts[self.role.rank] if not self.role.issues else 0
        if not self.role.issues:
            return
        for edge in route.edges_of(local=self.role.rank):
            self.peers.append(
                self.connector.connect(
                    theirs[edge.remote][0], edge=edge, direction=direction, senders=counts[edge.remote]
                )
            )
        for here, there in route.notify:
            if here == self.role.rank:
                peer = self.connector.connect(theirs[there][0], direction=None, senders=counts[there])
                self.told.append(peer)

    def begin(self, id: str, options: dict[str, Any]) -> None:
        """Issues the request, or expects it."""
        one = self.role.scenario
        self.begun[id] = time.perf_counter()
        if not self.role.issues:
            self.connector.expect(id, **{"writers" if one.push else "readers": self.awaited})
            return
        there_already = one.first // one.decode.tokens
        decode = kvr.Blocks(one.blocks("decode")[there_already:], first_token=there_already * one.decode.tokens)
        prefill = kvr.Blocks(one.blocks("prefill"))
        local, remote = (prefill, decode) if one.push else (decode, prefill)
        request = kvr.Request((one.first, one.end), [local], [remote])
        if self.peers:
            issue = self.connector.write_all if one.push else self.connector.read_all
            try:
                issue([(peer, request) for peer in self.peers], id=id, **options)
            except kvr.Error as error:
                self.ends[id] = Outcome("failed", 0.0, 0, (), type(error).__name__, str(error), "free")
                return
        else:
            self.ends[id] = Outcome("finished")
        for peer in self.told:
            self.connector.notify(peer, id)

    def outcome(self, id: str) -> Outcome | None:
        """How it ended, if it has."""
        return self.ends.get(id)

    def lost(self) -> list[str]:
        """Which peers were lost, and why."""
        return self.downs

    def cancel(self, id: str) -> bool:
        """Gives a request up."""
        return bool(self.connector.cancel(id))

    def forget(self, id: str) -> bool:
        """Stops expecting it."""
        return bool(self.connector.forget(id))

    def verify(self) -> tuple[int, list[str]]:
        """Every element and every other byte of a decode rank; that a prefill rank is as it was."""
        if self.role.which == "prefill":
            return 0, self.memory.unchanged()
        return self.memory.check()

    def outside(self) -> list[str]:
        """Of a decode rank after a failure: bytes outside the request's pages. A prefill rank is as it was."""
        return self.memory.unchanged() if self.role.which == "prefill" else list(self.memory._outside())

    def restore(self) -> None:
        """Memory as it was before the first request."""
        self.memory.restore()

    def close(self, timeout: float) -> tuple[str, ...]:
        """Ends the connector."""
        if self.connector is None:
            return ()
        left: tuple[str, ...] = self.connector.close(timeout)
        self.poll()
        self.connector = None
        return left


def _serve(pipe: Connection) -> None:
    os.environ.setdefault("NIXL_LOG_LEVEL", "FATAL")
    os.environ.setdefault("UCX_LOG_LEVEL", "fatal")
    rank = _Rank()
    try:
        while True:
            rank.poll()
            if not pipe.poll(0.0005):
                continue
            name, arguments = pipe.recv()
            try:
                pipe.send((True, getattr(rank, name)(*arguments)))
            except Exception:
                pipe.send((False, traceback.format_exc()))
    except (EOFError, KeyboardInterrupt):
        return


class Worker:
    """The parent's hold on such a process."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def send(self, name: str, *arguments: Any) -> None:
        """Begins a command, whose result `take` waits for: several ranks work at a time."""
        self._pipe.send((name, arguments))

    def take(self) -> Any:
        """The result of the last command."""
        if not self._pipe.poll(TIMEOUT):
            raise TimeoutError("a rank does not answer")
        good, result = self._pipe.recv()
        if not good:
            raise RuntimeError(result)
        return result

    def call(self, name: str, *arguments: Any) -> Any:
        """Runs a command there."""
        self.send(name, *arguments)
        return self.take()

    def signal(self, number: int) -> None:
        """Sends a signal to the process."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """Kills the process and starts another in its place."""
        self.end()
        self._start()

    def end(self) -> None:
        """Kills the process."""
        if self.process.is_alive():
            self.signal(signal.SIGCONT)
            self.process.kill()
        self.process.join(TIMEOUT)
