"""Requests with leases, deadlines and streams to wait for, over agents that copy memory themselves."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nixl")

import kvreshard as kvr
from kvreshard.nixl import (
    Connector,
    DeadlinePassed,
    Event,
    Failed,
    Finished,
    Freed,
    LeaseOver,
    PeerDown,
    PeerLost,
    Released,
    TransferError,
    clearing,
    control,
)
from kvreshard.nixl.control import Ask, Done
from kvreshard.nixl.staging import Fence
from tests.connector_rank import publish, request
from tests.fabric import Fabric
from tests.pairs import STAGING, THERE, Pair, Patience, pages
from tests.told import told


def said(fabric: Fabric, sender: str = "here") -> list[str]:
    """Kinds of the control messages that were sent."""
    found = [
        control.decode(message) for who, _, message in fabric.told if who == sender and control.is_control(message)
    ]
    return [type(message).__name__ for message in found]


def lost(kind: type) -> Any:
    """Loses control messages of a kind."""
    return lambda sender, receiver, message: control.is_control(message) and isinstance(control.decode(message), kind)


def ended(pair: Pair) -> tuple[Failed, list[Event]]:
    """Looks until a request has failed; what else was seen."""
    seen, patience = list[Event](), Patience()
    while not any(isinstance(event, Failed) for event in seen):
        assert patience.lasts
        seen += pair.turns(1)[0]
    failed = next(event for event in seen if isinstance(event, Failed))
    return failed, [event for event in seen if event is not failed]


def test_a_fenced_read_is_over_when_the_producer_has_confirmed(fabric: Fabric) -> None:
    pair = Pair()
    fabric.held = lambda handle: True
    pair.there.expect("r", readers=1, lease=30)
    pair.here.read(pair.peer, pages(2), id="r", strategy="direct", fence=True)
    assert pair.turns(3) == ([], [])
    # Who this rank is, once, and the lease.
    assert said(fabric) == ["Hello", "Ask"]
    assert said(fabric, "there") == ["Held"]
    fabric.held = lambda handle: False
    here, there = pair.until("Finished")
    assert [type(event) for event in here] == [Finished]
    assert there == [Released("r", ("here",))]
    assert said(fabric) == ["Hello", "Ask", "Done"]
    assert said(fabric, "there") == ["Held", "Confirmed"]
    assert pair.here._leases._leases == {}
    # No notice beside it.
    assert len(fabric.told) == 5
    pair.close()


def test_a_fence_is_the_connectors_choice_where_none_is_ordered(fabric: Fabric) -> None:
    pair = Pair(fence=True)
    pair.there.expect("r", readers=1)
    pair.here.read(pair.peer, pages(1), id="r")
    pair.until("Finished")
    assert said(fabric)[-1] == "Done"
    pair.here.read(pair.peer, pages(1), id="s", fence=False)
    pair.until("Finished")
    assert said(fabric)[-1] == "Done"
    assert fabric.told[-1][:2] == ("here", "there")
    pair.close()


@pytest.mark.parametrize("kind", [Done, control.Confirmed])
def test_without_an_answer_a_fenced_read_fails_with_its_pages_free(fabric: Fabric, kind: type) -> None:
    pair = Pair()
    pair.there.expect("r", readers=1)
    fabric.lost = lost(kind)
    pair.here.read(pair.peer, pages(1), id="r", fence=True, deadline=0.05, strategy="direct")
    failed, others = ended(pair)
    assert others == []
    assert (type(failed.reason), failed.pages, failed.peers, failed.direction) == (DeadlinePassed, "free", (), "read")
    assert told(failed.reason) == (
        "request r: there did not confirm in time that it held the pages (does it expect the request?)",
        {"peer": "there", "request": "r"},
    )
    assert (pair.here.in_flight, pair.peer.metrics.failures, pair.here._leases._leases) == ((), 0, {})
    pair.close()


def test_a_confirmation_that_was_lost_is_asked_for_again(fabric: Fabric) -> None:
    pair = Pair()
    pair.there.expect("r", readers=1)
    first: list[bytes] = []

    def once(sender: str, receiver: str, message: bytes) -> bool:
        if control.is_control(message) and isinstance(control.decode(message), control.Confirmed) and not first:
            first.append(message)
            return True
        return False

    fabric.lost = once
    pair.here.read(pair.peer, pages(1), id="r", fence=True, strategy="direct")
    here, there = pair.until("Finished")
    assert [type(event) for event in here] == [Finished]
    assert there == [Released("r", ("here",))]
    # The second time it says who it is, since nobody answered.
    assert said(fabric) == ["Hello", "Done", "Hello", "Done"] or said(fabric)[-2:] == ["Hello", "Done"]
    assert len(first) == 1
    pair.close()


def test_pages_that_are_not_held_any_more_are_no_success(fabric: Fabric) -> None:
    pair = Pair()
    pair.there.expect("r", readers=1)
    fabric.held = lambda handle: True
    pair.here.read(pair.peer, pages(1), id="r", fence=True, strategy="direct")
    assert pair.turns(3) == ([], [])
    assert pair.there.forget("r")
    fabric.held = lambda handle: False
    failed, others = ended(pair)
    assert others == []
    assert (type(failed.reason), failed.pages, failed.peers) == (LeaseOver, "free", ())
    text = "request r: there did not hold the pages until they were read"
    assert told(failed.reason) == (text, {"peer": "there", "request": "r"})
    pair.close()


def test_a_refused_read_leaves_no_lease(fabric: Fabric) -> None:
    pair = Pair()
    with pytest.raises(kvr.RequestError):
        pair.here.read(pair.peer, request((0, 16), [99], [0]), id="r", fence=True)
    assert (pair.here._leases._leases, fabric.told) == ({}, [])
    pair.close()


def test_a_producer_that_ends_before_it_has_confirmed(fabric: Fabric) -> None:
    pair = Pair()
    pair.there.expect("r", readers=1)
    fabric.lost = lost(Done)
    pair.here.read(pair.peer, pages(1), id="r", fence=True, strategy="direct")
    assert pair.turns(3) == ([], [])
    pair.there.close(timeout=0)
    fabric.agents["there"].end()
    fabric.lost = lambda *_: False
    seen: list[Event] = []
    patience = Patience()
    while len(seen) < 2:
        assert patience.lasts
        seen += pair.here.poll()
    failed = next(event for event in seen if isinstance(event, Failed))
    down = next(event for event in seen if isinstance(event, PeerDown))
    assert (type(failed.reason), failed.pages, down.requests) == (PeerLost, "free", ("r",))
    text = "request r: there was lost before it said whether it held the pages"
    assert told(failed.reason) == (text, {"peer": "there", "request": "r"})
    fabric.agents["here"].peers.discard("there")
    pair.here.close(timeout=0)


def test_a_deadline_holds_pages_that_a_transfer_may_still_touch(fabric: Fabric) -> None:
    pair = Pair()
    other = Connector("other", **STAGING)
    publish(other, replace(THERE, name="other"), THERE.arrays(3))
    second = pair.here.connect(other.metadata())
    fabric.held = lambda handle: True
    parts = [(pair.peer, request((0, 16), [0], [0])), (second, request((0, 16), [1], [0]))]
    pair.here.read_all(parts, id="r", strategy="direct", deadline=0.05)
    failed, others = ended(pair)
    assert others == []
    assert (type(failed.reason), failed.pages, failed.peers) == (DeadlinePassed, "held", ("there", "other"))
    text = "did not finish in time; pages that a transfer may still touch stay held until it ends"
    assert told(failed.reason) == (f"request r: there, other {text}", {"peer": "there", "request": "r"})
    assert (pair.peer.metrics.failures, second.metrics.failures) == (1, 1)
    assert list(pair.here.in_flight) == ["r"]
    fabric.held = lambda handle: handle.peer == "other"
    assert pair.turns(2)[0] == []
    fabric.held = lambda handle: False
    assert pair.turns(2)[0] == [Freed("r", "read")]
    assert list(pair.here.in_flight) == []
    pair.close()
    other.close(timeout=0)


@pytest.mark.parametrize("strategy", ["direct", "landed", "packed"])
def test_nothing_begins_before_the_stream_is_done(
    fabric: Fabric, strategy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair()
    over = False
    monkeypatch.setattr(Fence, "now", staticmethod(lambda devices: Fence(SimpleNamespace(query=lambda: over))))
    pair.here.read(pair.peer, pages(4), id="r", strategy=strategy)
    assert pair.turns(3) == ([], [])
    assert [handle.state for handle in fabric.made] in ([], ["made"])
    assert fabric.told == []
    pair.here.read(pair.peer, pages(4), id="late", strategy=strategy, deadline=0.0)
    failed, _ = ended(pair)
    assert (type(failed.reason), failed.pages) == (DeadlinePassed, "free")
    text = "was not begun in time: this thread's stream is still at what it was given before"
    assert told(failed.reason) == (f"request late: there {text}", {"peer": "there", "request": "late"})
    # Who knows better need not wait.
    pair.here.read(pair.peer, pages(4), id="now", strategy=strategy, wait=False)
    assert {event.id for event in pair.until("Finished")[0] if isinstance(event, Finished)} == {"now"}
    over = True
    assert {event.id for event in pair.until("Finished")[0] if isinstance(event, Finished)} == {"r"}
    pair.close()


@pytest.mark.parametrize("flow", ["push", "pull"])
def test_packed_pages_are_gathered_when_the_stream_that_writes_them_is_done(
    fabric: Fabric, flow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the request that was expected behind it, and no others."""
    waited: list[str] = []
    stream: Any = SimpleNamespace(query=lambda: bool(waited), synchronize=lambda: waited.append("r"))
    pair = Pair(flow=flow)
    with monkeypatch.context() as patch:
        patch.setattr(Fence, "now", staticmethod(lambda devices: Fence(stream)))
        pair.there.expect("r", readers=1)
    pair.there.expect("s", readers=1)
    for id, done in (("s", []), ("r", ["r"])):
        pair.here.read(pair.peer, pages(2), id=id, strategy="packed")
        pair.until("Finished")
        assert waited == done
    pair.close()


def test_a_page_that_cannot_be_cleared_fails_the_request(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no such memory")

    pair = Pair()
    monkeypatch.setattr(clearing, "clear", broken)
    pair.here.read(pair.peer, request((0, 20), [0, 1], [0, 1]), id="r", strategy="direct")
    failed, others = ended(pair)
    assert others == []
    assert (type(failed.reason), failed.pages) == (TransferError, "free")
    assert told(failed.reason) == ("request r: no such memory", {"request": "r"})
    pair.close()


def test_of_two_producers_the_one_that_has_not_confirmed_is_named(fabric: Fabric) -> None:
    pair = Pair()
    other = Connector("other", **STAGING)
    publish(other, replace(THERE, name="other"), THERE.arrays(3))
    second = pair.here.connect(other.metadata())
    parts = [(pair.peer, request((0, 16), [0], [0])), (second, request((0, 16), [1], [0]))]
    for id, gone in (("r", False), ("s", True)):
        for producer in (pair.there, other):
            producer.expect(id, readers=1)
        fabric.lost = lambda sender, receiver, message: receiver == "other" and lost(Done)(sender, receiver, message)
        pair.here.read_all(parts, id=id, strategy="direct", fence=True, deadline=0.8)
        for _ in range(3):
            assert pair.turns(1)[0] == []
            other.poll()
        if gone:
            # It has confirmed, and what becomes of it then is no news of the request.
            pair.here.gone("there")
            (down,) = pair.here.poll()
            assert isinstance(down, PeerDown)
            assert down.requests == ()
        failed, _ = ended(pair)
        assert (type(failed.reason), failed.id) == (DeadlinePassed, id)
        text = "other did not confirm in time that it held the pages (does it expect the request?)"
        assert told(failed.reason) == (f"request {id}: {text}", {"peer": "other", "request": id})
    pair.close()
    other.close(timeout=0)


def test_a_source_that_is_done_is_not_needed_any_more(fabric: Fabric) -> None:
    pair = Pair()
    other = Connector("other", **STAGING)
    publish(other, replace(THERE, name="other"), THERE.arrays(3))
    second = pair.here.connect(other.metadata())
    fabric.held = lambda handle: handle.peer == "other"
    pair.there.expect("r", readers=1)
    parts = [(pair.peer, request((0, 16), [0], [0])), (second, request((0, 16), [1], [0]))]
    pair.here.read_all(parts, id="r", strategy="direct")
    assert pair.turns(2) == ([], [Released("r", ("here",))])
    # Its end is no news of the request.
    pair.here.gone("there")
    (down,) = pair.here.poll()
    assert isinstance(down, PeerDown)
    assert (down.peer, down.requests) == ("there", ())
    assert told(down.reason) == ("peer there has ended, as the host says", {"peer": "there"})
    # The other's is.
    pair.here.gone("other")
    fabric.agents["other"].end()
    seen: list[Event] = []
    patience = Patience()
    while len(seen) < 3:
        assert patience.lasts
        seen += pair.here.poll()
    assert {type(event) for event in seen} == {PeerDown, Failed, Freed}
    (down,) = [event for event in seen if isinstance(event, PeerDown)]
    assert (down.peer, down.requests) == ("other", ("r",))
    pair.close()


def test_asks_are_sent_while_bytes_move_only(fabric: Fabric) -> None:
    pair = Pair()
    fabric.held = lambda handle: True
    pair.there.expect("r", readers=1)
    pair.here.read(pair.peer, pages(1), id="r", fence=True, strategy="direct", deadline=0.2)
    failed, _ = ended(pair)
    assert failed.pages == "held"
    asks = [control.decode(message) for _, _, message in fabric.told if control.is_control(message)]
    assert [one.id for one in asks if isinstance(one, Ask)] == ["r"]
    assert not any(isinstance(one, Done) for one in asks)
    fabric.held = lambda handle: False
    pair.turns(2)
    pair.close()
