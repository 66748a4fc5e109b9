"""Pages of two kinds of memory in one layout: what is told apart by the kind. "Device" memory is the host's here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

pytest.importorskip("nixl")

from kvreshard.nixl import (
    Arrived,
    Connector,
    Finished,
    NotRegistered,
    TransferError,
    Unsupported,
    clearing,
    issue,
)
from tests.connector_rank import Bytes, Spec, request
from tests.fabric import Fabric
from tests.pairs import HERE, STAGING, THERE, Pair, pages, tokens
from tests.scripted import BROKEN, MISSING
from tests.told import told

Kind = Literal["DRAM", "VRAM"]
HOST: tuple[Kind, Kind] = ("DRAM", "DRAM")
DEVICE: tuple[Kind, Kind] = ("VRAM", "VRAM")


def publish(connector: Connector, spec: Spec, arrays: Sequence[Bytes], kinds: Sequence[Kind]) -> None:
    """Publishes layers of these kinds of memory."""
    for number, (array, kind) in enumerate(zip(arrays, kinds, strict=True)):
        raw = (array.ctypes.data, array.nbytes, 0, kind)
        connector.add_layer(f"layers.{number}", raw, spec.format, totals={"h": spec.total_heads})
    connector.publish(engine=spec.engine)


class Mixed(Pair):
    """A pair whose layers are of two kinds of memory."""

    def __init__(
        self,
        here: Spec = HERE,
        there: Spec = THERE,
        kinds: tuple[Kind, Kind] = ("DRAM", "VRAM"),
        others: tuple[Kind, Kind] = ("VRAM", "DRAM"),
        staging: dict[str, Any] = STAGING,
    ) -> None:
        self.mine, self.theirs = here.arrays(1), there.arrays(2)
        self.here, self.there = Connector("here", **staging), Connector("there", **staging)
        publish(self.here, here, self.mine, kinds)
        publish(self.there, there, self.theirs, others)
        self.before = [page.copy() for page in (*self.mine, *self.theirs)]
        self.peer = self.here.connect(self.there.metadata())


def test_a_read_goes_kind_by_kind_and_the_last_transfer_tells(fabric: Fabric) -> None:
    pair = Mixed()
    pair.there.expect("r", readers=1)
    pair.here.read(pair.peer, pages(4), id="r")
    here, there = pair.until("Finished")
    (finished,) = here
    assert isinstance(finished, Finished)
    assert [type(event).__name__ for event in there] == ["Released"]
    first, second = fabric.made
    assert (first.notice, second.notice != b"") == (b"", True)
    assert [len(handle.ours) for handle in fabric.made] == [share.posted for share in finished.transfers]
    assert sum(int(handle.ours[:, 1].sum()) for handle in fabric.made) == finished.bytes
    (share,) = finished.shares
    assert share.predicted is not None
    assert (share.predicted.posted, share.predicted.bytes) == (finished.posted, finished.bytes)
    for mine, theirs in zip(pair.mine, pair.theirs, strict=True):
        np.testing.assert_array_equal(tokens(mine, HERE)[:4], tokens(theirs, THERE)[0:8:2])
    pair.close()


@pytest.mark.parametrize("ids", [True, False])
def test_what_cannot_be_made_takes_back_what_was(fabric: Fabric, ids: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By numbered rows or by lists, which begin inside a row here."""
    pair = Mixed()
    call, error, kind = (
        ("make_prepped_xfer", BROKEN, TransferError) if ids else ("initialize_xfer", MISSING, NotRegistered)
    )
    agent = fabric.agents["here"]
    make = getattr(agent, call)

    def second_refused(*arguments: Any, **options: Any) -> Any:
        if fabric.made:
            raise error
        return make(*arguments, **options)

    monkeypatch.setattr(agent, call, second_refused)
    wanted = pages(2) if ids else request((3, 16), [1], [2])
    with pytest.raises(kind) as caught:
        pair.here.read(pair.peer, wanted, id="r", strategy="direct")
    assert (caught.value.peer, caught.value.request, caught.value.code) == ("there", "r", str(error))
    assert [handle.state for handle in fabric.made] == ["made"]
    assert (agent.alive, pair.here.in_flight) == ([], ())
    assert pair.peer.metrics.refusals == 1
    pair.close()


def test_both_kinds_are_cleared_here_when_all_has_arrived(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Mixed()
    required: list[str] = []
    cleared: list[tuple[str, int]] = []
    moved: list[bool] = []

    def clear(rows: Any, kind: str, memory: Any) -> None:
        memory.check(rows, kind)
        moved.append(all(handle.state == "DONE" for handle in fabric.made))
        cleared.append((kind, int(rows[:, 1].sum())))
        for address, _, _ in rows.tolist():
            assert any(array.ctypes.data <= address < array.ctypes.data + array.nbytes for array in pair.mine)

    monkeypatch.setattr(clearing, "require", required.append)
    monkeypatch.setattr(clearing, "clear", clear)
    pair.here.read(pair.peer, request((0, 20), [0, 1], [0, 1]), id="r", strategy="direct")
    assert required == ["DRAM", "VRAM"]
    assert cleared == []
    pair.until("Finished")
    rest = 12 * HERE.heads * HERE.size * 2 * 2
    assert (cleared, moved) == ([("DRAM", rest), ("VRAM", rest)], [True, True])
    # Not where that is not ordered.
    cleared.clear()
    pair.here.read(pair.peer, request((0, 20), [0, 1], [0, 1]), id="s", strategy="direct", zero=False)
    pair.until("Finished")
    assert cleared == []
    pair.close()


def test_what_cannot_be_cleared_is_refused_before_anything_moves(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(kind: str) -> None:
        if kind == "VRAM":
            raise Unsupported("no torch")

    pair = Mixed()
    monkeypatch.setattr(clearing, "require", refuse)
    part = request((0, 20), [0, 1], [0, 1])
    with pytest.raises(Unsupported) as caught:
        pair.here.read(pair.peer, part, id="r", strategy="direct")
    assert told(caught.value) == ("no torch", {"request": "r"})
    assert (fabric.made, fabric.agents["here"].alive) == ([], [])
    pair.close()


def test_a_write_clears_both_kinds_there_with_the_last_transfer_telling(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By zeros of this rank's, again and again where they are fewer than the bytes."""
    monkeypatch.setattr(issue, "ZEROS", 1000)
    pair = Mixed(replace(THERE, name="here"), replace(HERE, name="there"))
    pair.there.expect("w", writers=1)
    pair.here.write(pair.peer, request((0, 20), [0, 1], [0, 1]), id="w", strategy="direct")
    here, there = pair.until("Finished")
    (finished,) = here
    assert isinstance(finished, Finished)
    assert [*there, *pair.turns(1)[1]] == [Arrived("w", ("here",))]
    assert [bool(handle.notice) for handle in fabric.made] == [False, False, False, True]
    rest = 12 * HERE.heads * HERE.size * 2 * 2
    for handle, one in zip(fabric.made[2:], finished.transfers[2:], strict=True):
        assert handle.operation == "WRITE"
        sizes = handle.ours[:, 1].tolist()
        assert (len(sizes), one.posted, sum(sizes), one.bytes) == (13, 13, rest, rest)
        assert sizes == [1000] * 12 + [rest - 12000]
        assert len(set(handle.ours[:, 0].tolist())) == 1
        assert not one.prepared
    for layer, theirs in enumerate(pair.theirs):
        wanted = tokens(pair.before[HERE.layers + layer], HERE).copy()
        wanted[:2] = tokens(pair.mine[layer], THERE)[:2]
        wanted[1, 4:] = 0
        np.testing.assert_array_equal(tokens(theirs, HERE), wanted)
    # The zeros are registered once, and the connector's.
    registered = len(fabric.agents["here"].regions)
    pair.here.write(pair.peer, request((0, 20), [0, 1], [0, 1]), id="x", strategy="direct")
    pair.until("Finished")
    assert len(fabric.agents["here"].regions) == registered == HERE.layers + 1
    pair.close()


@pytest.mark.parametrize("kinds", [(HOST, DEVICE), (DEVICE, HOST)])
def test_what_is_cleared_is_of_the_kind_of_the_side_that_takes(
    fabric: Fabric, kinds: tuple[tuple[Kind, Kind], tuple[Kind, Kind]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Mixed(kinds=kinds[0], others=kinds[1], staging={})
    cleared: list[str] = []
    monkeypatch.setattr(clearing, "require", cleared.append)
    monkeypatch.setattr(clearing, "clear", lambda rows, kind, memory: cleared.append(f"{kind} is clear"))
    part = request((0, 20), [0, 1], [0, 1])
    pair.here.read(pair.peer, part, id="r")
    pair.until("Finished")
    here, _ = kinds[0]
    assert cleared == [here, f"{here} is clear"]
    fabric.made.clear()
    pair.here.write(pair.peer, part, id="w")
    pair.until("Finished")
    # The peer's by zeros of this rank's.
    assert len(cleared) == 2
    assert [len(set(handle.ours[:, 0].tolist())) == 1 for handle in fabric.made] == [False, True]
    pair.close()


@pytest.mark.parametrize("layer", [0, 1])
def test_spans_of_one_kind_are_landed(fabric: Fabric, layer: int) -> None:
    """A slot lies beside pages of one kind, and so do the spans that are read into it."""
    pair = Mixed(kinds=HOST)
    with pytest.raises(Unsupported) as caught:
        pair.here.read(pair.peer, pages(4), id="r", strategy="landed")
    assert told(caught.value)[1]["found"] == "landed"
    assert fabric.made == []
    pair.here.read(pair.peer, pages(4), id="r", strategy="landed", layers=[f"layers.{layer}"])
    (finished,) = pair.until("Finished")[0]
    assert isinstance(finished, Finished)
    assert finished.strategies == ("landed",)
    assert finished.bytes == 4 * THERE.format.page_bytes
    for number, (mine, theirs) in enumerate(zip(pair.mine, pair.theirs, strict=True)):
        same = np.array_equal(tokens(mine, HERE)[:4], tokens(theirs, THERE)[0:8:2])
        assert same == (number == layer)
    pair.close()
