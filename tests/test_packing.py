"""When a parcel is given to its machine and told to its peer, and how it is given up."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

pytest.importorskip("msgspec")

import kvreshard as kvr
from kvreshard.nixl import Cancelled, LeaseOver, TransferError, Unsupported
from kvreshard.nixl.control import Refused
from kvreshard.nixl.parcels import Role
from kvreshard.nixl.peer import Peer
from tests.noting import One
from tests.told import told

LONG = 77.0
"""When parcels of these tests are told; any time is late enough."""


ROLES = pytest.mark.parametrize(
    ("role", "start", "stop"), [("receiver", "want", "cancel"), ("sender", "offer", "withdraw")]
)


@ROLES
def test_a_parcel_is_given_to_its_machine_once_and_told_behind_it(role: Role, start: str, stop: str) -> None:
    one = One()
    parcel = one.parcel(role)
    one.packing.nudge(parcel, LONG)
    machine = getattr(one.carrier, role)
    assert machine.asked == [(start, 5, "p1", 14, 10)]
    assert one.carrier.done == [start, "run"]
    assert one.said == [("there", "the message", False)]
    assert one.sessions.asked == [("begin", "there", LONG)]
    one.packing.nudge(parcel, LONG)
    assert (len(machine.asked), len(one.said)) == (1, 1)
    # Whatever the machine has to say since goes out all the same.
    assert one.carrier.done == [start, "run", "run"]


def test_parcels_are_told_again_later_and_later() -> None:
    one = One()
    parcel, waits, now = one.parcel(), list[float](), 1.0
    for count in range(1, 12):
        one.packing.nudge(parcel, now)
        one.packing.nudge(parcel, math.nextafter(parcel.next, 0))
        assert len(one.said) == count
        waits.append(round(parcel.next - now, 9))
        now = parcel.next
    assert waits == [0.2, 0.4, 0.8, 1.6] + [2.0] * 7
    # Who this rank is may have been forgotten there.
    assert [again for _, _, again in one.said] == [False] + [True] * 10


@pytest.mark.parametrize("how", [{"began": True}, {"state": "done"}, {"state": "failed"}])
def test_what_has_begun_or_is_over_needs_no_nudge(how: dict[str, Any]) -> None:
    one = One()
    one.packing.nudge(one.parcel(**how), LONG)
    assert (one.said, one.sessions.asked, one.carrier.done) == ([], [], [])


def test_nothing_is_told_before_the_session_has_begun_or_while_too_many_are_open() -> None:
    one = One()
    parcel = one.parcel()
    one.sessions.up = False
    one.packing.nudge(parcel, LONG)
    assert (one.said, one.carrier.done, parcel.state, parcel.wanted) == ([], [], "open", False)
    one.sessions.up = True
    one.carrier.receiver.refuse["want"] = kvr.LimitExceeded("requests: 1 too many")
    one.packing.nudge(parcel, LONG)
    assert (one.said, one.carrier.done, parcel.state, parcel.wanted) == ([], [], "open", False)
    one.carrier.receiver.refuse.clear()
    one.packing.nudge(parcel, LONG)
    assert (len(one.said), parcel.wanted) == (1, True)


@pytest.mark.parametrize("kept", [(0, 0), (2, 0), (0, 3), (2, 3)])
def test_a_session_that_is_refused_fails_the_parcel_and_may_be_tried_again(kept: tuple[int, int]) -> None:
    one = One()
    parcel = one.parcel()
    one.sessions.up = False
    one.sessions.of("there").refused = "no room"
    one.carrier.receiver.quarantined, one.carrier.sender.quarantined = kept
    one.packing.nudge(parcel, LONG)
    assert (parcel.state, type(parcel.error), parcel.held, one.left) == ("failed", TransferError, False, [])
    remedy = f"slots that are kept from lost peers: {sum(kept)}; call gone(name) once their processes have ended"
    facts: dict[str, object] = {"peer": "there", "request": "r", **({"remedy": remedy} if sum(kept) else {})}
    assert told(parcel.error) == ("request r: no packed transfers with peer there: no room", facts)
    assert one.sessions.asked[1:] == [("forgive", "there")]


@ROLES
def test_a_peers_parcel_is_taken_once_the_session_has_begun(role: Role, start: str, stop: str) -> None:
    one = One()
    parcel = one.parcel(role, open=False, ours=False)
    one.sessions.up = False
    one.packing.accept(parcel)
    assert not one.packing.known(one.peer, "p1", role)
    one.sessions.up = True
    getattr(one.carrier, role).refuse[start] = kvr.LimitExceeded("requests: 1 too many")
    one.packing.accept(parcel)
    assert (one.packing.known(one.peer, "p1", role), one.carrier.done) == (False, [])
    getattr(one.carrier, role).refuse.clear()
    begun = time.monotonic()
    one.packing.accept(parcel)
    assert one.packing.known(one.peer, "p1", role)
    assert one.carrier.done == [start, "run"]
    assert begun <= one.sessions.asked[-1][2] <= time.monotonic()
    # It is not told: the peer knows.
    assert one.said == []
    others: list[tuple[Peer, str, Role]] = [
        (one.other, "p1", role),
        (one.peer, "p2", role),
        (one.peer, "p1", "sender" if role == "receiver" else "receiver"),
    ]
    assert not any(one.packing.known(*other) for other in others)


# Giving up


@ROLES
def test_what_a_machine_has_is_given_up_there(role: Role, start: str, stop: str) -> None:
    one = One()
    parcel = one.parcel(role, wanted=True)
    one.packing.drop(parcel)
    # It says how that ends.
    assert (parcel.state, parcel.error, one.left) == ("open", None, ["p1"])
    assert getattr(one.carrier, role).asked == [(stop, 5, "p1")]
    assert one.carrier.done == [stop, "run"]


@ROLES
def test_what_no_machine_has_is_over_at_once(
    role: Role, start: str, stop: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = One()
    text = ("request r was given up", {"request": "r"})
    parcel = one.parcel(role)
    one.packing.drop(parcel)
    assert (parcel.state, type(parcel.error), told(parcel.error)) == ("failed", Cancelled, text)
    assert (one.left, one.carrier.done, parcel.held) == ([], [], False)
    # Nor one that does not know it.
    parcel = one.parcel(role, wanted=True)
    getattr(one.carrier, role).refuse[stop] = kvr.Error("unknown")
    one.packing.drop(parcel)
    assert (parcel.state, type(parcel.error), told(parcel.error)) == ("failed", Cancelled, text)
    assert (one.left, one.carrier.done) == ([], ["run"])
    assert [record.getMessage() for record in caplog.records] == ["parcel p2 of request r: unknown"]
    # The first end stays.
    parcel.state = "done"
    one.packing.drop(parcel)
    assert parcel.state == "done"


def test_the_pages_of_a_request_are_withdrawn_from_peers_and_not_from_this_side() -> None:
    one = One()
    mine = one.parcel()
    first, second = one.parcel("sender", ours=False), one.parcel("receiver", ours=False)
    other = one.parcel("sender", ours=False, id="s")
    one.packing.withdraw("r")
    assert [parcel.state for parcel in (mine, first, second, other)] == ["open", "failed", "failed", "open"]


def test_a_peer_that_refuses_all_fails_what_has_not_begun() -> None:
    one = One()
    waiting, begun, theirs = one.parcel(), one.parcel(began=True), one.parcel(ours=False)
    other, told_before = one.parcel(peer=one.other), one.parcel(error=Cancelled("before"))
    one.packing.refused(one.peer, Refused("", "no room"))
    text = "request r: no packed transfers with peer there: no room"
    assert told(waiting.error) == (text, {"peer": "there", "request": "r"})
    assert [parcel.error for parcel in (begun, theirs, other)] == [None] * 3
    assert str(told_before.error) == "before"
    assert one.sessions.asked == [("refuse", "there", "no room")]
    assert one.carrier.done == ["run"]
    # By then it is open: who looks at the session next says that it is over.
    assert waiting.state == "open"


@pytest.mark.parametrize(("gone", "kind"), [(False, Unsupported), (True, LeaseOver)])
def test_a_peer_that_refuses_a_parcel_fails_that(gone: bool, kind: type) -> None:
    one = One()
    parcel, other = one.parcel(), one.parcel()
    one.packing.refused(one.peer, Refused("p1", "why", gone))
    assert (type(parcel.error), parcel.state, other.state) == (kind, "failed", "open")
    assert told(parcel.error) == ("peer there refused request r: why", {"peer": "there", "request": "r"})
    assert one.sessions.asked == []
