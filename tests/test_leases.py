"""Leases and the fence: a read counts only if the producer held the pages until the last byte had arrived."""

from __future__ import annotations

import signal
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from tests.connector_rank import Spec, await_events, publish, request, running, wait

pytest.importorskip("nixl")

from kvreshard.nixl import (
    Connector,
    DeadlinePassed,
    Failed,
    LeaseEnded,
    LeaseOver,
    PeerLost,
    Unsupported,
    notices,
    wire,
)
from kvreshard.nixl.control import (
    Ask,
    Confirmed,
    Done,
    Gone,
    Held,
    Join,
    Message,
    Parcel,
    Refused,
    Void,
    decode,
    encode,
)
from kvreshard.nixl.leases import LEASE, Lease
from kvreshard.nixl.notices import Kind, Ledger
from kvreshard.nixl.peer import Peer

SPEC = Spec("here", engine="decode")
PAGE = request((0, 16), [1], [2])


def test_a_fenced_read_is_finished_when_the_producer_has_confirmed() -> None:
    mine = SPEC.arrays(1)
    with Connector("here", fence=True) as here, running(Spec("there")) as (there,):
        publish(here, SPEC, mine)
        peer = here.connect(there.call("metadata"))
        here.read(peer, PAGE, id="r")
        ends = time.monotonic() + 0.5
        while time.monotonic() < ends:
            assert here.poll(timeout=0.01) == [], "finished before the producer has promised anything"
        there.call("expect", "r", {"readers": 1, "lease": 5.0}, during=here)
        wait(here, "Finished")
        await_events(there, here, ("Released", "r"))
        assert here.in_flight == ()
        # The pages may be another's by now, also for whoever has read them before.
        here.read(peer, PAGE, id="r")
        assert [type(event).__name__ for event in wait(here, "Failed")] == ["Failed"]


def test_a_read_of_pages_that_are_not_held_any_more_has_failed() -> None:
    with Connector("here") as here, running(Spec("there")) as (there,):
        publish(here, SPEC, SPEC.arrays(1))
        peer = here.connect(there.call("metadata"))
        there.call("expect", "r", {"readers": 1, "lease": 0.05})
        await_events(there, here, ("LeaseEnded", "r"))
        here.read(peer, PAGE, id="r", fence=True)
        failed = next(event for event in wait(here, "Failed") if isinstance(event, Failed))
        assert isinstance(failed.reason, LeaseOver)
        assert (failed.reason.peer, failed.pages, failed.peers) == ("there", "free", ())
        # Without a fence nobody asks.
        here.read(peer, PAGE, id="r")
        wait(here, "Finished")


def test_a_producer_that_promises_nothing_or_dies_fails_the_read() -> None:
    with Connector("here") as here, running(Spec("there")) as (there,):
        publish(here, SPEC, SPEC.arrays(1))
        peer = here.connect(there.call("metadata"))
        here.read(peer, PAGE, id="r", fence=True, deadline=0.5)
        failed = next(event for event in wait(here, "Failed") if isinstance(event, Failed))
        assert isinstance(failed.reason, DeadlinePassed)
        assert "expect" in str(failed.reason)
        here.read(peer, PAGE, id="again", fence=True)
        there.kill()
        events = wait(here, "Failed", "PeerDown")
        failed = next(event for event in events if isinstance(event, Failed))
        assert isinstance(failed.reason, PeerLost)


def test_a_reader_that_lives_keeps_the_pages_and_one_that_dies_does_not_pin_them() -> None:
    """The producer is this process. Its reader's second source hangs, so that the reader goes on asking."""
    with Connector("there") as there, running(SPEC, Spec("slow")) as (reader, slow):
        publish(there, Spec("there", heads=8), Spec("there").arrays(2))
        reader.call("lease", 1.0)
        name = reader.call("connect", there.metadata(), {}, during=there)
        other = reader.call("connect", slow.call("metadata"), {}, during=there)
        slow.signal(signal.SIGSTOP)
        there.expect("r", readers=1, lease=2.0)
        reader.call("read_all", [(name, PAGE_PLAIN), (other, PAGE_PLAIN)], "r", {"fence": True}, during=there)
        ends = time.monotonic() + 3.0
        while time.monotonic() < ends:
            assert there.poll(timeout=0.05) == [], "the lease ended under a reader that lives"
        reader.kill()
        (ended,) = [event for event in wait(there, "LeaseEnded") if isinstance(event, LeaseEnded)]
        assert (ended.id, ended.heard) == ("r", ())


PAGE_PLAIN = ((0, 16), [1], [2], 0, 0)


def test_what_cannot_be_fenced_is_said() -> None:
    with Connector("here") as here, running(Spec("there")) as (there,):
        publish(here, SPEC, SPEC.arrays(1))
        told = wire.decode(there.call("metadata"))
        old = here.connect(wire.encode(wire.Metadata(told.name, told.nixl, told.layout, told.generation, notices=1)))
        with pytest.raises(Unsupported, match="did not announce"):
            here.read(old, PAGE, id="r", fence=True)
        with pytest.raises(Unsupported, match="write"):
            here.write(old, PAGE, id="r", fence=True)
        with pytest.raises(Unsupported, match="notice"):
            here.read(old, PAGE, id="r", fence=True, notify=False)
        assert here.in_flight == ()


# The producer's ledger


def test_a_lease_is_prolonged_up_to_its_longest() -> None:
    ledger = Ledger()
    ledger.expect(Kind.READ, "r", 2, lease_ends=1.0, last=3.0)
    first = ledger.renew(Ask("r", 1500), now=0.5)
    assert isinstance(first, Held)
    assert first.milliseconds == 1500
    ledger.expire(1.9)
    second = ledger.renew(Ask("r", 10_000), now=1.9)
    assert isinstance(second, Held)
    assert (second.hold, second.milliseconds) == (first.hold, 1100)
    assert ledger.done("a", Done("r", first.hold, 5, 2)) == Confirmed("r")
    ledger.expire(3.0)
    assert ledger.events == [LeaseEnded("r", ("a",), 2)]
    assert ledger.renew(Ask("r", 1), now=3.0) == Gone("r")
    # The one that was done in time is told so as often as it asks.
    assert ledger.done("a", Done("r", first.hold, 5, 2)) == Confirmed("r")
    assert ledger.done("a", Done("r", 0, 6, 2)) == Gone("r"), "another read of the same peer"
    assert ledger.done("b", Done("r", first.hold, 5, 2)) == Gone("r")


def test_pages_promised_anew_are_not_those_that_were_promised() -> None:
    ledger = Ledger()
    ledger.expect(Kind.READ, "r", 1, lease_ends=None)
    first = ledger.renew(Ask("r", 1000), now=0.0)
    assert isinstance(first, Held)
    assert ledger.forget("r")
    ledger.expect(Kind.READ, "r", 1, lease_ends=None)
    assert ledger.done("a", Done("r", first.hold, 5, 1)) == Gone("r")
    assert ledger.events == []
    assert ledger.done("a", Done("r", 0, 5, 1)) == Confirmed("r")
    assert [type(event).__name__ for event in ledger.events] == ["Released"]


def test_all_promises_end_with_the_registration() -> None:
    ledger = Ledger()
    ledger.expect(Kind.READ, "r", 2, lease_ends=None)
    ledger.expect(Kind.WRITTEN, "w", 1, lease_ends=9.0)
    assert ledger.done("a", Done("r", 0, 5, 2)) == Confirmed("r")
    assert ledger.hear("b", notices.encode(notices.Notice(Kind.READ, "early", 1)))
    ledger.void()
    assert ledger.events == [LeaseEnded("r", ("a",), 2), LeaseEnded("w", (), 1)]
    assert ledger.done("b", Done("r", 0, 6, 2)) == Gone("r")
    ledger.events.clear()
    ledger.expect(Kind.READ, "early", 1, lease_ends=None)
    assert ledger.events == [], "what was read before is not what is promised now"


def test_nothing_is_said_of_what_is_not_expected_yet() -> None:
    ledger = Ledger()
    assert ledger.renew(Ask("r", 1000), now=0.0) is None
    assert ledger.done("a", Done("r", 0, 5, 1)) is None


# The reader's lease


class Heard:
    """What a lease says."""

    def __init__(self) -> None:
        self.said: list[tuple[Message, bool]] = []

    def say(self, peer: Peer, message: Message, *, again: bool = False) -> None:
        self.said.append((message, again))


def test_a_reader_asks_again_and_renews_in_time() -> None:
    heard = Heard()
    lease = Lease(cast(Peer, SimpleNamespace(name="a", senders=3, generation=4)), "r", heard)
    for now in (0.0, 0.1, 0.3, 0.9):
        lease.keep(now)
    ask = Ask("r", int(LEASE * 1000), 4)
    assert heard.said == [(ask, False), (ask, True), (ask, True)]
    lease.hear(Held("r", 7, 10_000), 1.0)
    lease.keep(4.9)
    assert len(heard.said) == 3
    lease.keep(5.1)
    assert heard.said[3:] == [(ask, False)]
    lease.end(6.0)
    lease.end(6.1)
    lease.end(6.3)
    assert heard.said[4:] == [(Done("r", 7, lease.token, 3, 4), False), (Done("r", 7, lease.token, 3, 4), True)]
    lease.hear(Confirmed("r"), 6.4)
    lease.hear(Gone("r"), 6.5)
    assert lease.verdict == "confirmed"


def test_a_promise_made_anew_in_between_is_no_promise() -> None:
    lease = Lease(cast(Peer, SimpleNamespace(name="a", senders=1, generation=4)), "r", Heard())
    lease.keep(0.0)
    verdicts: list[str] = []
    for answer in (Confirmed("r"), Held("r", 7, 1000), Held("r", 8, 1000), Held("r", 8, 1000)):
        lease.hear(answer, 0.1)
        verdicts.append(lease.verdict)
    assert verdicts == ["asking", "held", "gone", "gone"], "nothing was done when it was confirmed"


PARCEL = Parcel(
    name="1f",
    id="r",
    gather=True,
    zero=False,
    tokens=(0, 16),
    more=False,
    local=[(0, b"\x01\x00\x00\x00")],
    remote=[(0, b"\x02\x00\x00\x00")],
    layers=None,
    takes=[("layers.0", [("h", 0, 4)], False)],
    limit=4096,
    bytes=1024,
    chunk=1024,
    digest="ab",
)


@pytest.mark.parametrize(
    "message",
    [
        Ask("r", 5),
        Ask("r", 5, 7),
        Void(7),
        Held("r", 2, 3),
        Gone("r"),
        Done("r", 1, 3, 2),
        Confirmed("r"),
        Join((1, 2), (0, 0), "pull", True),
        Join((1, 2), (0, 0), "pull", True, 7),
        PARCEL,
        Refused("1f", "why", True),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_survive_the_wire_and_damage_does_not(message: Any) -> None:
    sent = encode(message)
    assert decode(sent) == message
    for cut in range(len(sent)):
        assert decode(sent[:cut]) is None
    for position in range(10, len(sent)):
        for bit in range(8):
            flipped = bytearray(sent)
            flipped[position] ^= 1 << bit
            decode(bytes(flipped))
    if getattr(message, "generation", 1) == 0:
        # One that names no registration is as it was before there were any to name.
        assert len(encode(replace(message, generation=1))) > len(sent)
    assert decode(encode(Done("r", 1, 3, 2)).replace(b"\x02", b"\x00")) is None, "0 senders"
