"""Requests that are over before their transfers are: what stays busy for them, and for whom."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nixl")

import kvreshard as kvr
from kvreshard.nixl import Cancelled, Failed, Freed, PeerBusy, PeerDown, TransferError, Untracked, control
from kvreshard.nixl.staging import Fence
from tests.connector_rank import request
from tests.fabric import Fabric
from tests.pairs import Pair, other_rank, pages
from tests.scripted import BROKEN, MISSING


def given_up(pair: Pair, strategy: Any) -> None:
    """A request that has failed with its pages free while slots are still written or read for it."""
    pair.here.read(pair.peer, pages(10), id="r", strategy=strategy)
    pair.turns(5)
    assert pair.here.cancel("r")
    (failed,) = pair.here.poll()
    assert isinstance(failed, Failed)
    assert (type(failed.reason), failed.pages) == (Cancelled, "free")
    assert (pair.here.in_flight, pair.here.poll()) == ((), [])


@pytest.mark.parametrize(("flow", "strategy"), [("push", "landed"), ("pull", "packed")])
def test_slots_are_busy_with_the_peer_that_uses_them_alone(fabric: Fabric, flow: Any, strategy: Any) -> None:
    pair = Pair(flow=flow)
    other, second = other_rank(pair)
    third, last = other_rank(pair, "third")
    fabric.held = lambda handle: True
    given_up(pair, strategy)
    with pytest.raises(PeerBusy, match="reads of requests that are over"):
        pair.here.disconnect(pair.peer)
    pair.here.disconnect(second)
    # Lost peers are forgotten as soon as nothing is under way with them.
    pair.here.gone("third")
    assert [type(event) for event in pair.here.poll()] == [PeerDown]
    assert list(pair.here._peers) == ["there"]
    assert last.state == "lost"
    assert "third" not in fabric.agents["here"].peers
    fabric.held = lambda handle: False
    pair.turns(5)
    pair.here.disconnect(pair.peer)
    pair.close()
    other.close(timeout=0)
    third.close(timeout=0)


@pytest.mark.parametrize(("flow", "strategy"), [("push", "landed"), ("pull", "packed")])
def test_closing_waits_for_slots_that_are_written_or_read(fabric: Fabric, flow: Any, strategy: Any) -> None:
    pair = Pair(flow=flow)
    fabric.held = lambda handle: True
    given_up(pair, strategy)
    later = time.monotonic() + 0.02
    fabric.held = lambda handle: time.monotonic() < later
    assert any(handle.state == "PROC" for handle in fabric.made)
    assert pair.here.close(timeout=5) == ()
    assert {handle.state for handle in fabric.made if handle.operation == "READ"} == {"DONE"}
    assert time.monotonic() < later + 4
    pair.there.close(timeout=0.1)


def test_what_was_not_begun_is_given_up_at_once(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    never: Any = SimpleNamespace(query=lambda: False)
    monkeypatch.setattr(Fence, "now", staticmethod(lambda devices: Fence(never)))
    pair.here.read(pair.peer, pages(1), id="r", strategy="direct")
    assert pair.here.cancel("r") is True
    assert pair.here.cancel("r") is False
    assert list(pair.here.in_flight) == []
    assert [type(event) for event in pair.here.poll()] == [Failed]
    assert pair.here.poll() == []
    assert fabric.agents["here"].alive == []
    pair.close()


def test_closing_gives_up_what_does_not_move_with_its_pages_free(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that was not begun, and one whose peer has not confirmed it."""
    pair = Pair()
    pair.here.read(pair.peer, pages(1), id="unconfirmed", strategy="direct", fence=True)
    never: Any = SimpleNamespace(query=lambda: False)
    monkeypatch.setattr(Fence, "now", staticmethod(lambda devices: Fence(never)))
    pair.here.read(pair.peer, pages(1), id="unbegun", strategy="direct")
    assert pair.turns(2) == ([], [])
    assert pair.here.close(timeout=0) == ("unconfirmed", "unbegun")
    events = pair.here.poll()
    assert [(type(event), event.id, event.pages, event.peers) for event in events if isinstance(event, Failed)] == [
        (Failed, "unconfirmed", "free", ()),
        (Failed, "unbegun", "free", ()),
    ]
    assert len(events) == 2
    pair.there.close(timeout=0)


def test_one_that_moves_is_given_up_once(fabric: Fabric) -> None:
    pair = Pair()
    fabric.held = lambda handle: True
    pair.here.read(pair.peer, pages(1), id="r", strategy="direct")
    assert pair.here.cancel("r") is True
    assert pair.here.cancel("r") is False
    assert pair.here.cancel("s") is False
    assert list(pair.here.in_flight) == ["r"]
    assert [type(event) for event in pair.here.poll()] == [Failed]
    fabric.held = lambda handle: False
    assert pair.here.poll() == [Freed("r", "read")]
    pair.close()


def stuck(pair: Pair, fabric: Fabric, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that NIXL has failed for another reason than the end of the connection."""

    def look(handle: Any) -> str:
        raise error

    fabric.held = lambda handle: True
    pair.here.read(pair.peer, pages(1), id="r", strategy="direct")
    monkeypatch.setattr(fabric.agents["here"], "check_xfer_state", look)
    (failed,) = pair.here.poll()
    assert isinstance(failed, Failed)
    assert (type(failed.reason), failed.pages) == (Untracked if error is MISSING else TransferError, "held")
    assert pair.here.poll() == []


@pytest.mark.parametrize("error", [BROKEN, MISSING])
def test_the_end_of_a_peer_frees_what_is_stuck_unless_nobody_can_tell(
    fabric: Fabric, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handle that NIXL does not know any more may still be written to; a broken one ends with the connection."""
    pair = Pair()
    stuck(pair, fabric, error, monkeypatch)
    fabric.ending = True
    pair.here.gone("there")
    seen = pair.here.poll() + pair.here.poll()
    assert [event for event in seen if isinstance(event, Freed)] == ([Freed("r", "read")] if error is BROKEN else [])
    assert list(pair.here.in_flight) == ([] if error is BROKEN else ["r"])
    assert [event.requests for event in seen if isinstance(event, PeerDown)] == [("r",)]
    pair.close()


def test_a_peer_that_gives_up_its_registration_frees_nothing_that_is_stuck(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is still connected: bytes that were under way may land."""
    pair = Pair()
    stuck(pair, fabric, BROKEN, monkeypatch)
    pair.here._hear("there", control.encode(control.Void(pair.there.generation)))
    assert [type(event) for event in pair.here.poll()] == [PeerDown]
    assert pair.here.poll() == []
    assert list(pair.here.in_flight) == ["r"]
    # Its end does.
    fabric.ending = True
    pair.here.gone("there")
    assert pair.here.poll() == [Freed("r", "read")]
    assert (pair.here.in_flight, pair.here._peers) == ((), {})
    pair.close()


def removed(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host removes the peer from the agent: NIXL knows neither it nor transfers with it, and bytes go on."""

    def missing(*_: Any) -> Any:
        raise MISSING

    monkeypatch.setattr(fabric.agents["here"], "check_xfer_state", missing)
    monkeypatch.setattr(fabric.agents["here"], "send_notif", missing)
    fabric.ending = True


@pytest.mark.parametrize("before", ["runs", "is broken", "is void"])
@pytest.mark.parametrize("messages", [1, 2])
def test_what_a_removed_peer_may_still_write_stays_held(
    fabric: Fabric, before: str, messages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else was said of it first, and however many messages to it found that it is not there."""
    pair = Pair()
    if before == "is broken":
        stuck(pair, fabric, BROKEN, monkeypatch)
    else:
        fabric.held = lambda handle: True
        pair.here.read(pair.peer, pages(1), id="r", strategy="direct")
    if before == "is void":
        pair.here._hear("there", control.encode(control.Void(pair.there.generation)))
        assert [type(event) for event in pair.here.poll()] == [PeerDown, Failed]
    removed(fabric, monkeypatch)
    for _ in range(messages):
        pair.here.say(pair.peer, control.Ask("q", 1000, pair.there.generation))
    pair.here.poll()
    pair.here.gone("there")
    seen = pair.here.poll() + pair.here.poll()
    assert not any(isinstance(event, Freed) for event in seen)
    assert list(pair.here.in_flight) == ["r"]
    pair.close()


def test_refusals_add_up(fabric: Fabric) -> None:
    pair = Pair()
    other, second = other_rank(pair)
    for count in (1, 2):
        with pytest.raises(kvr.RequestError):
            pair.here.read_all([(pair.peer, pages(1)), (second, request((0, 16), [99], [0]))], id="r")
        assert (pair.peer.metrics.refusals, second.metrics.refusals) == (0, count)
    assert (fabric.agents["here"].alive, pair.here.in_flight) == ([], ())
    pair.close()
    other.close(timeout=0)
