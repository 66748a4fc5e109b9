"""How parcels end, what is made of peers that come and go, and of time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("msgspec")

import kvreshard as kvr
from kvreshard.nixl import Cancelled, DeadlinePassed, LeaseOver, PeerLost, TransferError, packing
from kvreshard.nixl.control import Join, Refused
from kvreshard.nixl.packing import TICK, Packing
from kvreshard.nixl.parcels import Parcel
from tests.noting import Carrier, One, Sessions
from tests.told import told

LONG = 77.0
"""When parcels of these tests are told; any time is late enough."""


def test_how_a_parcel_ends_is_what_its_machine_reports() -> None:
    one = One()

    def report(parcel: Parcel, kind: str, **fields: Any) -> None:
        action: Any = SimpleNamespace(kind=kind, **{"reason": None, "by_peer": False, "held": False, **fields})
        one.packing.report(parcel, action)

    parcel = one.parcel()
    report(parcel, "asked")
    assert (parcel.state, one.left) == ("open", ["p1"])
    report(parcel, "finished")
    assert (parcel.state, parcel.error, parcel.held, one.left) == ("done", None, False, [])
    # Held until its kernel has ended.
    parcel = one.parcel()
    report(parcel, "failed", reason="kernel failed", held=True)
    assert (parcel.state, parcel.held, one.left) == ("failed", True, ["p2"])
    text = "request r: this side gave it up: kernel failed"
    assert told(parcel.error) == (text, {"peer": "there", "request": "r"})
    report(parcel, "freed")
    assert (parcel.held, one.left) == (False, [])
    kinds: list[tuple[str | None, bool, type]] = [
        ("cancelled", False, Cancelled),
        ("deadline", False, DeadlinePassed),
        ("lease ended", True, LeaseOver),
        ("peer lost", False, PeerLost),
        # It has lost this rank, not this rank it.
        ("peer lost", True, TransferError),
        ("another", True, TransferError),
        (None, False, TransferError),
    ]
    for reason, by_peer, kind in kinds:
        parcel = one.parcel()
        report(parcel, "failed", reason=reason, by_peer=by_peer)
        assert (type(parcel.error), parcel.held) == (kind, False)
        who = "peer there" if by_peer else "this side"
        assert told(parcel.error) == (f"request r: {who} gave it up: {reason}", {"peer": "there", "request": "r"})
        assert one.left == []
    # Why it fails may be known better before.
    parcel = one.parcel(error=TransferError("out of kernels"))
    report(parcel, "failed", reason="kernel failed")
    assert str(parcel.error) == "out of kernels"


# Peers


def test_a_peer_that_joins_is_heard_and_known() -> None:
    one = One()
    join = Join((1, 2), (0, 0), "push", False, 0)
    one.packing.join(one.peer, join)
    assert one.sessions.asked == [("hear", one.peer, join)]
    assert one.carrier.done == ["run"]
    one.sessions.of("there")
    assert one.packing.peer(5) is one.peer
    one.packing._areas = {}
    one.packing.join(one.other, join)
    assert (len(one.sessions.asked), one.carrier.done) == (1, ["run"])


def test_numbers_are_of_peers_that_are_connected_and_parcels() -> None:
    one = One()
    parcel = one.parcel("sender")
    one.sessions.of("there")
    assert one.packing.peer(5) is one.peer
    assert one.packing.parcel(5, "p1", "sender") is parcel
    assert one.packing.parcel(5, "p1", "receiver") is None
    assert one.packing.parcel(5, "p2", "sender") is None
    cast(Any, one.peer).connected = False
    assert one.packing.peer(5) is None


def test_a_lost_peer_fails_what_is_open_with_it() -> None:
    one = One()
    parcel, other = one.parcel(), one.parcel(peer=one.other)
    over = one.parcel(state="done")
    one.packing.lose(one.peer)
    assert one.sessions.asked == [("end", "there")]
    assert one.carrier.done == ["run"]
    assert (parcel.state, other.state, over.state, over.error) == ("failed", "open", "done", None)
    assert (type(parcel.error), told(parcel.error)) == (
        PeerLost,
        ("request r: peer there was lost", {"peer": "there"}),
    )
    # Its frames mean nothing any more; those of one that has come in its place do.
    one.packing.frame("there", b"frame")
    assert one.carrier.done == ["run"]
    another = one.rank("there")
    one.packing.open(one.parcel(peer=another))
    one.packing.lose(one.peer)
    one.packing.frame("there", b"frame")
    assert one.carrier.done == ["run", "run", "message", "message", "run"]


def test_a_peer_that_is_gone_is_gone_for_the_sessions() -> None:
    one = One()
    one.packing.gone("there")
    assert one.sessions.asked == [("gone", "there")]
    assert one.carrier.done == ["run"]


def test_a_connection_that_ends_is_why_what_is_open_fails() -> None:
    one = One()
    parcel, other, over = one.parcel(), one.parcel(peer=one.other), one.parcel(state="done")
    known = one.parcel(error=Cancelled("before"))
    error = PeerLost("NIXL says so", code="NIXL_ERR")
    one.packing._cut_off(one.peer, error)
    assert one.lost == [("there", error)]
    facts = {"peer": "there", "request": "r", "code": "NIXL_ERR"}
    assert (type(parcel.error), told(parcel.error)) == (PeerLost, ("request r: peer there was lost", facts))
    assert (other.error, over.error, str(known.error)) == (None, None, "before")


# Progress


@pytest.mark.parametrize("busy", [False, True])
def test_a_frame_goes_to_both_machines_behind_what_has_ended(busy: bool, caplog: pytest.LogCaptureFixture) -> None:
    one = One()
    one.parcel()
    one.carrier.busy = busy
    one.packing.frame("there", b"frame")
    looked = [("look", False), "run"] if busy else []
    assert one.carrier.done == [*looked, "message", "message", "run"]
    assert one.carrier.receiver.asked == one.carrier.sender.asked == [("message", 5, b"frame")]
    one.packing.frame("stranger", b"frame")
    assert len(one.carrier.receiver.asked) == 1
    one.carrier.receiver.refuse["message"] = kvr.Error("damaged")
    one.carrier.done.clear()
    one.packing.frame("there", b"\0")
    assert one.carrier.done == [*looked, "run"]
    assert [record.getMessage() for record in caplog.records] == ["dropped a frame from 'there': damaged"]


def test_machines_are_told_the_time_in_ticks() -> None:
    one = One()
    looks = [("look", True), "tick", "tick", "run"]
    for now, done in (
        (TICK / 2, [("look", False), "run"]),
        (TICK, looks),
        (1.5 * TICK, [("look", False), "run"]),
        (2 * TICK, looks),
        (9 * TICK, looks),
        (9.5 * TICK, [("look", False), "run"]),
    ):
        one.carrier.done.clear()
        one.packing.progress(now)
        assert one.carrier.done == done, now
    # Where there never was a session, there is nobody to be patient with.
    one.sessions.any = False
    one.carrier.done.clear()
    one.packing.progress(20 * TICK)
    assert one.carrier.done == [("look", True), "run"]


def test_all_is_given_up_at_the_end() -> None:
    one = One()
    assert (one.packing.busy_with(None), one.packing.busy_with(one.peer)) == (True, True)
    assert not one.packing.busy_with(one.other)
    assert cast(list[Any], one.packing.abandon()) == ["left"]
    assert one.carrier.done == ["keep", "abandon"]
    one.packing._areas = {}
    assert one.packing.abandon() == []


def test_without_rings_nothing_is_done() -> None:
    one = One()
    one.packing._running = None
    parcel = one.parcel(wanted=True)
    one.packing.nudge(parcel, LONG)
    one.packing.accept(one.parcel(open=False))
    one.packing.refused(one.peer, Refused("", "no room"))
    one.packing.join(one.peer, Join((1, 2), (0, 0), "push", False, 0))
    one.packing.gone("there")
    one.packing.frame("there", b"frame")
    one.packing.progress(LONG)
    assert (one.packing.welcome(one.peer), one.packing.busy_with(None), one.packing.abandon()) == (True, False, [])
    assert (one.packing.peer(5), one.packing.parcel(5, "p1", "receiver")) == (None, None)
    assert (parcel.state, parcel.error, one.left, one.said) == ("open", None, ["p1"], [])
    assert (one.carrier.done, one.sessions.asked) == ([], [])
    one.packing.drop(parcel)
    assert (parcel.state, one.left) == ("failed", [])
    parcel = one.parcel()
    one.packing.lose(one.peer)
    assert (parcel.state, one.left) == ("failed", [])


# Rings


def test_other_rings_are_other_memory_for_the_same_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a peer may still touch of the old ones is kept first, and every session is over."""
    made: list[Any] = []

    class Made(Carrier):
        def __init__(self, agent: Any, areas: Any, desk: Any, lost: Any) -> None:
            super().__init__()
            self.areas = areas
            made.append((agent, desk, lost))

        def keep(self) -> None:
            self.done.append(("keep", self.areas))

    sessions = Sessions()

    def begun(carrier: Any, flow: str, say: Any) -> Sessions:
        made.append((flow, say))
        return sessions

    monkeypatch.setattr(packing, "Carrier", Made)
    monkeypatch.setattr(packing, "Sessions", begun)
    cleared: list[None] = []
    agent, say = cast(Any, "agent"), cast(Any, "say")
    one = Packing(agent, cast(Any, None), "pull", say, cast(Any, None))
    monkeypatch.setattr(one.workshop, "clear", lambda: cleared.append(None))
    one.open_rings({})
    assert (one._running, one.rings, made) == (None, None, [])
    first, second = cast(Any, {"receiver": 1, "sender": 2}), cast(Any, {"receiver": 3, "sender": 4})
    one.open_rings(first)
    assert made == [("agent", one, one._cut_off), ("pull", "say")]
    carrier = cast(Any, one)._running[0]
    # The same again change nothing.
    one.open_rings(dict(first))
    assert (carrier.done, sessions.asked, carrier.areas) == ([], [], first)
    one.open_rings(second)
    assert (carrier.done, sessions.asked, carrier.areas) == ([("keep", first), "run"], [("registered",)], second)
    one.open_rings({})
    assert (carrier.done[2:], sessions.asked[1:]) == ([("keep", second), "run"], [("registered",)])
    assert one.rings is None
    one.open_rings(first)
    assert (len(carrier.done), len(sessions.asked), carrier.areas, len(made)) == (4, 2, first, 2)
    # Kernels of plans are of the memory that was.
    assert len(cleared) == 6
