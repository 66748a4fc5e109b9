"""What a connector hears of hosts and peers, what edges carry, and what is logged where nobody can be told."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nixl")

import kvreshard as kvr
from kvreshard.nixl import (
    Connector,
    Event,
    Failed,
    Finished,
    Freed,
    LeaseEnded,
    PeerLost,
    Released,
    connector,
    control,
    wire,
)
from kvreshard.nixl.staging import Fence
from tests.connector_rank import publish
from tests.fabric import Fabric
from tests.pairs import HERE, STAGING, THERE, Pair, Patience, changed, other_agent, pages, tokens
from tests.scripted import BROKEN


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
    patience = Patience()
    while not seen:
        assert patience.lasts
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
    more = wire.encode(replace(wire.decode(other.metadata()), nixl=b"of more memory"))
    pair.here._hear("other", control.encode(control.Hello(more)))
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
        patience = Patience()
        while not seen:
            assert patience.lasts
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
    patience = Patience()
    while len(here) < 2:
        assert patience.lasts
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


def test_polls_wait_for_the_first_event(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    # Only where they are told to.
    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", lambda seconds: pytest.fail("a poll without a timeout has slept"))
        assert pair.here.poll() == []
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
    patience = Patience()
    while not seen:
        assert patience.lasts
        seen += pair.turns(1)[1]
    assert seen == [LeaseEnded("r", (), 1)]
    fabric.held = lambda handle: False
    ended: set[tuple[str, str]] = set()
    while len(ended) < 2:
        assert patience.lasts
        here = pair.turns(1)[0]
        ended |= {(type(event).__name__, event.id) for event in here if isinstance(event, Failed | Finished)}
    assert ended == {("Failed", "r"), ("Finished", "s")}
    pair.close()
