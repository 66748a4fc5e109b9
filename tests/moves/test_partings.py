"""Peers that are let go, published for anew, or have given up what they told of their memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("nixl")

from kvreshard.nixl import Failed, Freed, NotConnected, PeerDown, PeerLost, control, wire
from tests.connector_rank import request
from tests.fabric import Fabric
from tests.pairs import Pair, changed, failure, other_rank, pages, right
from tests.told import told


def test_one_that_is_idle_is_let_go_while_another_is_busy(fabric: Fabric) -> None:
    pair = Pair()
    other, second = other_rank(pair)
    fabric.held = lambda handle: True
    pair.here.read(pair.peer, pages(1), id="r", strategy="direct")
    pair.here.disconnect(second)
    assert (second.state, pair.peer.state) == ("closed", "connected")
    assert list(pair.here.in_flight) == ["r"]
    fabric.held = lambda handle: False
    pair.until("Finished")
    pair.here.close(timeout=0)
    assert pair.peer.state == "closed"
    pair.there.close(timeout=0)
    other.close(timeout=0)


@pytest.mark.parametrize("strategy", ["direct", "landed", "packed"])
def test_a_layout_that_is_published_again_is_planned_for_anew(fabric: Fabric, strategy: Any) -> None:
    pair = Pair()
    pair.here.read(pair.peer, pages(2), id="r", strategy=strategy)
    pair.until("Finished")
    pair.here.publish(pair.here.layout)
    with pytest.raises(NotConnected):
        pair.here.read(pair.peer, pages(2), id="s", strategy=strategy)
    with pytest.raises(NotConnected) as caught:
        pair.here.notify(pair.peer, "n")
    assert told(caught.value)[1]["request"] == "n"
    assert pair.peer.state == "closed"
    pair.peer = pair.here.connect(pair.there.metadata())
    pair.here.read(pair.peer, pages(8), id="s", strategy=strategy)
    pair.until("Finished")
    assert right(pair, 8)
    pair.close()


def test_metadata_that_is_loaded_is_not_loaded_again(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time costs a socket on both sides."""
    pair = Pair()
    pair.here.disconnect(pair.peer)
    with monkeypatch.context() as patch:
        patch.setattr(fabric.agents["here"], "add_remote_agent", lambda metadata: pytest.fail("it is loaded"))
        pair.peer = pair.here.connect(pair.there.metadata())
    assert pair.peer.connected
    pair.close()


def test_whoever_gives_up_its_registrations_tells_its_peers(fabric: Fabric) -> None:
    pair = Pair()
    deaf, second = other_rank(pair, "deaf")
    pair.there.connect(pair.here.metadata(), direction=None)
    pair.there.connect(wire.encode(replace(wire.decode(deaf.metadata()), notices=1)), direction=None)
    generation = pair.there.generation
    fabric.held = lambda handle: True
    pair.here.read(pair.peer, pages(1), id="r", strategy="direct")
    pair.here.read(second, request((0, 16), [9], [9]), id="s", strategy="direct")
    fabric.told.clear()
    pair.there.deregister()
    # One that reads no control messages is told nothing.
    assert [(who, control.decode(sent)) for _, who, sent in fabric.told] == [("here", control.Void(generation))]
    failed, others = failure(pair)
    (down,) = [event for event in others if isinstance(event, PeerDown)]
    text = f"peer there has given up its registration {generation}: what it told of its memory is void"
    facts = {
        "peer": "there",
        "field": "generation",
        "found": generation,
        "remedy": "connect() with the peer's current metadata",
    }
    assert told(down.reason) == (text, facts)
    assert told(failed.reason) == (text, {**facts, "request": "r"})
    assert (down.peer, down.requests, failed.id, failed.pages) == ("there", ("r",), "r", "held")
    assert (pair.peer.state, second.state) == ("lost", "connected")
    fabric.held = lambda handle: False
    pair.turns(2)
    pair.close()
    deaf.close(timeout=0)


def test_news_of_another_registration_than_the_connected_one_are_none(fabric: Fabric) -> None:
    pair = Pair()
    for who, generation in (("there", pair.there.generation + 1), ("stranger", pair.there.generation)):
        assert pair.here._hear(who, control.encode(control.Void(generation)))
    assert pair.here.poll() == []
    assert pair.peer.connected
    # Heard twice it is news once.
    for _ in range(2):
        pair.here._hear("there", control.encode(control.Void(pair.there.generation)))
    assert [type(event) for event in pair.here.poll()] == [PeerDown]
    pair.close()


def test_a_lost_peer_that_introduces_itself_is_connected_when_nothing_moves(
    fabric: Fabric, caplog: pytest.LogCaptureFixture
) -> None:
    pair = Pair()
    fabric.held = lambda handle: True
    pair.here.read(pair.peer, pages(1), id="r", strategy="direct")
    pair.here.gone("there")
    hello = control.encode(control.Hello(pair.there.metadata()))
    assert pair.here._hear("there", hello)
    (record,) = caplog.records
    assert record.getMessage() == (
        "could not connect 'there', which introduced itself: transfers with peer there are in flight: r"
    )
    fabric.held = lambda handle: False
    assert {type(event) for event in pair.here.poll()} == {PeerDown, Failed, Freed}
    assert pair.here._hear("there", hello)
    again = pair.here._peers["there"]
    assert again is not pair.peer
    assert (again.connected, again.senders) == (True, 1)
    pair.close()


def test_a_loss_that_is_found_while_telling_is_news(fabric: Fabric) -> None:
    """By a notice, an introduction, or an answer."""
    for how in ("notify", "say", "answer"):
        pair = Pair()
        fabric.agents["there"].end()
        raised: list[PeerLost] = []
        if how == "notify":
            with pytest.raises(PeerLost) as caught:
                pair.here.notify(pair.peer, "n")
            raised.append(caught.value)
        elif how == "say":
            pair.here.say(pair.peer, control.Ask("r", 1000, 0))
        else:
            pair.here.expect("r", readers=1)
            pair.here._hear("there", control.encode(control.Ask("r", 1000, 0)))
        assert pair.peer.connected == (how != "notify")
        (down,) = pair.here.poll()
        assert isinstance(down, PeerDown)
        assert (down.peer, type(down.reason), down.requests) == ("there", PeerLost, ())
        assert all(down.reason is error for error in raised)
        assert told(down.reason)[1]["peer"] == "there"
        assert pair.peer.state == "lost"
        pair.here.close(timeout=0)
        pair.there._closed = True
        del fabric.agents["here"]


def test_of_another_registration_a_peer_is_another(fabric: Fabric) -> None:
    """A lost one, too, as soon as nothing moves with it."""
    pair = Pair()
    pair.here.gone("there")
    again = pair.here.connect(changed(pair.there))
    assert (pair.peer.state, again.state) == ("closed", "connected")
    assert [type(event) for event in pair.here.poll()] == [PeerDown]
    # That the old one is closed does not take the new one away.
    assert pair.here._peers == {"there": again}
    pair.close()
