"""Packed requests that a side refuses, gives up or does not hear of, over agents that copy memory themselves."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

pytest.importorskip("nixl")

from kvreshard.nixl import (
    Cancelled,
    DeadlinePassed,
    Event,
    Failed,
    Finished,
    LeaseOver,
    PeerDown,
    PeerLost,
    TransferError,
    carrier,
    control,
)
from kvreshard.nixl.packing import PREFIX
from kvreshard.nixl.staging import Area
from tests.connector_rank import publish
from tests.fabric import Fabric
from tests.pairs import HERE, SLOT, THERE, Pair, failure, other_rank, pages, right, works
from tests.told import told

SMALL: dict[str, Any] = {"staging": 3 * SLOT, "slot_bytes": SLOT}
"""A slot for each way."""


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
    other, second = other_rank(pair, **SMALL)
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
    other, second = other_rank(pair, **SMALL)
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
