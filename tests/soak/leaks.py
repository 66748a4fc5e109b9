"""Connects, transfers and disconnects, many times over: what is held afterwards is what was held before.

    python -m tests.soak.leaks --count 10000

Two loops. In one, a connector connects a rank process, moves pages by the next strategy and disconnects. In the other,
whole connectors under names of their own come and go. After every tenth part of the loop this process and the rank are
looked at: descriptors, threads, resident memory, and what NIXL and the connector hold of this side.

The rank remembers the ids of the last 16,384 requests that it heard of before it expected them, and as many that are
over: its memory grows by that. `--remembered 256` makes that few, so that whatever else grows is seen.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from kvreshard.nixl import Connector
from kvreshard.nixl.agent import NixlAgent
from tests.connector_rank import Rank, Spec, publish, request, running

PAGES = 16
SPEC = Spec("here", engine="decode", pages=PAGES, layers=1, notation="n h k[d] v[d]")
THERE = replace(SPEC, name="there", engine="prefill", notation="h n k[d] v[d]")
STAGING: dict[str, Any] = {"staging": 12 * SPEC.format.page_bytes, "slot_bytes": SPEC.format.page_bytes}

WAYS: list[tuple[Literal["read", "write"], dict[str, Any]]] = [
    ("read", {"strategy": "direct"}),
    ("write", {"strategy": "direct"}),
    ("read", {"strategy": "landed"}),
    ("read", {"strategy": "packed"}),
    ("write", {"strategy": "packed"}),
    ("read", {"strategy": "direct", "fence": True}),
]

SAMPLES = 10


@dataclass(frozen=True)
class Sample:
    """What is held after so many turns. Memory in KiB; `peer_` is the rank process."""

    turns: int
    seconds: float
    fds: int
    threads: int
    resident: int
    handles: int
    prepared: int
    registered: int
    peers: int
    peer_fds: int
    peer_threads: int
    peer_resident: int


class Counted:
    """A NIXL agent, with account kept of what it has given out."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self.handles = self.prepared = self.registered = self.peers = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._agent, name)
        if name not in _COUNTS:
            return found
        what, by = _COUNTS[name]

        def call(*arguments: Any, **named: Any) -> Any:
            result = found(*arguments, **named)
            setattr(self, what, getattr(self, what) + by)
            return result

        return call


_COUNTS = {
    "make_prepped_xfer": ("handles", 1),
    "initialize_xfer": ("handles", 1),
    "release_xfer_handle": ("handles", -1),
    "prep_xfer_dlist": ("prepared", 1),
    "release_dlist_handle": ("prepared", -1),
    "register_memory": ("registered", 1),
    "deregister_memory": ("registered", -1),
    "add_remote_agent": ("peers", 1),
    "remove_remote_agent": ("peers", -1),
}


def count(connector: Connector) -> Counted:
    """Keeps account of a connector's agent from now on."""
    counted = Counted(connector._agent._nixl)
    connector._agent._nixl = cast(NixlAgent, counted)
    return counted


def held(pid: int) -> tuple[int, int, int]:
    """Descriptors, threads and resident KiB of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return len(os.listdir(f"/proc/{pid}/fd")), int(found["Threads"]), int(found["VmRSS"].split()[0])


@dataclass
class Account:
    """Samples of one loop."""

    counted: Counted
    rank: Rank
    began: float

    def sample(self, turns: int) -> Sample:
        """What is held now."""
        gc.collect()
        assert self.rank.process.pid is not None
        one = self.counted
        return Sample(
            turns,
            time.monotonic() - self.began,
            *held(os.getpid()),
            one.handles,
            one.prepared,
            one.registered,
            one.peers,
            *held(self.rank.process.pid),
        )


@contextmanager
def _parties(**options: Any) -> Iterator[tuple[Connector, list[Any], Rank]]:
    mine = SPEC.arrays(1)
    with running(replace(THERE, options=STAGING)) as (rank,), Connector("here", **STAGING, **options) as here:
        yield here, mine, rank


def _move(here: Connector, rank: Rank, data: bytes, mine: list[Any], turn: int, theirs: list[Any]) -> None:
    """Connects, moves three pages, checks them where they were read, and disconnects."""
    direction, options = WAYS[turn % len(WAYS)]
    peer = here.connect(data, direction=direction)
    id = f"{here.name}/{turn}"
    if options.get("fence"):
        rank.call("expect", id, {"readers": 1}, during=here)
    if direction == "read":
        mine[0][:3] = 0
    call = here.read if direction == "read" else here.write
    # What is written goes into pages that are never read back.
    there = [4, 5, 6] if direction == "read" else [10, 9, 8]
    call(peer, request((0, 48), [0, 1, 2], there), id=id, **options)
    ends = time.monotonic() + 30
    while not (events := here.poll(timeout=1.0)):
        assert time.monotonic() < ends, f"turn {turn} did not end"
    assert [type(event).__name__ for event in events] == ["Finished"], events
    if direction == "read":
        shape = (SPEC.heads, SPEC.tokens, 2 * SPEC.size)
        for page, source in enumerate(there):
            wanted = theirs[0][source].view(np.uint16).reshape(shape).swapaxes(0, 1)
            assert np.array_equal(mine[0][page].view(np.uint16).reshape(wanted.shape), wanted), f"turn {turn}"
    here.disconnect(peer)


def reconnecting(turns: int, remembered: int | None = None) -> list[Sample]:
    """One connector, and the same peer connected and disconnected over and over."""
    samples: list[Sample] = []
    with _parties() as (here, mine, rank):
        account = Account(count(here), rank, time.monotonic())
        if remembered is not None:
            rank.call("remember", remembered)
        publish(here, SPEC, mine)
        data, theirs = rank.call("metadata"), rank.call("pages")
        for turn in range(turns):
            _move(here, rank, data, mine, turn, theirs)
            if turn % 20 == 0:
                rank.call("events", during=here)
            if (turn + 1) % max(1, turns // SAMPLES) == 0:
                samples.append(account.sample(turn + 1))
    return samples


def coming_and_going(turns: int) -> list[Sample]:
    """Connectors that are opened, used once and closed; no two have one name, as processes that come and go."""
    samples: list[Sample] = []
    names = itertools.count()
    with _parties() as (_, mine, rank):
        counts = Counted(None)
        account = Account(counts, rank, time.monotonic())
        data, theirs = rank.call("metadata"), rank.call("pages")
        for turn in range(turns):
            with Connector(f"passing-{next(names)}", **STAGING) as here:
                counted = count(here)
                publish(here, SPEC, mine)
                _move(here, rank, data, mine, turn, theirs)
                rank.call("events", during=here)
            rank.call("gone", here.name)
            # Peers that are kept loaded went with the agent.
            for field in ("handles", "prepared", "registered"):
                setattr(counts, field, getattr(counts, field) + getattr(counted, field))
            if (turn + 1) % max(1, turns // SAMPLES) == 0:
                samples.append(account.sample(turn + 1))
    return samples


def show(title: str, samples: list[Sample]) -> None:
    """Prints a table."""
    names = [field.name.replace("_", " ") for field in fields(Sample)]
    print(f"\n{title}\n" + "  ".join(f"{name:>13}" for name in names))
    for sample in samples:
        cells = [f"{value:13.1f}" if isinstance(value, float) else f"{value:13}" for value in astuple(sample)]
        print("  ".join(cells), flush=True)


def main() -> None:
    """Runs both loops and prints what was held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=10_000, help="connects, transfers and disconnects")
    parser.add_argument("--connectors", type=int, default=1_000, help="connectors opened and closed")
    parser.add_argument("--remembered", type=int, help="ids of requests that the rank remembers, of each kind")
    chosen = parser.parse_args()
    show("One connector; a peer connected, a transfer, disconnected:", reconnecting(chosen.count, chosen.remembered))
    if chosen.connectors:
        show("Connectors opened, a transfer each, closed:", coming_and_going(chosen.connectors))


if __name__ == "__main__":
    main()
