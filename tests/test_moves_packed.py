"""Packed requests that a side refuses, gives up or does not hear of, over agents that copy memory themselves."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nixl")

import kvreshard as kvr
from kvreshard.nixl import (
    Cancelled,
    Connector,
    DeadlinePassed,
    Event,
    Failed,
    Finished,
    LeaseOver,
    NotRegistered,
    PeerDown,
    PeerLost,
    TransferError,
    Unsupported,
    carrier,
    clearing,
    control,
    wire,
)
from kvreshard.nixl.packing import PREFIX
from kvreshard.nixl.staging import Area
from tests.connector_rank import publish, request
from tests.fabric import Fabric, connected
from tests.pairs import HERE, SLOT, STAGING, THERE, Pair, pages, tokens
from tests.scripted import BROKEN, LOST, MISSING
from tests.told import told

SMALL: dict[str, Any] = {"staging": 3 * SLOT, "slot_bytes": SLOT}
"""A slot for each way."""


@pytest.fixture
def fabric() -> Iterator[Fabric]:
    with connected() as made:
        yield made


def failure(pair: Pair, *others: Connector) -> tuple[Failed, list[Event]]:
    """Looks until a request has failed; what else was seen."""
    seen, ends = list[Event](), time.monotonic() + 5
    while not any(isinstance(event, Failed) for event in seen):
        assert time.monotonic() < ends
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


def other_rank(pair: Pair, options: dict[str, Any]) -> tuple[Connector, Any]:
    other = Connector("other", **options)
    publish(other, replace(THERE, name="other"), THERE.arrays(3))
    return other, pair.here.connect(other.metadata())


def test_pages_that_are_not_held_any_more_are_refused(fabric: Fabric, caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair()
    pair.there.expect("r", readers=1)
    pair.there.forget("r")
    pair.here.read(pair.peer, pages(4), id="r", strategy="packed")
    failed, others = failure(pair)
    assert (type(failed.reason), failed.pages, failed.peers, others) == (LeaseOver, "free", ("there",), [])
    text = "the pages of request r are not held any more"
    assert told(failed.reason) == (f"peer there refused request r: {text}", {"peer": "there", "request": "r"})
    assert [record.getMessage() for record in caplog.records] == [f"request r of peer here is refused: {text}"]
    assert fabric.made == []
    works(pair)
    pair.close()


def test_pages_that_are_forgotten_in_the_middle_end_the_request(fabric: Fabric) -> None:
    pair = Pair()
    fabric.held = lambda handle: True
    pair.there.expect("r", readers=1)
    pair.there.expect("s", readers=1)
    pair.here.read(pair.peer, pages(20), id="r", strategy="packed")
    pair.here.read(pair.peer, pages(20), id="s", strategy="packed")
    assert pair.turns(5) == ([], [])
    assert pair.there.forget("r")
    fabric.held = lambda handle: False
    here, there = pair.until("Failed", "Finished")
    failed, finished = sorted(here, key=lambda event: type(event).__name__)
    assert isinstance(failed, Failed)
    assert isinstance(finished, Finished)
    assert (type(failed.reason), failed.pages, finished.id) == (Cancelled, "free", "s")
    text = "request r: peer there gave it up: cancelled"
    assert told(failed.reason) == (text, {"peer": "there", "request": "r"})
    assert [type(event).__name__ for event in (*there, *pair.turns(2)[1])] == ["Released"]
    works(pair)
    pair.close()


@pytest.mark.parametrize("gather", [True, False])
def test_a_kernel_that_fails_fails_the_request_on_both_sides(
    fabric: Fabric, gather: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair()
    move = Area.move

    def broken(area: Area, *arguments: Any, **options: Any) -> Any:
        if options["gather"] is gather:
            raise RuntimeError("out of kernels")
        return move(area, *arguments, **options)

    monkeypatch.setattr(Area, "move", broken)
    pair.here.read(pair.peer, pages(20), id="r", strategy="packed")
    failed, others = failure(pair)
    assert (type(failed.reason), failed.pages, others) == (TransferError, "free", [])
    if gather:
        text, facts = "peer there gave it up: kernel failed", {"peer": "there", "request": "r"}
    else:
        text, facts = "out of kernels", {"request": "r"}
    assert told(failed.reason) == (f"request r: {text}", facts)
    monkeypatch.undo()
    works(pair)
    pair.close()


def test_a_scatter_of_a_landed_chunk_that_fails(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("out of kernels")

    pair = Pair()
    move = Area.move
    monkeypatch.setattr(Area, "move", broken)
    pair.here.read(pair.peer, pages(20), id="r", strategy="landed")
    failed, others = failure(pair)
    assert (type(failed.reason), failed.pages, others) == (TransferError, "free", [])
    text = "scatter of a landed chunk: out of kernels"
    assert told(failed.reason) == (text, {"peer": "there", "request": "r"})
    monkeypatch.setattr(Area, "move", move)
    assert pair.turns(1) == ([], [])
    assert pair.here._landing.free == 4
    # Nobody was told that it was read, and each slot can be used again.
    assert fabric.told == []
    pair.here.read(pair.peer, pages(20), id="again", strategy="landed")
    assert [type(event) for event in pair.until("Finished")[0]] == [Finished]
    assert right(pair, 20)
    pair.close()


def test_a_receiver_that_cannot_clear_its_pages_says_so(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It finds out when the peer has heard that all is scattered."""

    def broken(*_: Any) -> None:
        raise RuntimeError("no such memory")

    pair = Pair(replace(THERE, name="here"), replace(HERE, name="there"))
    monkeypatch.setattr(clearing, "clear", broken)
    pair.here.write(pair.peer, request((0, 20), [0, 1], [0, 1]), id="w", strategy="packed")
    (finished,) = pair.until("Finished")[0]
    assert isinstance(finished, Finished)
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert logged == ["request w of peer here: not all pages were cleared: no such memory"]
    pair.close()


def test_a_deadline_frees_the_pages_and_the_slots_come_back(fabric: Fabric) -> None:
    pair = Pair()
    fabric.held = lambda handle: True
    pair.here.read(pair.peer, pages(8), id="r", strategy="packed", deadline=0.03)
    failed, others = failure(pair)
    assert (type(failed.reason), failed.pages, failed.peers, others) == (DeadlinePassed, "free", ("there",), [])
    fabric.held = lambda handle: False
    works(pair)
    pair.close()


@pytest.mark.parametrize("kind", [control.Join, control.Parcel])
@pytest.mark.parametrize("sender", ["here", "there"])
def test_what_is_lost_once_is_said_again(fabric: Fabric, kind: type, sender: str) -> None:
    pair = Pair()
    dropped: list[bytes] = []

    def lost(who: str, receiver: str, message: bytes) -> bool:
        if who == sender and control.is_control(message) and isinstance(control.decode(message), kind) and not dropped:
            dropped.append(message)
        return dropped[-1:] == [message] and fabric.told.count((who, receiver, message)) == 1

    fabric.lost = lost
    works(pair)
    assert len(dropped) == (0 if (kind, sender) == (control.Parcel, "there") else 1)
    pair.close()


def test_parcels_are_told_again_until_something_comes_and_begin_once(fabric: Fabric) -> None:
    pair = Pair()
    works(pair)
    fabric.lost = lambda sender, receiver, message: message.startswith(PREFIX)
    begun = len(fabric.told)
    pair.here.read(pair.peer, pages(20), id="r", strategy="packed")
    parcels: list[control.Parcel] = []
    ends = time.monotonic() + 10
    # At once, after 0.2 s and 0.6 s.
    while len(parcels) < 3:
        assert time.monotonic() < ends
        assert pair.turns(1) == ([], [])
        time.sleep(0.001)
        sent = [control.decode(message) for _, _, message in fabric.told if control.is_control(message)]
        parcels = [one for one in sent if isinstance(one, control.Parcel) and one.id == "r"]
    assert len({one.name for one in parcels}) == 1
    # So are frames, a want and a grant, each 20 ticks and not each look.
    frames = [message for sender, _, message in fabric.told[begun:] if sender == "here" and message.startswith(PREFIX)]
    assert 2 <= len(frames) <= 20
    assert len(pair.there._packing._parcels) == 1
    fabric.lost = lambda *_: False
    assert [type(event) for event in pair.until("Finished")[0]] == [Finished]
    assert right(pair, 20)
    assert pair.here._packing._parcels == {}
    pair.turns(20)
    assert pair.there._packing._parcels == {}
    pair.close()


def test_more_peers_than_slots_are_not_admitted(fabric: Fabric, caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair(**SMALL)
    other, second = other_rank(pair, SMALL)
    pair.here.read(pair.peer, pages(2), id="a", strategy="packed")
    pair.until("Finished")
    pair.here.read(second, pages(2), id="b", strategy="packed")
    failed, others = failure(pair, other)
    why = "peers admitted to the ring: 2 is over the limit of 1"
    assert (type(failed.reason), failed.pages, others) == (TransferError, "free", [])
    text = f"request b: no packed transfers with peer other: {why}"
    assert told(failed.reason) == (text, {"peer": "other", "request": "b"})
    assert f"no packed transfers with other: {why}" in [record.getMessage() for record in caplog.records]
    # For a while another way is taken by choice.
    assert not pair.here._packing.welcome(second)
    assert pair.here._packing.welcome(pair.peer)
    pair.here.disconnect(pair.peer)
    pair.here.read(second, pages(2), id="c", strategy="packed")
    ends, seen = time.monotonic() + 5, list[Event]()
    while not seen:
        assert time.monotonic() < ends
        seen += pair.here.poll()
        other.poll()
    assert [type(event) for event in seen] == [Finished]
    pair.close()
    other.close(timeout=0)


def test_slots_that_a_lost_peer_may_still_write_are_kept_until_it_is_gone(fabric: Fabric) -> None:
    pair = Pair(**SMALL)
    other, second = other_rank(pair, SMALL)
    fabric.held = lambda handle: True
    pair.here.read(pair.peer, pages(2), id="a", strategy="packed")
    pair.turns(10)
    assert len(fabric.made) == 1
    ended = fabric.agents["there"]
    ended.end()
    fabric.held = lambda handle: False
    # The next message to it fails.
    assert pair.here.cancel("a")
    seen = [event for _ in range(5) for event in pair.here.poll()]
    assert {type(event) for event in seen} == {Failed, PeerDown}

    def read(id: str) -> Event:
        pair.here.read(second, pages(2), id=id, strategy="packed")
        ends, found = time.monotonic() + 5, list[Event]()
        while not found:
            assert time.monotonic() < ends
            found = pair.here.poll()
            other.poll()
        return found[0]

    failed = read("b")
    assert isinstance(failed, Failed)
    why = "peers admitted to the ring: 1 is over the limit of 0"
    text = f"request b: no packed transfers with peer other: {why}"
    remedy = "slots that are kept from lost peers: 1; call gone(name) once their processes have ended"
    assert told(failed.reason) == (text, {"peer": "other", "request": "b", "remedy": remedy})
    pair.here.gone("nobody")
    assert isinstance(read("c"), Failed)
    pair.here.gone("there")
    assert isinstance(read("d"), Finished)
    fabric.ending = True
    fabric.agents["here"].peers.discard("there")
    pair.here.close(timeout=0)
    other.close(timeout=0)


def test_slots_that_a_lost_peer_may_still_write_are_given_up_with_the_ring(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another ring is other memory, whose slots are all free; the old one is kept for good."""
    kept: list[Any] = []
    monkeypatch.setattr(carrier, "_outlived", kept)
    pair = Pair(**SMALL)
    fabric.held = lambda handle: True
    pair.here.read(pair.peer, pages(2), id="a", strategy="packed")
    pair.turns(10)
    fabric.agents["there"].end()
    fabric.held = lambda handle: False
    assert pair.here.cancel("a")
    for _ in range(5):
        pair.here.poll()
    running = pair.here._packing._running
    assert running is not None
    buffer = running[0].areas["receiver"].buffer
    # The same rings again change nothing.
    pair.here.publish(pair.here.layout)
    assert (running[0].receiver.quarantined, kept) == (1, [])
    pair.here.deregister()
    publish(pair.here, HERE, pair.mine)
    assert running[0].receiver.quarantined == 0
    assert [one is buffer for one in kept] == [True]
    assert running[0].areas["receiver"].buffer is not buffer
    fabric.ending = True
    fabric.agents["here"].peers.discard("there")
    pair.here.close(timeout=0)


def test_a_request_that_never_began_is_given_up_alone(fabric: Fabric) -> None:
    pair = Pair()
    fabric.lost = lambda *_: True
    pair.here.read(pair.peer, pages(4), id="r", strategy="packed")
    assert pair.turns(2) == ([], [])
    assert pair.here.cancel("r")
    (failed,) = pair.here.poll()
    assert isinstance(failed, Failed)
    assert (type(failed.reason), failed.pages) == (Cancelled, "free")
    fabric.lost = lambda *_: False
    assert pair.turns(5) == ([], [])
    works(pair)
    pair.close()


def test_a_peer_that_registers_anew_is_lost_and_packs_again(fabric: Fabric) -> None:
    pair = Pair()
    works(pair)
    generation = pair.there.generation
    pair.there.deregister()
    (down,) = pair.turns(3)[0]
    assert isinstance(down, PeerDown)
    assert (down.peer, down.requests, type(down.reason)) == ("there", (), PeerLost)
    assert told(down.reason) == (
        f"peer there has given up its registration {generation}: what it told of its memory is void",
        {
            "peer": "there",
            "field": "generation",
            "found": generation,
            "remedy": "connect() with the peer's current metadata",
        },
    )
    publish(pair.there, THERE, pair.theirs)
    pair.peer = pair.here.connect(pair.there.metadata())
    works(pair)
    pair.close()


def test_frames_that_mean_nothing_are_dropped(fabric: Fabric, caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair()
    works(pair)
    caplog.clear()
    for name in ("there", "a stranger"):
        assert pair.here._hear(name, PREFIX + b"\xc1")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("dropped a frame from 'there': ")
    works(pair)
    pair.close()


def test_requests_of_a_lost_peer_each_have_an_error_of_their_own(fabric: Fabric) -> None:
    pair = Pair()
    fabric.held = lambda handle: True
    for id in ("a", "b", "c"):
        pair.here.read(pair.peer, pages(4), id=id, strategy="packed" if id == "c" else "direct")
    assert pair.turns(3) == ([], [])
    fabric.agents["there"].end()
    seen: list[Event] = []
    ends = time.monotonic() + 5
    while sum(isinstance(event, Failed) for event in seen) < 3:
        assert time.monotonic() < ends
        seen += pair.here.poll()
    failed = [event for event in seen if isinstance(event, Failed)]
    assert [told(event.reason)[1]["request"] for event in failed] == [event.id for event in failed]
    assert {type(event.reason) for event in failed} == {PeerLost}
    (down,) = [event for event in seen if isinstance(event, PeerDown)]
    assert "request" not in told(down.reason)[1]
    assert sorted(down.requests) == ["a", "b", "c"]
    fabric.agents["here"].peers.discard("there")
    fabric.ending = True
    pair.here.close(timeout=0)


def test_what_two_sides_plan_differently_is_refused(fabric: Fabric) -> None:
    """Hand-made parcels: of other chunks than this side cuts, longer than a slot, of another plan."""
    pair = Pair()
    works(pair)
    pair.here.read(pair.peer, pages(4), id="r", strategy="packed")
    sent = [control.decode(message) for _, _, message in fabric.told if control.is_control(message)]
    parcel = next(one for one in sent if isinstance(one, control.Parcel) and one.id == "r")
    pair.until("Finished")
    peer = pair.there._peers["here"]
    for changed, text in (
        ({"bytes": parcel.bytes + 1}, "the two sides cut request q into other chunks"),
        ({"limit": 4 * SLOT}, f"chunks of {4 * SLOT} bytes, and a slot has {SLOT}"),
        (
            {"digest": "0" * 64},
            f"the two sides plan request q differently: {parcel.digest:.12} here, 000000000000 there",
        ),
    ):
        fabric.told.clear()
        fields = {name: getattr(parcel, name) for name in parcel.__struct_fields__}
        pair.there._parcelling.theirs(peer, control.Parcel(**{**fields, "name": "odd", "id": "q", **changed}))
        (answer,) = [control.decode(message) for _, _, message in fabric.told if control.is_control(message)]
        assert answer == control.Refused("odd", text, False)
    with pytest.raises(kvr.Error):
        pair.here.read(pair.peer, pages(4), id="r", strategy="packed", layers=["no such layer"])
    works(pair)
    pair.close()


@pytest.mark.parametrize(("flow", "direction"), [("push", "read"), ("pull", "read"), ("push", "write")])
def test_a_transfer_of_a_slot_that_is_refused(fabric: Fabric, flow: Any, direction: str) -> None:
    """It may begin all the same, and its slot is not used again before it has ended."""
    pair = Pair(flow=flow)
    works(pair)
    fabric.made.clear()
    fabric.refused = lambda handle: BROKEN if handle is fabric.made[0] else None
    fabric.held = lambda handle: handle is fabric.made[0]
    act = pair.here.read if direction == "read" else pair.here.write
    act(pair.peer, pages(20), id="r", strategy="packed", deadline=0.1)
    failed, others = failure(pair)
    assert (type(failed.reason), failed.pages, others) == (DeadlinePassed, "free", [])
    fabric.refused = lambda handle: None
    late = fabric.made[0]
    act(pair.peer, pages(20), id="s", strategy="packed")
    pair.turns(20)
    assert late.state == "PROC"
    for used in ("ours", "theirs"):
        assert getattr(late, used)[0, 0] not in {getattr(handle, used)[0, 0] for handle in fabric.made[1:]}
    fabric.held = lambda handle: False
    pair.turns(100)
    assert (late.state, list(pair.here.in_flight)) == ("DONE", [])
    works(pair)
    pair.close()


@pytest.mark.parametrize("error", [LOST, BROKEN, MISSING])
def test_a_landed_read_that_is_refused(fabric: Fabric, error: Exception) -> None:
    pair = Pair()
    fabric.refused = lambda handle: error if fabric.made.index(handle) == 1 else None
    fabric.held = lambda handle: fabric.made.index(handle) == 1
    pair.here.read(pair.peer, pages(20), id="r", strategy="landed")
    failed, others = failure(pair)
    kind = {LOST: PeerLost, BROKEN: TransferError, MISSING: NotRegistered}[error]
    assert (type(failed.reason), failed.pages, list(pair.here.in_flight)) == (kind, "free", [])
    text = f"NIXL could not post a transfer (peer there): {error}"
    assert told(failed.reason) == (text, {"peer": "there", "request": "r", "code": str(error)})
    assert [type(event) for event in others] == ([PeerDown] if error is LOST else [])
    # What may have begun keeps its slot until it has ended, and its peer.
    assert pair.here._landing.free == (3 if error is BROKEN else 4)
    assert pair.here._landing.busy_with(pair.peer) == pair.here._landing.busy_with(None) == (error is BROKEN)
    fabric.held = lambda handle: False
    pair.turns(2)
    assert pair.here._landing.free == 4
    assert not pair.here._landing.busy_with(None)
    # The peer is not told that it was read.
    assert fabric.told == []
    pair.close()


def test_a_landed_read_that_cannot_be_made(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise MISSING

    pair = Pair()
    monkeypatch.setattr(fabric.agents["here"], "initialize_xfer", refused)
    pair.here.read(pair.peer, pages(20), id="r", strategy="landed")
    failed, _ = failure(pair)
    assert (type(failed.reason), failed.pages) == (NotRegistered, "free")
    text = f"NIXL could not make a transfer (peer there): {MISSING}"
    assert told(failed.reason) == (text, {"peer": "there", "request": "r", "code": str(MISSING)})
    assert pair.here._landing.free == 4
    pair.close()


def test_a_refusal_is_of_one_parcel_of_one_peer(fabric: Fabric) -> None:
    """By name, and only while nothing of it has moved."""
    pair = Pair()
    other, second = other_rank(pair, STAGING)
    works(pair)
    fabric.lost = lambda *_: True
    for id in ("r", "s"):
        pair.here.read(pair.peer, pages(4), id=id, strategy="packed")
    pair.here.read(second, pages(4), id="t", strategy="packed")
    open_ones = {one.id: one for one in pair.here._packing._parcels.values()}
    assert sorted(open_ones) == ["r", "s", "t"]
    hear = pair.here._packing.refused
    hear(second, control.Refused(open_ones["r"].name, "not mine", False))
    hear(pair.peer, control.Refused("another", "unknown", False))
    assert all(one.error is None for one in open_ones.values())
    open_ones["s"].began = True
    hear(pair.peer, control.Refused(open_ones["s"].name, "late", False))
    open_ones["s"].began = False
    assert open_ones["s"].error is None
    hear(pair.peer, control.Refused(open_ones["r"].name, "why", False))
    fabric.lost = lambda *_: False
    here = pair.until("Failed", "Finished")[0]
    failed = next(event for event in here if isinstance(event, Failed))
    assert (failed.id, type(failed.reason)) == ("r", Unsupported)
    assert told(failed.reason) == ("peer there refused request r: why", {"peer": "there", "request": "r"})
    # Of everything, as long as it has not begun.
    pair.here.cancel("t")
    pair.turns(5)
    fabric.lost = lambda *_: True
    pair.here.read(pair.peer, pages(4), id="u", strategy="packed")
    hear(second, control.Refused("", "no room", False))
    (parcel,) = [one for one in pair.here._packing._parcels.values() if one.id == "u"]
    assert parcel.error is None
    hear(pair.peer, control.Refused("", "no room", False))
    failed, _ = failure(pair)
    text = "request u: no packed transfers with peer there: no room"
    assert told(failed.reason) == (text, {"peer": "there", "request": "u"})
    assert type(failed.reason) is TransferError
    fabric.lost = lambda *_: False
    works(pair)
    pair.close()
    other.close(timeout=0)


def test_a_connection_that_ends_in_a_transfer_of_slots_is_why_its_requests_fail(fabric: Fabric) -> None:
    pair = Pair(flow="pull")
    works(pair)
    fabric.refused = lambda handle: LOST
    pair.here.read(pair.peer, pages(4), id="r", strategy="packed")
    failed, others = failure(pair)
    assert (type(failed.reason), failed.pages) == (PeerLost, "free")
    facts = {"peer": "there", "request": "r", "code": str(LOST)}
    assert told(failed.reason) == (f"NIXL could not post a transfer (peer there): {LOST}", facts)
    assert [type(event) for event in [*others, *pair.here.poll()]] == [PeerDown]
    fabric.refused = lambda handle: None
    pair.peer = pair.here.connect(pair.there.metadata())
    works(pair)
    pair.close()


def test_other_staging_ends_what_was_begun_with_it(fabric: Fabric) -> None:
    """A rank that registers anew has other slots; its peers connect anew, and slots are numbered as before."""
    pair = Pair()
    works(pair)
    before = wire.decode(pair.here.metadata()).rings
    pair.here.deregister()
    publish(pair.here, HERE, pair.mine)
    after = wire.decode(pair.here.metadata()).rings
    assert before is not None
    assert after is not None
    assert before != after
    pair.there.poll()
    pair.peer = pair.here.connect(pair.there.metadata())
    works(pair)
    pair.close()


def test_a_parcel_says_why_it_ended(fabric: Fabric) -> None:
    pair = Pair(flow="pull")
    works(pair)

    def begun(id: str) -> Any:
        pair.here.read(pair.peer, pages(4), id=id, strategy="packed")
        pair.turns(2)
        (parcel,) = [one for one in pair.here._packing._parcels.values() if one.id == id]
        assert (parcel.state, parcel.error) == ("open", None)
        return parcel

    fabric.held = lambda handle: True
    given_up, lost = begun("r"), begun("s")
    pair.here.cancel("r")
    fabric.held = lambda handle: False
    pair.here._packing.lose(pair.peer)
    assert (given_up.state, lost.state) == ("failed", "failed")
    text, facts = told(given_up.error)
    assert (type(given_up.error), text) == (Cancelled, "request r: this side gave it up: cancelled")
    assert facts == {"peer": "there", "request": "r"}
    facts = {"peer": "there", "request": "s"}
    assert (type(lost.error), told(lost.error)) == (PeerLost, ("request s: this side gave it up: peer lost", facts))
    assert pair.here._packing._parcels == {}
    pair.turns(3)
    pair.close()


def test_a_parcel_of_a_peer_that_was_lost_before_it_began(fabric: Fabric) -> None:
    pair = Pair()
    fabric.lost = lambda *_: True
    pair.here.read(pair.peer, pages(4), id="r", strategy="packed")
    (parcel,) = pair.here._packing._parcels.values()
    other, second = other_rank(pair, STAGING)
    pair.here.read(second, pages(4), id="s", strategy="packed")
    pair.here._packing.lose(pair.peer)
    assert (parcel.state, type(parcel.error)) == ("failed", PeerLost)
    assert told(parcel.error) == ("request r: peer there was lost", {"peer": "there"})
    assert [one.id for one in pair.here._packing._parcels.values()] == ["s"]
    assert pair.here.cancel("s")
    pair.turns(2)
    pair.close()
    other.close(timeout=0)


def test_a_connection_that_ends_is_the_reason_of_all_that_is_open_with_it(fabric: Fabric) -> None:
    """And not that a transfer failed."""
    pair = Pair(flow="pull")
    works(pair)
    fabric.held = lambda handle: True
    pair.here.read(pair.peer, pages(4), id="r", strategy="packed")
    pair.turns(2)
    (parcel,) = pair.here._packing._parcels.values()
    pair.here._packing._cut_off(pair.peer, PeerLost("NIXL says so", code="NIXL_ERR"))
    facts = {"peer": "there", "request": "r", "code": "NIXL_ERR"}
    assert (type(parcel.error), told(parcel.error)) == (PeerLost, ("request r: peer there was lost", facts))
    # The first reason stays.
    pair.here._packing._cut_off(pair.peer, PeerLost("again", code="OTHER"))
    assert told(parcel.error)[1] == facts
    assert [peer.name for peer, _ in pair.here._unreachable] == ["there", "there"]
    fabric.held = lambda handle: False
    assert {type(event) for event in pair.turns(10)[0]} == {Failed, PeerDown}
    fabric.ending = True
    pair.close()


def test_chunks_fit_the_slots_of_both_sides(fabric: Fabric) -> None:
    """What is received comes from the peer's slots for sending, and the other way round."""
    pair = Pair()
    packing = pair.here._packing
    assert (packing.limit(pair.peer, "receiver"), packing.limit(pair.peer, "sender")) == (SLOT, SLOT)
    told_of = wire.decode(pair.there.metadata())
    assert told_of.rings is not None
    send, receive = (replace(told_of.rings.send, slot_bytes=size) for size in (SLOT // 2, SLOT // 4))
    other = pair.here.connect(wire.encode(replace(told_of, rings=wire.Rings(1, receive, send))))
    assert (packing.limit(other, "receiver"), packing.limit(other, "sender")) == (SLOT // 2, SLOT // 4)
    none = pair.here.connect(wire.encode(replace(told_of, rings=None)))
    assert (packing.limit(none, "receiver"), packing.limit(none, "sender")) == (0, 0)
    plain = Connector("plain")
    publish(plain, HERE, HERE.arrays(1))
    peer = plain.connect(pair.there.metadata())
    assert (plain._packing.limit(peer, "receiver"), plain._packing.rings) == (0, None)
    plain.close(timeout=0)
    pair.close()
