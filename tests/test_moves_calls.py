"""What a connector's methods do and refuse, over agents that copy memory themselves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nixl")

import kvreshard as kvr
from kvreshard.nixl import (
    Arrived,
    Closed,
    Connector,
    Event,
    Failed,
    Finished,
    FirstContact,
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
    connector,
    control,
    notices,
    wire,
)
from kvreshard.nixl.notices import Kind, Notice
from kvreshard.nixl.staging import Fence
from tests.connector_rank import publish, request
from tests.fabric import Fabric, connected
from tests.marked import reader, writer
from tests.pairs import HERE, SLOT, STAGING, THERE, Pair, other_agent, pages, tokens
from tests.scripted import BROKEN, MISSING
from tests.told import told


@pytest.fixture
def fabric() -> Iterator[Fabric]:
    with connected() as made:
        yield made


def other_rank(pair: Pair, name: str = "other") -> tuple[Connector, Any]:
    other = Connector(name, **STAGING)
    publish(other, replace(THERE, name=name), THERE.arrays(3))
    return other, pair.here.connect(other.metadata())


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


def changed(one: Connector) -> bytes:
    """Its metadata of another registration."""
    metadata = wire.decode(one.metadata())
    layers = list(metadata.layout.layers)
    generation = metadata.generation + 1
    layout = kvr.RankLayout(engine=metadata.layout.engine, layers=layers, generation=generation)
    return wire.encode(replace(metadata, layout=layout, generation=generation))


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


def test_a_host_passes_on_what_its_agent_hears(fabric: Fabric) -> None:
    pair = Pair()
    host, arrays = other_agent(fabric, "host")
    peer = host.connect(pair.there.metadata())
    pair.there.expect("r", readers=1)
    host.read(peer, pages(2), id="r", fence=True, strategy="packed")
    agent = fabric.agents["host"]
    agent.heard["stranger"] = [b"a word of the host's"]
    seen: list[Event] = []
    rest: dict[str, list[bytes]] = {}
    ends = time.monotonic() + 5
    while not seen:
        assert time.monotonic() < ends
        pair.there.poll()
        rest |= host.feed(agent.get_new_notifs())
        seen += host.poll()
    assert [type(event) for event in seen] == [Finished]
    assert rest == {"stranger": [b"a word of the host's"]}
    for mine, theirs in zip(arrays, pair.theirs, strict=True):
        np.testing.assert_array_equal(tokens(mine, HERE)[:2], tokens(theirs, THERE)[[0, 2]])
    host.close(timeout=1)
    # A host's agent is not ended, and what the host has loaded stays.
    assert agent.peers == set()
    agent.add_remote_agent(b"there")
    again, _ = other_agent_on(agent)
    again.connect(pair.there.metadata())
    again.close(timeout=0)
    assert agent.peers == {"there"}
    pair.close()


def other_agent_on(agent: Any) -> tuple[Connector, Any]:
    made = Connector(agent=agent, **STAGING)
    arrays = HERE.arrays(4)
    publish(made, HERE, arrays)
    return made, arrays


def test_messages_that_are_not_ours_are_dropped(fabric: Fabric, caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair()
    fabric.deliver("there", "here", b"hello")
    fabric.deliver("there", "here", control.PREFIX + b"\xc1\xc1")
    assert pair.here.poll() == []
    assert [record.getMessage() for record in caplog.records] == [
        "dropped 5 bytes from 'there' that are no notice of ours",
        f"dropped a control message of {len(control.PREFIX) + 2} bytes from 'there' that does not decode",
    ]
    pair.close()


def test_whoever_introduces_itself_is_connected_as_connect_would(
    fabric: Fabric, caplog: pytest.LogCaptureFixture
) -> None:
    pair = Pair()
    other = Connector("other", **STAGING)
    publish(other, replace(THERE, name="other"), THERE.arrays(3))
    hello = control.encode(control.Hello(other.metadata()))
    # Under another name than its own, or damaged, it is not.
    pair.here._hear("there", hello)
    pair.here._hear("other", control.encode(control.Hello(b"damaged")))
    first, second = [record.getMessage() for record in caplog.records]
    assert first == "'there' introduced itself as 'other'"
    assert second.startswith("could not connect 'other', which introduced itself: peer metadata: ")
    assert list(pair.here._peers) == ["there"]
    pair.here._hear("other", hello)
    known = pair.here._peers["other"]
    # The same registration again, of more memory: the same peer.
    other.register(np.zeros(64, np.uint8))
    pair.here._hear("other", control.encode(control.Hello(other.metadata())))
    assert pair.here._peers["other"] is known
    pair.here._hear("other", control.encode(control.Hello(changed(other))))
    assert pair.here._peers["other"] is not known
    assert known.state == "closed"
    pair.close()
    other.close(timeout=0)


def test_questions_by_another_registration_are_void(fabric: Fabric) -> None:
    pair = Pair()
    pair.there.connect(pair.here.metadata(), direction=None)
    generation = pair.there.generation
    pair.there.expect("r", readers=1)

    def answers(message: control.Message) -> list[Any]:
        fabric.told.clear()
        assert pair.there._hear("here", control.encode(message))
        return [control.decode(sent) for _, _, sent in fabric.told]

    void = control.Void(generation + 1)
    assert answers(control.Ask("r", 1000, generation + 1)) == [void]
    assert answers(control.Done("r", 1, 2, 1, generation + 1)) == [void]
    assert answers(control.Join((1, 2), (0, 0), "push", False, generation + 1)) == [void]
    (held,) = answers(control.Ask("r", 1000, generation))
    assert isinstance(held, control.Held)
    # 0 is said by peers that know no registrations.
    (again,) = answers(control.Ask("r", 1000, 0))
    assert again == held
    assert answers(control.Void(1)) == []
    assert pair.there.poll() == []
    # Nobody else is answered.
    assert pair.there._hear("stranger", control.encode(control.Ask("r", 1000, 0)))
    assert fabric.told == []
    pair.close()


def test_a_thread_serves_while_the_body_runs(fabric: Fabric) -> None:
    pair = Pair()
    pair.there.expect("r", readers=1)
    with pair.there.serve() as serving:
        assert serving is pair.there
        pair.here.read(pair.peer, pages(4), id="r", strategy="packed", fence=True)
        seen: list[Event] = []
        ends = time.monotonic() + 5
        while not seen:
            assert time.monotonic() < ends
            seen = pair.here.poll(timeout=0.05)
    assert [type(event) for event in seen] == [Finished]
    # What happened meanwhile is kept.
    assert pair.there.poll() == [Released("r", ("here",))]
    pair.here.read(pair.peer, pages(4), id="s", strategy="packed")
    assert pair.here.poll(timeout=0.05) == []
    pair.until("Finished")
    with pair.there.serve():
        pair.there.close(timeout=0)
    pair.here.close(timeout=0)


def test_staging_that_holds_no_slot_is_refused_before_there_is_an_agent(fabric: Fabric) -> None:
    with pytest.raises(kvr.LimitExceeded):
        Connector("here", staging=100)
    with pytest.raises(kvr.LimitExceeded):
        Connector("here", staging=1 << 20, slot_bytes=100)
    assert fabric.agents == {}
    plain = Connector("here")
    publish(plain, HERE, HERE.arrays(1))
    assert wire.decode(plain.metadata()).rings is None
    assert len(fabric.agents["here"].regions) == HERE.layers
    plain.close(timeout=0)


def test_rings_are_announced_where_they_are(fabric: Fabric) -> None:
    pair = Pair()
    rings = wire.decode(pair.there.metadata()).rings
    assert rings is not None
    regions = [(address, address + size) for address, size, _, _ in fabric.agents["there"].regions]
    for ring in (rings.receive, rings.send):
        end = ring.address + ring.slots * ring.slot_bytes
        assert sum(low <= ring.address and end <= high for low, high in regions) == 1
        assert (ring.slots, ring.slot_bytes, ring.device, ring.memory) == (4, SLOT, 0, "DRAM")
    assert rings.version == 1
    assert rings.receive.address != rings.send.address
    # The same registrations with the same layout keep their staging; given up with all else, it is new.
    before = list(fabric.agents["there"].regions)
    publish_again(pair.there)
    assert fabric.agents["there"].regions == before
    pair.there.deregister()
    assert fabric.agents["there"].regions == []
    pair.close()


def publish_again(one: Connector) -> None:
    one.publish(one.layout)


def test_scratch_blocks_are_of_the_layout(fabric: Fabric) -> None:
    pair = Pair()
    with pytest.raises(kvr.RequestError) as caught:
        pair.there.expect_contacts([], lambda layer, page: {})
    assert str(caught.value) == "blocks of 0 groups are given, the layout has 1"
    expected = []
    for again in (False, True):
        pair.there.expect_contacts([kvr.Blocks([1])], lambda layer, page: {})
        expected.append(pair.there._meetings.scratch is not None)
        if again:
            publish_again(pair.there)
        else:
            pair.there.expect_contacts([kvr.Blocks([1])], None)
        expected.append(pair.there._meetings.scratch is None)
    assert all(expected)
    pair.close()


@pytest.mark.parametrize("strategy", ["direct", "landed", "packed"])
@pytest.mark.parametrize("direction", ["read", "write"])
def test_what_an_edge_carries_is_what_moves(fabric: Fabric, strategy: Any, direction: Any) -> None:
    """One layer of two."""
    if (strategy, direction) == ("landed", "write"):
        strategy = "direct"
    pair = Pair(HERE, replace(HERE, name="there"))
    edge = kvr.Edge.told(direction, [("layers.1", [("h", 0, 8)], True)])
    assert pair.here.connect(pair.there.metadata(), edge=edge, direction=direction) is pair.peer
    act = pair.here.read if direction == "read" else pair.here.write
    act(pair.peer, pages(4), id="r", strategy=strategy)
    pair.until("Finished")
    assert {len(handle.ours) > 0 for handle in fabric.made} == {True}
    for layer, (mine, theirs) in enumerate(zip(pair.mine, pair.theirs, strict=True)):
        assert np.array_equal(mine[:4], theirs[:8:2]) == (layer == 1)
    # Without one all that both hold moves.
    pair.here.connect(pair.there.metadata(), direction=direction)
    act(pair.peer, pages(4), id="s", strategy=strategy)
    pair.until("Finished")
    assert all(np.array_equal(mine[:4], theirs[:8:2]) for mine, theirs in zip(pair.mine, pair.theirs, strict=True))
    pair.close()


def test_a_contact_is_made_by_the_edge(fabric: Fabric) -> None:
    pair = Pair()
    looked: list[str] = []
    read = reader(pair.theirs, THERE, THERE.notation)

    def seen(layer: str, page: int) -> Any:
        looked.append(layer)
        return read(layer, page)

    pair.there.expect_contacts([kvr.Blocks([3])], seen)
    pair.here.disconnect(pair.peer)
    first = FirstContact(request((0, 16), [7], [3]), write=writer(pair.mine, HERE, HERE.notation), seed=5)
    edge = kvr.Edge.told("write", [("layers.1", [("h", 0, 8)], True)])
    with pair.there.serve():
        pair.peer = pair.here.connect(pair.there.metadata(), edge=edge, direction="write", first_contact=first)
    assert looked == ["layers.1"]
    pair.close()


@pytest.mark.parametrize("flow", ["push", "pull"])
def test_a_lease_that_ends_ends_what_gathers_the_pages(fabric: Fabric, flow: Any) -> None:
    pair = Pair(flow=flow)
    fabric.held = lambda handle: True
    pair.there.expect("r", readers=1, lease=0.5)
    pair.there.expect("s", readers=1)
    pair.here.read(pair.peer, pages(4), id="r", strategy="packed")
    pair.here.read(pair.peer, pages(4), id="s", strategy="packed")
    assert pair.turns(5) == ([], [])
    time.sleep(0.5)
    here, there = pair.turns(5)
    assert there == [LeaseEnded("r", (), 1)]
    fabric.held = lambda handle: False
    ends = time.monotonic() + 5
    while len(here) < 2:
        assert time.monotonic() < ends
        here += pair.turns(1)[0]
    assert sorted((type(event).__name__, event.id) for event in here if isinstance(event, Failed | Finished)) == [
        ("Failed", "r"),
        ("Finished", "s"),
    ]
    pair.close()


def test_a_host_that_closes_in_the_middle_keeps_the_memory(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(connector, "_outlived", kept)
    pair = Pair()
    host, arrays = other_agent(fabric, "host")
    peer = host.connect(pair.there.metadata())
    fabric.held = lambda handle: True
    host.read(peer, pages(1), id="r", strategy="direct")
    assert host.close(timeout=0) == ("r",)
    ((owners, moving, agent),) = kept
    assert all(any(owner is array for owner in owners) for array in arrays)
    assert [(who, stage.handle) for who, stage in moving] == [(peer, fabric.made[0])]
    assert agent.name == "host"
    (failed,) = host.poll()
    assert isinstance(failed, Failed)
    assert (failed.pages, peer.state) == ("held", "closed")
    # Its peer stays loaded: it is the last means of seeing the transfer end.
    assert fabric.agents["host"].peers == {"there"}
    fabric.ending = True
    fabric.agents["host"].alive.clear()
    fabric.agents["host"].prepared.clear()
    pair.close()


def test_what_fails_while_closing_is_logged_and_the_rest_goes_on(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pair = Pair()
    here = fabric.agents["here"]
    deregister = here.deregister_memory

    def fails(found: Any) -> None:
        deregister(found)
        raise BROKEN

    monkeypatch.setattr(here, "deregister_memory", fails)
    assert pair.here.close(timeout=0) == ()
    assert [record.getMessage() for record in caplog.records] == [
        "while closing: NIXL could not deregister memory: NIXL_ERR_BACKEND"
    ]
    assert here.regions == []
    pair.there.close(timeout=0)


@pytest.mark.parametrize(("given", "taken"), [({}, "cma"), ({"transport": "cuda_ipc"}, "cuda_ipc")])
def test_costs_are_worked_out_for_the_transport_that_is_given(
    fabric: Fabric, given: dict[str, Any], taken: str
) -> None:
    pair = Pair(**given)
    assert pair.peer.transport == taken
    pair.close()


def test_polls_wait_for_the_first_event(fabric: Fabric) -> None:
    pair = Pair()
    begun = time.monotonic()
    assert pair.here.poll(timeout=0.05) == []
    assert time.monotonic() - begun >= 0.05
    later = time.monotonic() + 0.02
    fabric.held = lambda handle: time.monotonic() < later
    pair.here.read(pair.peer, pages(1), id="r", strategy="direct")
    assert [type(event) for event in pair.here.poll(timeout=5)] == [Finished]
    assert time.monotonic() < later + 4
    pair.close()


def test_a_lost_peer_stays_loaded_while_its_transfers_move(fabric: Fabric) -> None:
    """Removing it would take away the means to see them end."""
    pair = Pair()
    fabric.held = lambda handle: True
    pair.here.read(pair.peer, pages(1), id="r", strategy="direct")
    pair.here.gone("there")
    seen = pair.here.poll() + pair.here.poll()
    (failed,) = [event for event in seen if isinstance(event, Failed)]
    assert (type(failed.reason), failed.pages) == (PeerLost, "held")
    assert fabric.agents["here"].peers == {"there"}
    assert pair.peer.state == "lost"
    fabric.held = lambda handle: False
    assert pair.here.poll() == [Freed("r", "read")]
    assert fabric.agents["here"].peers == set()
    pair.close()


def test_what_was_not_begun_fails_with_its_peer(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    never: Any = SimpleNamespace(query=lambda: False)
    monkeypatch.setattr(Fence, "now", staticmethod(lambda devices: Fence(never)))
    pair.here.read(pair.peer, pages(1), id="r", strategy="direct")
    pair.here.gone("there")
    seen = pair.here.poll()
    (failed,) = [event for event in seen if isinstance(event, Failed)]
    assert (failed.id, type(failed.reason), failed.pages) == ("r", PeerLost, "free")
    assert fabric.agents["here"].alive == []
    pair.close()


def test_what_cannot_be_said_is_logged(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pair = Pair()
    pair.there.connect(pair.here.metadata(), direction=None)

    def refused(*_: Any) -> None:
        raise BROKEN

    for name in ("here", "there"):
        monkeypatch.setattr(fabric.agents[name], "send_notif", refused)
    pair.here.read(pair.peer, pages(2), id="r", strategy="packed")
    assert pair.there._hear("here", control.encode(control.Ask("r", 1000, pair.there.generation))) is True
    pair.there.expect("s", readers=1)
    pair.there._hear("here", control.encode(control.Ask("s", 1000, pair.there.generation)))
    texts = {record.getMessage() for record in caplog.records}
    assert texts == {
        f"peer {name}: NIXL could not notify a peer (peer {name}): NIXL_ERR_BACKEND" for name in ("here", "there")
    }
    monkeypatch.undo()
    pair.until("Finished")
    pair.close()


def test_a_reader_prolongs_a_lease_no_further_than_is_said(fabric: Fabric) -> None:
    pair = Pair()
    fabric.held = lambda handle: True
    pair.there.expect("r", readers=1, lease=0.05, longest=0.1)
    pair.there.expect("s", readers=1, lease=10)
    for id in ("r", "s"):
        pair.here.read(pair.peer, pages(1), id=id, strategy="direct", fence=True)
    seen: list[Event] = []
    ends = time.monotonic() + 5
    while not seen:
        assert time.monotonic() < ends
        seen += pair.turns(1)[1]
    assert seen == [LeaseEnded("r", (), 1)]
    fabric.held = lambda handle: False
    ended: set[tuple[str, str]] = set()
    while len(ended) < 2:
        assert time.monotonic() < ends
        here = pair.turns(1)[0]
        ended |= {(type(event).__name__, event.id) for event in here if isinstance(event, Failed | Finished)}
    assert ended == {("Failed", "r"), ("Finished", "s")}
    pair.close()
