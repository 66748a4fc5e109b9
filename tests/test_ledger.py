"""What the ledger of notices and a lease keep in mind, at their bounds and in what order; without NIXL."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("nixl")

from kvreshard.nixl import LeaseEnded, Released, TransferError, control, notices
from kvreshard.nixl.control import MAX_ID, Ask, Confirmed, Done, Gone, Held, Message
from kvreshard.nixl.leases import RENEW, RESEND, RESEND_MOST, Lease
from kvreshard.nixl.notices import Kind, Ledger, Notice, encode
from kvreshard.nixl.peer import Peer
from kvreshard.nixl.wire import MAX_MESSAGE


def told(id: str, senders: int = 1, kind: Kind = Kind.READ) -> bytes:
    return encode(Notice(kind, id, senders))


def test_of_early_notices_the_oldest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "MAX_EARLY", 3)
    ledger = Ledger()
    for id in ("a", "b", "c", "a", "d"):
        # One that is heard of again is not the oldest any more.
        ledger.hear("p", told(id))
    for id in ("a", "b", "c", "d"):
        ledger.expect(Kind.READ, id, 1, None)
    assert [event.id for event in ledger.events if isinstance(event, Released)] == ["a", "c", "d"]
    assert ledger.awaited == ("b",)


def test_of_requests_that_are_over_the_oldest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "MAX_EARLY", 3)
    ledger = Ledger()
    for id in ("a", "b", "c", "d"):
        ledger.expect(Kind.READ, id, 1, None)
        ledger.hear("p", told(id))
    assert [ledger.is_over(Kind.READ, id) for id in ("a", "b", "c", "d")] == [False, True, True, True]
    assert not ledger.is_over(Kind.WRITTEN, "d")


def test_a_request_that_was_forgotten_is_over_for_its_readers() -> None:
    ledger = Ledger()
    ledger.expect(Kind.READ, "r", 2, None)
    ledger.expect(Kind.WRITTEN, "r", 1, None)
    ledger.expect(Kind.READ, "s", 1, None)
    assert ledger.forget("r")
    assert not ledger.forget("r")
    assert ledger.awaited == ("s",)
    assert ledger.is_over(Kind.READ, "r")
    assert ledger.is_over(Kind.WRITTEN, "r")
    assert ledger.renew(Ask("r", 1000, 0), 0.0) == Gone("r")
    ledger.hear("p", told("r"))
    assert ledger.events == []


def test_what_cannot_be_expected_is_refused_by_name() -> None:
    ledger = Ledger()
    ledger.expect(Kind.READ, "r", 1, None)
    for id, senders, words in (("r", 1, "request r is expected already"), ("s", -1, "request s: -1 senders")):
        with pytest.raises(TransferError, match=words) as caught:
            ledger.expect(Kind.READ, id, senders, None)
        assert caught.value.request == id
    assert ledger.awaited == ("r",)
    # None at all is over at once.
    ledger.expect(Kind.READ, "t", 0, None)
    assert ledger.events == [Released("t", ())]


def test_notices_have_bounds() -> None:
    ledger = Ledger()
    longest = "x" * MAX_ID
    assert notices.decode(told(longest)) == Notice(Kind.READ, longest, 1)
    assert notices.decode(told(longest + "x")) is None
    assert notices.decode(told("r", 0)) is None
    assert ledger.hear("p", told(longest))
    exact = told("r")
    padded = exact + b"\x00" * (notices.MAX_NOTICE + 1 - len(exact))
    assert notices.decode(padded) is None
    assert not ledger.hear("p", b"something else")


def test_a_notice_that_does_not_decode_is_dropped_with_its_length_and_sender(caplog: pytest.LogCaptureFixture) -> None:
    message = notices.PREFIX + b"\xc1\xc1"
    with caplog.at_level(logging.WARNING):
        assert Ledger().hear("peer-7", message)
    [record] = caplog.records
    assert record.getMessage() == f"dropped a notice of {len(message)} bytes from 'peer-7' that does not decode"


def test_a_lease_is_prolonged_to_its_last_moment_and_never_shortened() -> None:
    ledger = Ledger()
    ledger.expect(Kind.READ, "r", 1, 5.0, last=8.0)
    held = ledger.renew(Ask("r", 2000, 0), 1.0)
    assert isinstance(held, Held)
    assert held.milliseconds == 4000, "it had 4 seconds to go"
    held = ledger.renew(Ask("r", 60_000, 0), 4.0)
    assert isinstance(held, Held)
    assert held.milliseconds == 4000, "until its last moment"
    held = ledger.renew(Ask("r", 60_000, 0), 9.0)
    assert isinstance(held, Held)
    assert held.milliseconds == 0, "it has run out, and nobody has looked yet"
    ledger.expire(7.9)
    assert ledger.events == []
    ledger.expire(8.0)
    assert ledger.events == [LeaseEnded("r", heard=(), needed=1)]


class Said:
    """Keeps what a lease says, and whether it says it again."""

    def __init__(self) -> None:
        self.messages: list[tuple[Message, bool]] = []

    def say(self, peer: Peer, message: Message, *, again: bool = False) -> None:
        self.messages.append((message, again))

    def take(self) -> list[tuple[Message, bool]]:
        taken, self.messages = self.messages, []
        return taken


def lease() -> tuple[Lease, Said]:
    said = Said()
    peer = cast(Any, SimpleNamespace(name="p", generation=3, senders=2))
    return Lease(peer, "r", said, token=9), said


def verdict(one: Lease) -> str:
    """It changes between two looks, which a type checker would not think."""
    return one.verdict


def test_an_unanswered_question_is_asked_again_after_twice_the_time() -> None:
    one, said = lease()
    now, wait = 100.0, RESEND
    one.keep(now)
    [(first, again)] = said.take()
    assert isinstance(first, Ask)
    assert not again
    for _ in range(12):
        one.keep(now + 0.99 * wait)
        assert said.take() == []
        now += wait
        one.keep(now)
        assert [again for _, again in said.take()] == [True]
        wait = min(2 * wait, RESEND_MOST)


def test_a_lease_is_asked_for_anew_before_it_runs_out() -> None:
    one, said = lease()
    one.keep(0.0)
    said.take()
    one.hear(Held("r", 5, 10_000), 1.0)
    assert verdict(one) == "held"
    one.keep(1.0 + 0.999 * RENEW * 10)
    assert said.take() == []
    one.keep(1.0 + RENEW * 10)
    assert [again for _, again in said.take()] == [False], "another question, not the same again"


def test_a_read_that_is_done_is_confirmed_once_and_for_all() -> None:
    one, said = lease()
    one.keep(0.0)
    one.hear(Confirmed("r"), 0.0)
    assert verdict(one) == "asking", "nothing was asked to be confirmed yet"
    one.hear(Held("r", 5, 10_000), 0.0)
    said.take()
    one.end(1.0)
    assert said.take() == [(Done("r", 5, 9, 2, 3), False)]
    one.end(1.0 + RESEND)
    assert said.take() == [(Done("r", 5, 9, 2, 3), True)]
    one.keep(50.0)
    assert said.take() == [], "the pages are not needed any longer"
    one.hear(Confirmed("r"), 2.0)
    one.hear(Gone("r"), 2.0)
    assert verdict(one) == "confirmed"
    one.end(60.0)
    assert said.take() == []


def test_pages_that_are_gone_stay_gone() -> None:
    for ends in ([Gone("r")], [Held("r", 5, 1000), Held("r", 6, 1000)]):
        one, said = lease()
        one.keep(0.0)
        for message in ends:
            one.hear(message, 0.0)
        assert verdict(one) == "gone"
        said.take()
        one.hear(Held("r", 7, 1000), 0.0)
        one.hear(Confirmed("r"), 0.0)
        one.end(9.0)
        one.keep(9.0)
        assert verdict(one) == "gone"
        assert said.take() == []


def test_control_messages_have_a_bound_and_what_does_not_print_is_spelled_out() -> None:
    most = control.Hello(bytes(MAX_MESSAGE))
    assert control.decode(control.encode(most)) == most
    assert control.decode(control.encode(control.Hello(bytes(MAX_MESSAGE + 1)))) is None
    assert control.decode(control.encode(most) + bytes(MAX_ID)) is None
    text = "é b\n\u202e\x07c"
    refused = control.decode(control.encode(control.Refused("r", text)))
    assert refused == control.Refused("r", "é b\\n\\u202e\\x07c")
