"""What a rank tells a peer of a packed request, and what it makes of what a peer tells it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nixl")

import kvreshard as kvr
from kvreshard.nixl import clearing, control
from kvreshard.nixl.parcels import Parcel, size
from kvreshard.nixl.staging import Fence
from tests.connector_rank import request
from tests.fabric import Fabric
from tests.pairs import HERE, SLOT, THERE, Pair, pages, works

IDS = b"\0\0\0\0\1\0\0\0"
TWICE = b"\0\0\0\0\2\0\0\0"


def parcels(fabric: Fabric, id: str) -> list[control.Parcel]:
    """What was told of a request."""
    sent = [control.decode(message) for _, _, message in fabric.told if control.is_control(message)]
    return [one for one in sent if isinstance(one, control.Parcel) and one.id == id]


def opened(pair: Pair, id: str) -> tuple[Parcel, Parcel]:
    """The parcels of a request, here and there."""
    found = []
    for connector in (pair.here, pair.there):
        (one,) = [one for one in connector._packing._parcels.values() if one.id == id]
        found.append(one)
    return found[0], found[1]


@pytest.mark.parametrize("direction", ["read", "write"])
@pytest.mark.parametrize("layers", [None, ["layers.1"]])
def test_both_sides_make_the_same_of_a_request(fabric: Fabric, direction: str, layers: list[str] | None) -> None:
    pair = Pair()
    works(pair)
    fabric.held = lambda handle: True
    act = pair.here.read if direction == "read" else pair.here.write
    act(pair.peer, pages(2), id="r", strategy="packed", layers=layers, zero=direction == "read")
    pair.turns(3)
    ours, theirs = opened(pair, "r")
    message = ours.message
    reads = direction == "read"
    moved = 2 * HERE.format.page_bytes * (1 if layers else 2)
    plan = pair.peer.packed_plan("receiver" if reads else "sender", None if layers is None else tuple(layers), None)
    assert plan.direction == "read"
    assert message == control.Parcel(
        name=ours.name,
        id="r",
        gather=reads,
        zero=reads,
        tokens=(0, 32),
        more=False,
        local=[(0, IDS if reads else TWICE)],
        remote=[(0, TWICE if reads else IDS)],
        layers=layers,
        takes=None,
        limit=SLOT,
        bytes=moved,
        chunk=SLOT,
        digest=plan.digest,
        generation=pair.there.generation,
    )
    assert theirs.message == message
    assert (ours.role, theirs.role) == (("receiver", "sender") if reads else ("sender", "receiver"))
    assert (ours.ours, theirs.ours, ours.id, theirs.id, ours.name) == (True, False, "r", "r", theirs.name)
    assert (ours.peer, theirs.peer.name) == (pair.peer, "here")
    assert [chunk.bytes for chunk in ours.chunks] == [chunk.bytes for chunk in theirs.chunks]
    assert size(ours.chunks) == size(theirs.chunks) == (moved, SLOT)
    assert (ours.clear, theirs.clear, ours.after, theirs.after) == (None, None, None, None)
    fabric.held = lambda handle: False
    pair.until("Finished")
    pair.close()


def test_names_of_parcels_differ(fabric: Fabric) -> None:
    pair = Pair()
    for id in ("r", "s"):
        pair.here.read(pair.peer, pages(2), id=id, strategy="packed")
    pair.until("Finished")
    first, second = (parcels(fabric, id)[0].name for id in ("r", "s"))
    assert int(second, 16) == int(first, 16) + 1
    pair.close()


@pytest.mark.parametrize("direction", ["read", "write"])
@pytest.mark.parametrize("more", [False, True])
def test_a_request_in_parts_says_that_there_is_more(fabric: Fabric, direction: str, more: bool) -> None:
    """Of two pages the first: the second is another part's to fill, and cleared where there is none."""
    pair = Pair(HERE, replace(HERE, name="there"))
    part = kvr.Request((0, 16), [kvr.Blocks([0, 1])], [kvr.Blocks([0, 2])], more=more)
    act = pair.here.read if direction == "read" else pair.here.write
    act(pair.peer, part, id="r", strategy="packed")
    pair.until("Finished")
    (message,) = parcels(fabric, "r")
    assert (message.more, message.tokens) == (more, (0, 16))
    target, rest = (pair.mine, 1) if direction == "read" else (pair.theirs, 2)
    before = pair.before[: HERE.layers] if direction == "read" else pair.before[HERE.layers :]
    for now, then in zip(target, before, strict=True):
        np.testing.assert_array_equal(now[rest], then[rest] if more else 0)
    pair.close()


@pytest.mark.parametrize("direction", ["read", "write"])
def test_the_edge_of_a_route_is_told(fabric: Fabric, direction: Any) -> None:
    pair = Pair(HERE, replace(HERE, name="there"))
    edge = kvr.Edge.told(direction, [("layers.1", [("h", 0, 8)], True)])
    pair.here.connect(pair.there.metadata(), edge=edge, direction=direction)
    act = pair.here.read if direction == "read" else pair.here.write
    act(pair.peer, pages(2), id="r", strategy="packed")
    pair.until("Finished")
    (message,) = parcels(fabric, "r")
    assert message.takes == pair.peer.takes(direction)
    assert message.takes is not None
    assert [one[0] for one in message.takes] == ["layers.1"]
    assert message.bytes == 2 * HERE.format.page_bytes
    pair.close()


def theirs(pair: Pair, message: control.Parcel) -> None:
    """`there` hears of a parcel."""
    pair.there._parcelling.theirs(pair.there._peers["here"], message)


def again(message: control.Parcel, **changed: Any) -> control.Parcel:
    """Another parcel like it."""
    return control.Parcel(**{**{name: getattr(message, name) for name in message.__struct_fields__}, **changed})


def example(fabric: Fabric, pair: Pair, act: Callable[..., None]) -> control.Parcel:
    """What is told of a request that comes through."""
    act(pair.peer, pages(2), id="first", strategy="packed")
    pair.until("Finished")
    return parcels(fabric, "first")[-1]


def test_a_parcel_that_is_known_is_taken_once(fabric: Fabric) -> None:
    pair = Pair()
    message = again(example(fabric, pair, pair.here.read), name="new", id="new")
    theirs(pair, message)
    (taken,) = pair.there._packing._parcels.values()
    theirs(pair, message)
    assert list(pair.there._packing._parcels.values()) == [taken]
    assert pair.there._packing._parcels[taken.key] is taken
    pair.close()


def test_a_parcel_that_is_refused_is_told_so_with_its_name(fabric: Fabric, caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair()
    message = example(fabric, pair, pair.here.read)
    for changed, gone in (({"layers": ["no such layer"], "digest": "0"}, False), ({"id": "over"}, True)):
        pair.there.expect("over", readers=1)
        pair.there.forget("over")
        fabric.told.clear()
        caplog.clear()
        theirs(pair, again(message, **{"name": "odd", **changed}))
        (answer,) = [control.decode(sent) for _, _, sent in fabric.told]
        assert isinstance(answer, control.Refused)
        assert (answer.name, answer.gone) == ("odd", gone)
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        id = changed.get("id", "first")
        assert record.getMessage() == f"request {id} of peer here is refused: {answer.text}"
    pair.close()


def test_only_so_much_of_a_reason_is_told(fabric: Fabric) -> None:
    pair = Pair()
    message = example(fabric, pair, pair.here.read)
    fabric.told.clear()
    theirs(pair, again(message, name="odd", layers=["x" * 2000], digest="0"))
    (answer,) = [control.decode(sent) for _, _, sent in fabric.told]
    assert isinstance(answer, control.Refused)
    assert len(answer.text) == 1000
    pair.close()


@pytest.mark.parametrize(("over", "taken"), [("r", False), ("w", True)])
def test_written_pages_are_over_by_themselves(fabric: Fabric, over: str, taken: bool) -> None:
    """A request that was expected of readers says nothing of writers, and the other way round."""
    pair = Pair()
    message = example(fabric, pair, pair.here.read)
    pair.there.expect("x", **({"readers": 1} if over == "r" else {"writers": 1}))
    pair.there.forget("x")
    theirs(pair, again(message, name="x", id="x"))
    assert bool(pair.there._packing._parcels) is taken
    pair.close()


def test_a_write_into_pages_that_are_over_is_refused(fabric: Fabric) -> None:
    pair = Pair()
    message = example(fabric, pair, pair.here.write)
    pair.there.expect("x", writers=1)
    pair.there.forget("x")
    fabric.told.clear()
    theirs(pair, again(message, name="x", id="x"))
    (answer,) = [control.decode(sent) for _, _, sent in fabric.told]
    assert answer == control.Refused("x", "the pages of request x are not held any more", True)
    pair.close()


def test_a_chunk_as_long_as_a_slot_is_taken(fabric: Fabric) -> None:
    pair = Pair()
    message = example(fabric, pair, pair.here.read)
    assert message.limit == SLOT
    for limit, refused in ((SLOT, False), (SLOT + 1, True)):
        fabric.told.clear()
        theirs(pair, again(message, name=f"of {limit}", limit=limit))
        answers = [control.decode(sent) for _, _, sent in fabric.told if control.is_control(sent)]
        assert [type(answer) for answer in answers] == ([control.Refused] if refused else [])
    pair.close()


def test_shorter_chunks_are_cut_as_the_peer_says(fabric: Fabric) -> None:
    """A page a chunk, though two would fit."""
    pair = Pair()
    message = example(fabric, pair, pair.here.read)
    page = HERE.format.page_bytes
    theirs(pair, again(message, name="short", limit=page, chunk=page))
    (taken,) = pair.there._packing._parcels.values()
    assert [chunk.bytes for chunk in taken.chunks] == [page] * 4
    pair.close()


def test_what_a_write_leaves_is_cleared_where_that_is_ordered(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(replace(THERE, name="here"), replace(HERE, name="there"))
    required: list[str] = []
    cleared: list[tuple[str, int]] = []
    monkeypatch.setattr(clearing, "require", required.append)
    clear = clearing.clear

    def counted(rows: Any, kind: str, memory: Any) -> None:
        assert memory is pair.there._memory
        cleared.append((kind, int(rows[:, 1].sum())))
        clear(rows, kind, memory)

    monkeypatch.setattr(clearing, "clear", counted)
    for id, end, zero in (("w", 20, True), ("x", 20, False), ("y", 32, True)):
        pair.here.write(pair.peer, request((0, end), [0, 1], [0, 1]), id=id, strategy="packed", zero=zero)
        pair.until("Finished")
    assert required == ["DRAM"]
    assert cleared == [("DRAM", HERE.layers * 12 * HERE.heads * HERE.size * 4)]
    pair.close()


def test_pages_that_are_expected_behind_a_stream_are_gathered_behind_it(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair()
    message = example(fabric, pair, pair.here.read)
    over = {"r": False, "s": False}
    fences = {id: Fence(SimpleNamespace(query=lambda id=id: over[id])) for id in over}
    after = pair.there._parcelling.complete_after
    after("r", fences["r"])
    after("s", fences["s"])
    after("t", None)

    def taken(id: str, name: str) -> Any:
        theirs(pair, again(message, name=name, id=id))
        return pair.there._packing._parcels["here", name, "sender"].after

    assert taken("r", "1") is fences["r"]
    assert taken("s", "2") is fences["s"]
    assert taken("t", "3") is None
    # What is over is forgotten when the next is told of.
    over["r"] = True
    after("u", None)
    assert taken("r", "4") is None
    assert taken("s", "5") is fences["s"]
    # What is written into pages does not wait for what was in them.
    written = example(fabric, pair, pair.here.write)
    theirs(pair, again(written, name="6", id="s"))
    assert pair.there._packing._parcels["here", "6", "receiver"].after is None
    pair.close()
