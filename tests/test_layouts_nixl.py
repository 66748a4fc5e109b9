"""Every scenario of `cases/layouts.toml` through connectors and real NIXL, between two processes that are the engines.

Every byte of every rank is checked afterwards, on both sides, also outside the request.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest

from tests.engine_process import EngineProcess, moved
from tests.oracle.engines import Bytes, Exchange, contents, expected, readers, span
from tests.oracle.model import Rank, Request
from tests.oracle.scenarios import Scenario, scenarios
from tests.planned import Direction
from tests.test_layout_cases import CASES

pytest.importorskip("nixl")

SCENARIOS = {scenario.id: scenario for scenario in scenarios()}
ON_HOST = [scenario for scenario in SCENARIOS.values() if scenario.bullet != "memory kinds"]


@pytest.fixture(scope="module")
def processes() -> Iterator[tuple[EngineProcess, EngineProcess]]:
    """The source's and the target's process, for one scenario after the other."""
    both = EngineProcess(), EngineProcess()
    yield both
    for process in both:
        process.end()


class Met:
    """Both engines of an exchange, opened and routed; whoever issues is local."""

    def __init__(
        self, processes: tuple[EngineProcess, EngineProcess], exchange: Exchange, direction: Direction
    ) -> None:
        self.exchange, self.direction = exchange, direction
        self.source, self.target = processes
        self.issuer, self.other = (self.target, self.source) if direction == "read" else (self.source, self.target)
        told = {
            "source": self.source.call("open", "source", exchange.source, exchange.source_blocks, True, 1000),
            "target": self.target.call("open", "target", exchange.target, exchange.target_blocks, False, 2000),
        }
        self.before = {name: [memory for memory, _ in ranks] for name, ranks in told.items()}
        metadata = {name: [data for _, data in ranks] for name, ranks in told.items()}
        layouts = self.source.call("layouts"), self.target.call("layouts")
        mine, theirs = ("target", "source") if direction == "read" else ("source", "target")
        counts = [
            self.issuer.call("meet", metadata[theirs], layouts[0 if theirs == "source" else 1], direction, True),
            self.other.call("meet", metadata[mine], layouts[0 if mine == "source" else 1], direction, False),
        ]
        assert counts[0] == counts[1], "both sides count alike"
        read, written, self.idle = readers(exchange)
        self.counts = counts[0]
        assert self.counts == (read if direction == "read" else written)

    def requests(self, tokens: tuple[int, int] | None = None) -> dict[tuple[int, int], Request]:
        """The request of every pair (issuing rank, other rank)."""
        found = {}
        for target in range(len(self.exchange.target)):
            for source in range(len(self.exchange.source)):
                asked = self.exchange.request(target, source, tokens)
                if self.direction == "read":
                    found[target, source] = asked
                else:
                    found[source, target] = Request(asked.tokens, asked.remote, asked.local)
        return found

    def expect(self, id: str) -> set[tuple[int, str, str]]:
        """Has the passive ranks wait; the events that they must see."""
        kind, event = ("readers", "Released") if self.direction == "read" else ("writers", "Arrived")
        self.other.call("expect", id, kind, self.counts)
        return {(rank, event, id) for rank in range(len(self.counts))}

    def issue(self, id: str, tokens: tuple[int, int] | None = None, *, more: bool = False, **options: Any) -> list[Any]:
        """Issues on every rank and waits until all have finished."""
        issued = self.issuer.call("issue", id, self.requests(tokens), more, options)
        ranks = self.exchange.target if self.direction == "read" else self.exchange.source
        issuing = [rank for rank in range(len(ranks)) if self.direction == "read" or rank not in self.idle]
        assert len(issued) == len(issuing)
        return self.issuer.wait({(rank, "Finished", id) for rank in issuing})

    def check(self) -> None:
        """Every byte of both sides."""
        for rank, memory in enumerate(self.target.call("memories")):
            wanted = expected(self.exchange, rank, self.before["target"][rank])
            np.testing.assert_array_equal(memory, wanted, err_msg=f"target rank {rank}")
        for rank, memory in enumerate(self.source.call("memories")):
            np.testing.assert_array_equal(memory, self.before["source"][rank], err_msg=f"source rank {rank}")

    def close(self) -> None:
        self.issuer.call("close")
        self.other.call("close")


@pytest.mark.parametrize("scenario", ON_HOST, ids=lambda scenario: scenario.id)
def test_nixl_moves_it(processes: tuple[EngineProcess, EngineProcess], scenario: Scenario) -> None:
    met = Met(processes, scenario.exchange, cast(Direction, scenario.direction))
    awaited = met.expect("r")
    seen = met.issue("r")
    met.issuer.call("tell_idle", "r")
    met.other.wait(awaited)
    met.check()
    posted = sum(event[3] for event in seen if event[1] == "Finished")
    if not (scenario.direction == "write" and any(CASES[scenario.id]["zero"])):
        # Rows that are rounded up at the end may be fewer than the exact runs; what a push clears is posted too.
        assert posted <= sum(edge["descriptors"] for edge in CASES[scenario.id]["edges"])
    met.close()


PUSHED = [
    "planes-tp2-to-tp1",
    "layers-to-rows-tp2",
    "gdn-tp1-to-tp2",
    "dcp4-to-dcp2-unequal",
    "pp3-to-pp2-tp2",
    "hits-per-group",
]


@pytest.mark.parametrize("name", PUSHED)
def test_the_source_may_push_it(processes: tuple[EngineProcess, EngineProcess], name: str) -> None:
    """The same by writes: what no source sends is cleared by the writers, too."""
    met = Met(processes, SCENARIOS[name].exchange, "write")
    awaited = met.expect("w")
    met.issue("w")
    met.other.wait(awaited)
    met.check()
    met.close()


INCREMENTAL = {
    "rows-to-layers": [0, 5, 6, 12],
    "layers-to-rows-tp2": [0, 4, 7, 12],
    "sides-apart-to-joint": [0, 2, 11],
    "dcp4-to-dcp2-unequal": [0, 9, 22, 40],
    "hybrid-tp1-to-tp2": [0, 3, 11],
    "compressed-by-4": [4, 10, 18, 30],
    "inside-a-page": [6, 7, 13],
}


@pytest.mark.parametrize("direction", ["write", "read"])
@pytest.mark.parametrize("name", INCREMENTAL)
def test_layer_by_layer_and_chunk_by_chunk(
    processes: tuple[EngineProcess, EngineProcess], name: str, direction: Direction
) -> None:
    """Parts in no order, each layer's chunks apart, then one notice for all."""
    exchange = SCENARIOS[name].exchange
    cuts = INCREMENTAL[name]
    assert (cuts[0], cuts[-1]) == exchange.tokens
    met = Met(processes, exchange, direction)
    awaited = met.expect("all")
    layers = sorted({layer.name for rank in exchange.target for layer in rank.layers})
    parts = [(layer, cuts[i], cuts[i + 1]) for i in range(len(cuts) - 1) for layer in layers]
    # The last part first, then every second one.
    for number, (layer, start, end) in enumerate(parts[::-1][::2] + parts[::-1][1::2]):
        met.issue(f"part-{number}", (start, end), more=end != cuts[-1], layers=[layer], notify=False)
        assert not met.other.call("events"), "a part was taken for the whole"
    met.issuer.call("tell", "all")
    met.issuer.call("tell_idle", "all")
    met.other.wait(awaited)
    met.check()
    met.close()


def test_a_layer_goes_as_soon_as_it_is_computed(processes: tuple[EngineProcess, EngineProcess]) -> None:
    """Prefill computes a layer, pushes it, computes the next one: nothing is sent before it is there."""
    whole = SCENARIOS["layers-to-rows-tp2"].exchange
    met = Met(processes, whole, "write")
    met.source.call("close")
    met.target.call("close")
    nothing = dataclasses.replace(whole, source_blocks=tuple((type(b[0])(()),) for b in whole.source_blocks))
    met = Met(processes, nothing, "write")
    met.exchange = whole
    awaited = met.expect("all")
    for number, layer in enumerate(whole.source[0].layers):
        one = dataclasses.replace(whole.source[0], layers=(layer,))
        at, values = contents(one, whole.source_blocks[0], (0, 1 << 30))
        met.source.call("fill", 0, at - span(whole.source[0])[0], values)
        met.before["source"][0][at - span(whole.source[0])[0]] = values
        met.issue(f"layer-{number}", layers=[layer.name], notify=False)
    met.issuer.call("tell", "all")
    met.other.wait(awaited)
    met.check()
    met.close()


def _no_device() -> bool:
    try:
        import torch
    except ImportError:
        return True
    return not torch.cuda.is_available()


@pytest.mark.skipif(_no_device(), reason="host and device memory in one layout need a CUDA device")
def test_host_and_device_memory_in_one_layout() -> None:
    """Two ranks of one process: each layer's pages cross from one kind of memory to the other."""
    import torch

    from kvreshard.nixl import Connector
    from tests.convert import to_format, to_request
    from tests.oracle.engines import filled

    exchange = SCENARIOS["memory-kinds"].exchange
    made: list[tuple[Connector, list[torch.Tensor], Rank, Bytes]] = []
    for name, rank, blocks, has in (
        ("source", exchange.source[0], exchange.source_blocks[0], True),
        ("target", exchange.target[0], exchange.target_blocks[0], False),
    ):
        memory = filled(rank, blocks if has else [type(b)(()) for b in blocks], (0, 1 << 30), 7)
        connector, tensors = Connector(name), []
        for layer in rank.layers:
            (segment,) = layer.segments
            region = rank.regions[segment.region]
            start = region.base - span(rank)[0]
            device = "cuda" if region.memory == "VRAM" else "cpu"
            pages = torch.from_numpy(memory[start : start + region.bytes].copy()).to(device).view(segment.pages, -1)
            tensors.append(pages)
            connector.add_layer(layer.name, pages, to_format(segment.page), totals={"h": 2}, holds={"h": (0, 2)})
        connector.publish(engine=name)
        made.append((connector, tensors, rank, memory))
    (there, *_), (here, tensors, rank, before) = made
    with there, here:
        peer = here.connect(there.metadata())
        here.read(peer, to_request(exchange.request(0, 0)), id="r")
        while here.in_flight:
            here.poll(timeout=0.01)
            there.poll()
        wanted = expected(exchange, 0, before)
        for layer, pages in zip(rank.layers, tensors, strict=True):
            region = rank.regions[layer.segments[0].region]
            start = region.base - span(rank)[0]
            found = pages.cpu().numpy().reshape(-1)
            np.testing.assert_array_equal(found, wanted[start : start + region.bytes])


def test_memory_moves_with_its_rank() -> None:
    """What the processes rely on: a rank elsewhere is the same rank."""
    rank = SCENARIOS["rows-padded"].exchange.source[0]
    assert span(moved(rank, 4096)) == tuple(at + 4096 for at in span(rank))
