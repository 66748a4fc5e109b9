"""Two connectors over agents of this process, kernels that take as long as a test says, and what pages hold."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kvreshard as kvr
from kvreshard.nixl import Connector, Event, Failed, Finished, wire
from kvreshard.nixl.control import Flow
from kvreshard.nixl.staging import Area, Fence
from tests.connector_rank import Bytes, Spec, publish, request
from tests.fabric import Fabric, Fake

HERE = Spec("here", engine="decode", notation="n h k[d] v[d]", pages=64)
THERE = Spec("there", pages=64)
PAGE = THERE.format.page_bytes
SLOT = 2 * PAGE
STAGING: dict[str, Any] = {"staging": 12 * SLOT, "slot_bytes": SLOT}


class Patience:
    """How long a test looks for what has to come: 1.5 seconds of many looks, or 5 of few, where other work keeps the
    machine.
    """

    def __init__(self) -> None:
        self._begun, self._looks = time.monotonic(), 0

    @property
    def lasts(self) -> bool:
        """Whether to look once more."""
        self._looks += 1
        waited = time.monotonic() - self._begun
        return waited < 1.5 or (waited < 5 and self._looks < 1000)


class Pair:
    """Two connectors that know each other, and the pages of both."""

    def __init__(self, here: Spec = HERE, there: Spec = THERE, flow: Flow = "push", **options: Any) -> None:
        self.mine, self.theirs = here.arrays(1), there.arrays(2)
        self.here = Connector("here", flow=flow, **{**STAGING, **options})
        self.there = Connector("there", flow=flow, **{**STAGING, **options})
        publish(self.here, here, self.mine)
        publish(self.there, there, self.theirs)
        self.before = [page.copy() for page in (*self.mine, *self.theirs)]
        self.peer = self.here.connect(self.there.metadata())

    def turns(self, count: int) -> tuple[list[Event], list[Event]]:
        """What both see while each looks so often."""
        seen: tuple[list[Event], list[Event]] = [], []
        for _ in range(count):
            seen[0].extend(self.here.poll())
            seen[1].extend(self.there.poll())
        return seen

    def until(self, *wanted: str) -> tuple[list[Event], list[Event]]:
        """Turns until `here` has seen events of these kinds, of which a failure must be one if there is any."""
        seen: tuple[list[Event], list[Event]] = [], []
        patience = Patience()
        while not set(wanted) <= {type(event).__name__ for event in seen[0]}:
            assert patience.lasts, seen
            for some, more in zip(seen, self.turns(1), strict=True):
                some.extend(more)
            assert "Failed" in wanted or not any(isinstance(event, Failed) for event in seen[0]), seen
        return seen

    def close(self) -> None:
        self.here.close(timeout=0.1)
        self.there.close(timeout=0.1)


def other_agent(fabric: Fabric, name: str, **options: Any) -> tuple[Connector, list[Bytes]]:
    """A connector on a host's agent, with pages as `here` has them."""
    connector = Connector(agent=Fake(name, fabric), **{**STAGING, **options})
    arrays = HERE.arrays(4)
    publish(connector, HERE, arrays)
    return connector, arrays


def tokens(pages: Bytes, spec: Spec) -> np.ndarray:
    """Pages as [page, token, head, K|V and channel], by what their writer does."""
    both = pages.view(np.uint16)
    if spec.notation.startswith("n h"):
        return both.reshape(-1, spec.tokens, spec.heads, 2 * spec.size)
    return both.reshape(-1, spec.heads, spec.tokens, 2 * spec.size).transpose(0, 2, 1, 3)


def pages(count: int, first: int = 0) -> kvr.Request:
    """Pages here, and twice as far on there."""
    at = range(first, first + count)
    return request((0, 16 * count), list(at), [2 * page for page in at])


class Kernels:
    """Kernels, or only those that scatter, that have done their work and are over when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, gathers: bool = True) -> None:
        self.over, self.waited, self.begun = False, 0, list[tuple[int, bool]]()
        move = Area.move

        def slow(area: Area, mover: Any, work: Any, index: int, *, gather: bool, after: Any = None) -> Fence:
            done = move(area, mover, work, index, gather=gather, after=after)
            assert done.over
            if gather and not gathers:
                return done
            self.begun.append((index, gather))
            return Fence(self)

        monkeypatch.setattr(Area, "move", slow)

    def query(self) -> bool:
        return self.over

    def synchronize(self) -> None:
        self.waited += 1


def failure(pair: Pair, *others: Connector) -> tuple[Failed, list[Event]]:
    """Looks until a request has failed; what else was seen."""
    seen, patience = list[Event](), Patience()
    while not any(isinstance(event, Failed) for event in seen):
        assert patience.lasts
        seen += pair.turns(1)[0]
        for other in others:
            other.poll()
    failed = next(event for event in seen if isinstance(event, Failed))
    return failed, [event for event in seen if event is not failed]


def right(pair: Pair, count: int) -> bool:
    """Whether the first pages here are what they are to be."""
    return all(
        np.array_equal(tokens(mine, HERE)[:count], tokens(theirs, THERE)[: 2 * count : 2])
        for mine, theirs in zip(pair.mine, pair.theirs, strict=True)
    )


def works(pair: Pair, count: int = 20) -> None:
    """Another request of many chunks comes through: no slot was lost on either side."""
    pair.turns(5)
    pair.here.read(pair.peer, pages(count), id="works", strategy="packed")
    (finished,) = pair.until("Finished")[0]
    assert isinstance(finished, Finished)
    assert finished.strategies == ("packed",)
    assert right(pair, count)


def other_rank(pair: Pair, name: str = "other", **options: Any) -> tuple[Connector, Any]:
    """A third connector, with pages as `there` has them, and `pair.here`'s peer of it."""
    other = Connector(name, **{**STAGING, **options})
    publish(other, replace(THERE, name=name), THERE.arrays(3))
    return other, pair.here.connect(other.metadata())


def changed(one: Connector) -> bytes:
    """Its metadata of another registration."""
    metadata = wire.decode(one.metadata())
    layers = list(metadata.layout.layers)
    generation = metadata.generation + 1
    layout = kvr.RankLayout(engine=metadata.layout.engine, layers=layers, generation=generation)
    return wire.encode(replace(metadata, layout=layout, generation=generation))


def published(connector: Connector, arrays: list[Bytes], *kinds: Any) -> None:
    """Publishes layers of those kinds, each on a device of its number."""
    for number, (array, kind) in enumerate(zip(arrays, kinds, strict=True)):
        region = connector.register((array.ctypes.data, array.nbytes, number if kind == "VRAM" else 0, kind))
        connector.add_layer(f"layers.{number}", region, HERE.format, pages=HERE.pages, totals={"h": 8})
    connector.publish(engine="decode")
