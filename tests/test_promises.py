"""What the ledger answers to readers that ask for pages to be held, and that are done with them; without NIXL."""

from __future__ import annotations

import pytest

pytest.importorskip("nixl")

from kvreshard.nixl import LeaseEnded, Released, TransferError
from kvreshard.nixl.control import MAX_ID, Ask, Confirmed, Done, Gone, Held
from kvreshard.nixl.notices import Kind, Ledger, Notice, check_id, encode
from tests.told import told


def held(ledger: Ledger, id: str, milliseconds: int = 1000, now: float = 0.0) -> Held:
    """The answer to a reader whose pages are held."""
    answer = ledger.renew(Ask(id, milliseconds, 0), now)
    assert isinstance(answer, Held)
    return answer


def done(id: str, hold: int, *, token: int = 5, senders: int = 1) -> Done:
    return Done(id, hold, token, senders, 0)


def test_a_promise_has_a_number_that_no_other_has() -> None:
    ledger = Ledger()
    for id in ("a", "b"):
        ledger.expect(Kind.READ, id, 1, 2.0)
    first, second = held(ledger, "a"), held(ledger, "b")
    assert (first.id, second.id) == ("a", "b")
    assert first.hold != second.hold
    assert min(first.hold, second.hold) > 0
    assert held(ledger, "a") == first
    # Expected once more, the id is another promise.
    ledger.forget("a")
    ledger.expect(Kind.READ, "a", 1, 2.0)
    assert held(ledger, "a").hold not in (first.hold, second.hold)


def test_a_lease_is_prolonged_by_what_is_asked_for() -> None:
    ledger = Ledger()
    ledger.expect(Kind.READ, "r", 1, 2.0)
    assert held(ledger, "r", 1_000_000, now=1.0).milliseconds == 1_000_000
    ledger.expire(1000.9)
    assert ledger.events == []
    ledger.expire(1001.0)
    assert ledger.events == [LeaseEnded("r", (), 1)]
    assert ledger.renew(Ask("r", 1000, 0), 1001.0) == Gone("r")


def test_what_is_not_expected_yet_is_not_answered() -> None:
    ledger = Ledger()
    assert ledger.renew(Ask("r", 1000, 0), 0.0) is None
    assert ledger.done("p", done("r", 0)) is None


def test_a_reader_is_counted_and_confirmed_as_often_as_it_asks() -> None:
    ledger = Ledger()
    ledger.expect(Kind.READ, "r", 2, None)
    hold = held(ledger, "r").hold
    for _ in range(2):
        assert ledger.done("p", done("r", hold)) == Confirmed("r")
        assert ledger.events == []
    # It was never told of the promise.
    assert ledger.done("q", done("r", 0, token=6)) == Confirmed("r")
    assert ledger.events == [Released("r", ("p", "q"))]
    # Over, and still the same for those that were counted, and for no other read of theirs or of others.
    assert ledger.done("p", done("r", hold)) == Confirmed("r")
    assert ledger.done("q", done("r", 0, token=6)) == Confirmed("r")
    assert ledger.done("p", done("r", hold, token=6)) == Gone("r")
    assert ledger.done("o", done("r", hold)) == Gone("r")
    assert len(ledger.events) == 1


def test_a_reader_of_another_promise_is_not_counted() -> None:
    ledger = Ledger()
    ledger.expect(Kind.READ, "r", 1, None)
    hold = held(ledger, "r").hold
    assert ledger.done("p", done("r", hold + 1)) == Gone("r")
    assert (ledger.events, ledger.awaited) == ([], ("r",))
    assert ledger.done("p", done("r", hold)) == Confirmed("r")
    assert ledger.events == [Released("r", ("p",))]


def test_a_request_that_is_expected_again_is_not_over() -> None:
    ledger = Ledger()
    ledger.expect(Kind.READ, "r", 1, None)
    ledger.done("p", done("r", 0))
    assert ledger.is_over(Kind.READ, "r")
    ledger.expect(Kind.READ, "r", 1, None)
    assert not ledger.is_over(Kind.READ, "r")
    assert ledger.done("p", done("r", 0)) == Confirmed("r")
    assert ledger.events == [Released("r", ("p",))] * 2


def test_a_registration_that_ends_ends_all_promises_and_what_was_heard_early() -> None:
    ledger = Ledger()
    ledger.expect(Kind.READ, "r", 2, None)
    ledger.expect(Kind.WRITTEN, "w", 1, 5.0)
    ledger.hear("p", encode(Notice(Kind.READ, "r", 2)))
    ledger.hear("p", encode(Notice(Kind.READ, "early", 1)))
    ledger.void()
    assert ledger.events == [LeaseEnded("r", ("p",), 2), LeaseEnded("w", (), 1)]
    assert list(ledger.awaited) == []
    assert (ledger.is_over(Kind.READ, "r"), ledger.is_over(Kind.WRITTEN, "w")) == (True, True)
    ledger.expect(Kind.READ, "early", 1, None)
    assert ledger.awaited == ("early",)


@pytest.mark.parametrize("id", ["", "x" * (MAX_ID + 1), "é" * (MAX_ID // 2 + 1), 7])
def test_ids_that_no_notice_can_carry_are_refused(id: object) -> None:
    with pytest.raises(TransferError) as caught:
        check_id(id)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    text = f"a request id is a text of 1 to {MAX_ID} bytes, not {id!r:.80}"
    assert told(caught.value) == (text, {"request": str(id)[:80]})


def test_the_longest_id_is_one() -> None:
    check_id("x" * MAX_ID)
