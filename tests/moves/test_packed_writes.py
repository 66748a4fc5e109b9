"""Packed writes: a writer that has finished, and a host that is told so, rely on all of the pages."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("nixl")

import kvreshard as kvr
from kvreshard.nixl import Arrived, Finished, TransferError, clearing, control
from kvreshard.nixl.staging import Area
from tests.connector_rank import request
from tests.fabric import Fabric
from tests.pairs import HERE, THERE, Kernels, Pair, failure, pages
from tests.told import told

FLOWS = pytest.mark.parametrize("flow", ["push", "pull"])


def writers(flow: control.Flow) -> Pair:
    """Two of which one is about to be written to."""
    pair = Pair(replace(THERE, name="here"), replace(HERE, name="there"), flow=flow)
    pair.there.expect("w", writers=1)
    return pair


@FLOWS
def test_a_write_is_over_when_all_is_scattered(
    fabric: Fabric, flow: control.Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is told that the pages have arrived reads them at once, and a scatter on a device takes its time."""
    pair, kernels = writers(flow), Kernels(monkeypatch, gathers=False)
    pair.here.write(pair.peer, pages(2), id="w", strategy="packed")
    assert pair.turns(30) == ([], [])
    assert [gather for _, gather in kernels.begun] == [False] * 2
    kernels.over = True
    here, there = pair.until("Finished")
    assert [type(event) for event in here] == [Finished]
    assert there + pair.turns(1)[1] == [Arrived("w", ("here",))]
    pair.close()


@FLOWS
def test_a_write_whose_last_scatter_fails_is_told_to_the_writer(
    fabric: Fabric, flow: control.Flow, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pair, move = writers(flow), Area.move

    def broken(area: Area, mover: Any, work: kvr.Chunk, index: int, *, gather: bool, after: Any = None) -> Any:
        if not gather and work is pair.there._packing._parcels["here", name, "receiver"].chunks[-1]:
            raise RuntimeError("out of kernels")
        return move(area, mover, work, index, gather=gather, after=after)

    monkeypatch.setattr(Area, "move", broken)
    pair.here.write(pair.peer, pages(2), id="w", strategy="packed")
    ((_, name, _),) = pair.here._packing._parcels
    failed, others = failure(pair)
    assert (type(failed.reason), failed.pages, others) == (TransferError, "free", [])
    assert told(failed.reason)[0] == "request w: peer there gave it up: kernel failed"
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR] == [
        "request w of peer here: out of kernels"
    ]
    assert pair.turns(3) == ([], [])
    monkeypatch.setattr(Area, "move", move)
    pair.here.write(pair.peer, pages(2), id="w", strategy="packed")
    _, there = pair.until("Finished")
    assert there + pair.turns(1)[1] == [Arrived("w", ("here",))]
    pair.close()


def test_a_receiver_that_cannot_clear_its_pages_tells_the_writer(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A writer that has finished relies on all of the pages, also on what lies behind the last token."""

    def broken(*_: Any) -> None:
        raise RuntimeError("no such memory")

    pair = Pair(replace(THERE, name="here"), replace(HERE, name="there"))
    clear = clearing.clear
    monkeypatch.setattr(clearing, "clear", broken)
    pair.here.write(pair.peer, request((0, 20), [0, 1], [0, 1]), id="w", strategy="packed")
    pair.there.expect("w", writers=1)
    failed, others = failure(pair)
    assert (type(failed.reason), failed.pages, others) == (TransferError, "free", [])
    assert not any(isinstance(event, Arrived) for event in pair.turns(2)[1])
    assert told(failed.reason) == ("request w: peer there gave it up: kernel failed", {"peer": "there", "request": "w"})
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert logged == ["request w of peer here: not all pages were cleared: no such memory"]
    monkeypatch.setattr(clearing, "clear", clear)
    pair.here.write(pair.peer, request((0, 20), [0, 1], [0, 1]), id="again", strategy="packed")
    assert [type(event) for event in pair.until("Finished")[0]] == [Finished]
    pair.close()
