"""What a connector's methods do and refuse, over agents that copy memory themselves."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("nixl")

import kvreshard as kvr
from kvreshard.nixl import (
    Arrived,
    Closed,
    Connector,
    Failed,
    Finished,
    Freed,
    LeaseEnded,
    MetadataError,
    NotConnected,
    NotRegistered,
    PeerBusy,
    PeerDown,
    PeerLost,
    Released,
    TransferError,
    Unsupported,
    notices,
    wire,
)
from kvreshard.nixl.notices import Kind, Notice
from tests.connector_rank import publish, request
from tests.fabric import Fabric
from tests.pairs import HERE, STAGING, Pair, changed, other_rank, pages
from tests.scripted import MISSING
from tests.told import told

BUSY = "poll until they are over; only close() ends them by force"


def test_what_is_in_flight_keeps_its_id_its_peer_and_the_memory(fabric: Fabric) -> None:
    pair = Pair()
    other, second = other_rank(pair)
    fabric.held = lambda handle: True
    for id, peer in (("a", pair.peer), ("b", second), ("c", second)):
        pair.here.read(peer, pages(1), id=id, strategy="direct")
    assert pair.here.in_flight == ("a", "b", "c")
    with pytest.raises(TransferError) as caught:
        pair.here.read(pair.peer, pages(1), id="b")
    assert told(caught.value) == ("request b is in flight", {"request": "b"})
    for act, peer, who, found in (
        (lambda: pair.here.disconnect(second), "other", "with peer other ", ["b", "c"]),
        (lambda: pair.here.connect(changed(other)), "other", "with peer other ", ["b", "c"]),
        (pair.here.deregister, None, "", ["a", "b", "c"]),
    ):
        with pytest.raises(PeerBusy) as busy:
            act()
        facts = {"found": found, "remedy": BUSY, **({"peer": peer} if peer else {})}
        assert told(busy.value) == (f"transfers {who}are in flight: {', '.join(found)}", facts)
    fabric.held = lambda handle: False
    pair.until("Finished")
    pair.turns(1)
    assert list(pair.here.in_flight) == []
    pair.here.disconnect(second)
    pair.close()
    other.close(timeout=0)


def test_refusals_move_nothing(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    with pytest.raises(TransferError) as caught:
        pair.here.read_all([(pair.peer, pages(1)), (pair.peer, pages(1))], id="r")
    assert told(caught.value) == ("request r names a peer twice", {"request": "r"})
    with pytest.raises(kvr.RequestError):
        pair.here.read(pair.peer, request((0, 16), [99], [0]), id="r")
    assert pair.peer.metrics.refusals == 1
    with pytest.raises(TransferError):
        pair.here.read(pair.peer, pages(1), id="")
    with pytest.raises(Unsupported):
        pair.here.write(pair.peer, pages(1), id="r", fence=True)

    # Rows of the peer that its agent does not know.
    def refused(*_: Any, **__: Any) -> Any:
        raise MISSING

    with monkeypatch.context() as patch:
        patch.setattr(fabric.agents["here"], "initialize_xfer", refused)
        with pytest.raises(NotRegistered) as missing:
            pair.here.read(pair.peer, request((3, 9), [1], [2]), id="r", strategy="direct")
    assert told(missing.value)[1] == {"peer": "there", "request": "r", "code": str(MISSING)}
    assert (fabric.made, fabric.told, pair.here.in_flight) == ([], [], ())
    stranger = Connector("stranger", **STAGING)
    publish(stranger, replace(HERE, name="stranger"), HERE.arrays(5))
    with pytest.raises(NotConnected) as foreign:
        stranger.read(pair.peer, pages(1), id="r")
    facts = {"peer": "there", "request": "r"}
    assert told(foreign.value) == ("peer there is of another connector", facts)
    stranger.close(timeout=0)
    pair.close()


def test_the_same_metadata_is_the_same_peer_and_other_is_another(fabric: Fabric) -> None:
    pair = Pair()
    data = pair.there.metadata()
    assert pair.here.connect(data) is pair.peer
    assert pair.here.connect(data, direction="write", senders=3) is pair.peer
    assert pair.peer.senders == 3
    again = pair.here.connect(changed(pair.there))
    assert again is not pair.peer
    assert (pair.peer.state, again.state, again.generation) == ("closed", "connected", pair.peer.generation + 1)
    with pytest.raises(NotConnected) as caught:
        pair.here.read(pair.peer, pages(1), id="r")
    assert told(caught.value) == (
        "peer there is closed or was connected anew",
        {"peer": "there", "request": "r", "remedy": "connect() with the peer's current metadata"},
    )
    # Forgetting the old one is no news of the new.
    pair.here.disconnect(pair.peer)
    assert again.connected
    pair.here.disconnect(again)
    assert again.state == "closed"
    with pytest.raises(MetadataError) as own:
        pair.here.connect(pair.here.metadata())
    assert told(own.value) == ("a connector cannot be its own peer", {"field": "name", "found": "here"})
    pair.close()


def test_metadata_of_one_name_around_that_of_another_is_refused(fabric: Fabric) -> None:
    pair = Pair()
    third = Connector("third", **STAGING)
    lying = wire.encode(replace(wire.decode(pair.there.metadata()), name="there-2", nixl=b"third"))
    with pytest.raises(MetadataError) as caught:
        pair.here.connect(lying)
    assert told(caught.value) == (
        "peer metadata is of agent there-2, the NIXL metadata in it of third",
        {"field": "name", "found": "third", "expected": "there-2"},
    )
    assert fabric.agents["here"].peers == {"there"}
    # Of a peer that is in use nothing is taken away.
    with pytest.raises(MetadataError):
        pair.here.connect(wire.encode(replace(wire.decode(pair.there.metadata()), name="there-2")))
    assert fabric.agents["here"].peers == {"there"}
    assert pair.here.connect(pair.there.metadata()) is pair.peer
    third.close(timeout=0)
    pair.close()


def test_peers_in_good_order_stay_loaded_and_lost_ones_do_not(fabric: Fabric) -> None:
    pair = Pair()
    pair.here.disconnect(pair.peer)
    assert fabric.agents["here"].peers == {"there"}
    pair.peer = pair.here.connect(pair.there.metadata())
    pair.here.gone("there")
    assert pair.here.poll()
    assert fabric.agents["here"].peers == set()
    assert pair.here._peers == {}
    pair.close()


def test_two_peers_that_end_at_once_are_both_lost(fabric: Fabric) -> None:
    pair = Pair()
    other, second = other_rank(pair)
    third, last = other_rank(pair, "third")
    fabric.held = lambda handle: True
    for id, peer in (("a", pair.peer), ("b", second), ("c", last)):
        pair.here.read(peer, pages(1), id=id, strategy="direct")
    fabric.agents["there"].end()
    fabric.agents["other"].end()
    seen = pair.here.poll() + pair.here.poll()
    assert sorted(event.peer for event in seen if isinstance(event, PeerDown)) == ["other", "there"]
    assert sorted(event.id for event in seen if isinstance(event, Failed)) == ["a", "b"]
    assert list(pair.here.in_flight) == ["c"]
    assert [peer.connected for peer in (pair.peer, second, last)] == [False, False, True]
    assert list(pair.here._peers) == ["third"]
    fabric.held = lambda handle: False
    assert [type(event) for event in pair.here.poll()] == [Finished]
    pair.here.close(timeout=0)
    third.close(timeout=0)
    fabric.ending = True
    pair.there._closed = other._closed = True


def test_closing_waits_for_what_ends_in_time(fabric: Fabric, caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair()
    left = time.monotonic() + 0.05
    fabric.held = lambda handle: time.monotonic() < left
    pair.here.read(pair.peer, pages(1), id="r", strategy="direct")
    assert pair.here.close(timeout=5) == ()
    assert time.monotonic() < left + 4
    assert [type(event) for event in pair.here.poll()] == [Finished]
    assert not caplog.records
    assert pair.here.close() == ()
    assert pair.here.poll() == []
    for refused in (pair.here.metadata, lambda: pair.here.expect("r"), lambda: pair.here.cancel("r")):
        with pytest.raises(Closed, match="connector here is closed"):
            refused()
    assert repr(pair.here) == "Connector('here', closed)"
    assert repr(pair.there) == "Connector('there')"
    pair.there.close(timeout=0)


def test_closing_in_the_middle_gives_up_all_that_is_left(fabric: Fabric, caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair()
    other, second = other_rank(pair)
    fabric.held = lambda handle: handle.peer == "other"
    pair.here.read(second, pages(1), id="a", strategy="direct")
    parts = [(pair.peer, request((0, 16), [3], [0])), (second, request((0, 16), [4], [0]))]
    pair.here.read_all(parts, id="b", strategy="direct")
    pair.here.write(second, pages(1), id="c", strategy="direct", deadline=0.0)
    (failed,) = pair.here.poll()
    assert isinstance(failed, Failed)
    fabric.ending = True
    assert pair.here.close(timeout=0.01) == ("a", "b", "c")
    assert [record.getMessage() for record in caplog.records] == ["closing with transfers in flight: a, b, c"]
    events = pair.here.poll()
    ends = [event for event in events if isinstance(event, Failed)]
    assert [(event.id, event.direction, event.pages, event.peers) for event in ends] == [
        ("a", "read", "held", ("other",)),
        ("b", "read", "held", ("other",)),
    ]
    for event in ends:
        text = f"request {event.id}: the connector closed before it ended"
        assert told(event.reason) == (text, {"request": event.id})
    assert events[2:] == [Freed("a", "read"), Freed("b", "read"), Freed("c", "write")]
    assert pair.here.poll() == []
    assert pair.here.close() == ("a", "b", "c")
    pair.there.close(timeout=0)
    other.close(timeout=0)


def test_a_peer_is_told_what_was_asked_for(fabric: Fabric) -> None:
    pair = Pair()
    cases: list[tuple[str, dict[str, Any], bytes | None]] = [
        ("ours", {}, notices.encode(Notice(Kind.READ, "ours", 1))),
        ("theirs", {"notify": b"a word"}, b"a word"),
        ("none", {"notify": False}, None),
    ]
    for id, options, expected in cases:
        fabric.told.clear()
        pair.here.read(pair.peer, pages(1), id=id, strategy="direct", **options)
        pair.until("Finished")
        assert [message for _, _, message in fabric.told] == ([] if expected is None else [expected])
    fabric.told.clear()
    pair.here.write(pair.peer, pages(1), id="w", strategy="direct")
    pair.until("Finished")
    pair.here.notify(pair.peer, "n")
    pair.here.notify(pair.peer, "m", direction="write")
    wanted = [Notice(Kind.WRITTEN, "w", 1), Notice(Kind.READ, "n", 1), Notice(Kind.WRITTEN, "m", 1)]
    assert [notices.decode(message) for _, _, message in fabric.told] == wanted
    pair.there.expect("n", readers=1)
    pair.there.expect("m", writers=1)
    assert pair.there.poll() == [Released("n", ("here",)), Arrived("m", ("here",))]
    # One that does not understand them is told nothing of ours.
    deaf = pair.here.connect(wire.encode(replace(wire.decode(pair.there.metadata()), notices=0)))
    fabric.told.clear()
    pair.here.notify(deaf, "n")
    pair.here.read(deaf, pages(1), id="r", strategy="direct")
    assert [type(event) for event in pair.here.poll()] == [Finished]
    assert fabric.told == []
    fabric.agents["there"].end()
    with pytest.raises(PeerLost):
        pair.here.notify(_understands(deaf), "n")
    assert [type(event) for event in pair.here.poll()] == [PeerDown]
    pair.here.close(timeout=0)


def _understands(peer: Any) -> Any:
    peer._metadata = replace(peer._metadata, notices=1)
    return peer


def test_expectations_are_of_readers_or_writers(fabric: Fabric) -> None:
    pair = Pair()
    with pytest.raises(TransferError) as caught:
        pair.there.expect("r", readers=0, writers=0)
    assert told(caught.value) == ("request r: expect readers or writers, not both", {"request": "r"})
    pair.there.expect("w", writers=1, lease=0.02)
    pair.there.expect("r", readers=2, lease=0.02, longest=0.01)
    pair.there.expect("any")
    pair.here.notify(pair.peer, "r")
    time.sleep(0.03)
    assert pair.there.poll() == [LeaseEnded("w", (), 1), LeaseEnded("r", ("here",), 2)]
    pair.here.notify(pair.peer, "any")
    assert pair.there.poll() == [Released("any", ("here",))]
    assert not pair.there.forget("w")
    pair.close()
