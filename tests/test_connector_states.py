"""What becomes of a request in the states that real NIXL rarely shows, through an agent that follows a script."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.connector_rank import publish, request

pytest.importorskip("msgspec")

from kvreshard.nixl import (
    Connector,
    DeadlinePassed,
    Failed,
    Finished,
    Freed,
    NotRegistered,
    PeerBusy,
    PeerDown,
    PeerLost,
    TransferError,
    Untracked,
)
from kvreshard.nixl.connector import LISTENS
from tests.scripted import BROKEN, LOST, MISSING, SPEC, Scripted, metadata


@pytest.fixture
def agent() -> Scripted:
    return Scripted()


@pytest.fixture
def here(agent: Scripted) -> Iterator[Connector]:
    connector = Connector(agent=agent)
    publish(connector, SPEC, SPEC.arrays(1))
    yield connector
    for peer in ("a", "b", "c"):
        agent.state[peer] = LOST
    connector.close(timeout=1)
    assert (agent.registered, agent.prepared, agent.alive, agent.peers) == (0, 0, [], set())


PAGE = request((0, 16), [1], [2])


def test_a_failure_that_is_no_disconnect_holds_the_pages_until_the_connection_ends(
    here: Connector, agent: Scripted
) -> None:
    """NIXL reports the first bad descriptor; the others may still be under way."""
    peer = here.connect(metadata("a"))
    here.read(peer, PAGE, id="r")
    agent.state["a"] = BROKEN
    (failed,) = here.poll()
    assert isinstance(failed, Failed)
    assert isinstance(failed.reason, TransferError)
    assert (failed.pages, failed.reason.code, failed.reason.request) == ("held", "NIXL_ERR_BACKEND", "r")
    assert here.poll() == []
    with pytest.raises(PeerBusy):
        here.disconnect(peer)
    here.read(peer, PAGE, id="next")
    agent.state["a"] = LOST
    events = here.poll()
    assert [type(event) for event in events] == [Freed, Failed, PeerDown]
    assert Freed("r", "read") in events
    assert here.in_flight == ()


def test_a_peer_removed_by_the_host_under_a_transfer_holds_the_pages_for_good(agent: Scripted) -> None:
    here = Connector(agent=agent)
    publish(here, SPEC, SPEC.arrays(1))
    peer = here.connect(metadata("a"))
    here.read(peer, PAGE, id="r")
    agent.state["a"] = MISSING
    (failed,) = here.poll()
    assert isinstance(failed, Failed)
    assert isinstance(failed.reason, Untracked)
    assert failed.pages == "held"
    assert here.poll() == []
    assert here.close(timeout=0.01) == ("r",)
    assert here.poll() == []


def test_a_source_that_refuses_leaves_the_others_to_end(here: Connector, agent: Scripted) -> None:
    """The second of three is dead at the post: the first is under way, the third is not even posted."""
    peers = [here.connect(metadata(name)) for name in "abc"]
    agent.post["b"] = LOST
    here.read_all([(peer, PAGE) for peer in peers], id="r")
    assert agent.posted == ["a", "b"]
    failed, down = here.poll()
    assert isinstance(failed, Failed)
    assert isinstance(failed.reason, PeerLost)
    assert (failed.pages, failed.peers) == ("held", ("a", "b"))
    assert isinstance(down, PeerDown)
    assert (down.peer, down.requests) == ("b", ("r",))
    assert not peers[1].connected
    agent.state["a"] = "DONE"
    assert here.poll() == [Freed("r", "read")]
    assert agent.alive == []


def test_what_cannot_be_made_is_refused_before_anything_moves(here: Connector, agent: Scripted) -> None:
    peers = [here.connect(metadata(name)) for name in "ab"]
    agent.make["b"] = MISSING
    with pytest.raises(NotRegistered) as caught:
        here.read_all([(peer, request((3, 9), [1], [2])) for peer in peers], id="r")
    assert (caught.value.peer, caught.value.request) == ("b", "r")
    assert (agent.posted, agent.alive, here.in_flight) == ([], [], ())


def test_a_late_end_after_the_deadline_is_no_success(here: Connector, agent: Scripted) -> None:
    peer = here.connect(metadata("a"))
    here.read(peer, PAGE, id="r", deadline=0.0)
    (failed,) = here.poll()
    assert isinstance(failed, Failed)
    assert isinstance(failed.reason, DeadlinePassed)
    agent.state["a"] = "DONE"
    assert here.poll() == [Freed("r", "read")]
    here.read(peer, PAGE, id="r")
    (finished,) = here.poll()
    assert isinstance(finished, Finished)
    assert (finished.posted, finished.bytes, finished.transfers[0].seconds) == (3, 5, 11e-6)


def test_without_telemetry_the_plan_tells(here: Connector, agent: Scripted) -> None:
    agent.telemetry = False
    agent.post["a"] = "DONE"
    peer = here.connect(metadata("a"))
    here.read(peer, PAGE, id="r")
    (finished,) = here.poll()
    assert isinstance(finished, Finished)
    assert (finished.posted, finished.bytes) == (2, 2 * SPEC.format.page_bytes)


def test_rows_are_prepared_once_a_peer_and_direction(here: Connector, agent: Scripted) -> None:
    agent.post["a"] = "DONE"
    peer = here.connect(metadata("a"))
    for number in range(3):
        here.read(peer, PAGE, id=str(number))
    assert agent.prepared == 2
    here.write(peer, PAGE, id="w")
    assert agent.prepared == 4
    here.connect(metadata("a", generation=2))
    assert agent.prepared == 0


def test_a_host_that_closes_in_the_middle_keeps_the_memory_alive(agent: Scripted) -> None:
    connector = Connector(agent=agent)
    publish(connector, SPEC, SPEC.arrays(1))
    peer = connector.connect(metadata("a"))
    connector.read(peer, PAGE, id="r")
    assert connector.close(timeout=0.01) == ("r",)
    (failed,) = connector.poll()
    assert isinstance(failed, Failed)
    assert failed.pages == "held"
    assert connector.poll() == []
    # The handle lives on, and so does the peer: NIXL lands the bytes whatever is done here.
    assert [handle.peer for handle in agent.alive] == ["a"]
    assert agent.peers == {"a"}
    assert agent.registered == 0


def test_a_round_of_progress_takes_in_what_comes_meanwhile_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[str, bytes]] = []

    def hear(self: Connector, sender: str, message: bytes) -> bool:
        heard.append((sender, message))
        return True

    monkeypatch.setattr(Connector, "_hear", hear)
    with Connector("here") as here:
        told = iter([{"a": [b"1"]}, {"b": [b"2", b"3"]}])
        monkeypatch.setattr(here._agent, "notices", lambda: next(told, {}))
        here.poll()
        assert heard == [("a", b"1"), ("b", b"2"), ("b", b"3")]
        heard.clear()
        # Peers that never stop must not keep this rank from all else.
        monkeypatch.setattr(here._agent, "notices", lambda: {"a": [b"more"]})
        here.poll()
        assert len(heard) == LISTENS
        monkeypatch.setattr(here._agent, "notices", dict)
