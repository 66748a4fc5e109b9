"""What ends packed and landed requests one by one: transfers that are refused, connections, other staging, sizes."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("nixl")

import kvreshard as kvr
from kvreshard.nixl import (
    Cancelled,
    Connector,
    DeadlinePassed,
    Failed,
    NotRegistered,
    PeerDown,
    PeerLost,
    TransferError,
    Unsupported,
    control,
    wire,
)
from tests.connector_rank import publish
from tests.fabric import Fabric
from tests.pairs import HERE, SLOT, Pair, failure, other_rank, pages, works
from tests.scripted import BROKEN, LOST, MISSING
from tests.told import told


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
    other, second = other_rank(pair)
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
    # The old session ends there when the new one begins: chunks that were ready to be read are in quarantine then,
    # and this peer is asked whether it still reads them.
    pair.here.read(pair.peer, pages(4), id="soon", strategy="packed")
    failed, _ = failure(pair)
    assert told(failed.reason)[0].endswith("peers admitted to the ring: 1 is over the limit of 0")
    running, ends = pair.there._packing._running, time.monotonic() + 5
    assert running is not None
    assert running[0].sender.quarantined > 0
    while running[0].sender.quarantined:
        assert time.monotonic() < ends
        pair.turns(1)
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
    other, second = other_rank(pair)
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
