"""In which order a carrier does what it is asked for, and how far it looks for what has ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nixl")

from kvreshard.nixl import PeerLost, TransferError
from kvreshard.nixl.carrier import Carrier
from tests.carriers import Fence, action, carrier, kernel


def test_messages_go_first_then_transfers_then_launches_each_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(Carrier, "_send", lambda self, action: done.append(action.frame))
    monkeypatch.setattr(Carrier, "_kernel", lambda self, role, action: done.append(f"{role} {action.kind}"))
    monkeypatch.setattr(Carrier, "_move", lambda self, role, action: done.append(f"{role} {action.kind}"))
    one = carrier()
    one.add("receiver", [action("scatter"), action("read"), action("send", "first")])
    one.add("sender", [action("gather"), action("write"), action("send", "second")])
    one.run()
    assert done == ["first", "second", "receiver read", "sender write", "receiver scatter", "sender gather"]


class Machine:
    """A sender's machine: what it asks for when a gather ends."""

    def __init__(self, **asks: list[Any]) -> None:
        self.asks = asks
        self.told: list[tuple[int, bool]] = []
        self.wrote: list[tuple[int, bool]] = []

    def gathered(self, slot: int, ok: bool) -> list[Any]:
        self.told.append((slot, ok))
        return self.asks.pop(f"slot_{slot}", [])

    def write_ended(self, slot: int, ok: bool) -> list[Any]:
        self.wrote.append((slot, ok))
        return [action("send", f"shipped {slot}")]


def test_a_gather_that_ends_while_others_are_launched_is_written_before_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    one = carrier(sender=Machine(slot_0=[action("write", slot=0)]))

    def launch(self: Any, role: str, action: Any) -> None:
        done.append(f"gather {action.slot}")
        # The first is over when the second has been launched.
        self._kernels.append(kernel("sender", action.slot, over=False))
        self._kernels[0].fence.over = len(self._kernels) > 1

    monkeypatch.setattr(Carrier, "_kernel", launch)
    monkeypatch.setattr(Carrier, "_move", lambda self, role, action: done.append(f"write {action.slot}"))
    one.add("sender", [action("gather", slot=slot) for slot in range(3)])
    one.run()
    assert done == ["gather 0", "gather 1", "write 0", "gather 2"]


class Calls:
    """NIXL's part: counts handles."""

    def __init__(self) -> None:
        self.made: list[tuple[str, list[int], list[int]]] = []
        self.posted: list[int] = []
        self.released: list[int] = []

    def make_exact(self, operation: str, peer: str, local: Any, remote: Any, notice: bytes) -> int:
        self.made.append((f"{operation} {peer}", local[0].tolist()[0], remote[0].tolist()[0]))
        return len(self.made) - 1

    def post(self, handle: int, peer: str) -> bool:
        self.posted.append(handle)
        return True

    def release(self, handle: int) -> None:
        self.released.append(handle)


def gathering(calls: Calls, asks: list[Any], peer: Any = None, *, slots: int = 4, ring: bool = True) -> tuple[Any, Any]:
    """A carrier with a chunk of 700 bytes for the peer's slot 3, its gather launched and not over, and that fence."""
    receive = SimpleNamespace(slots=slots, address=1 << 20, slot_bytes=1000, device=1, memory="VRAM")
    there = SimpleNamespace(name="there", rings=SimpleNamespace(receive=receive) if ring else None)
    parcel = SimpleNamespace(chunks=[SimpleNamespace(bytes=700)], mover=None, after=None, peer=there, began=False)
    fence = Fence(False)
    begun = iter([fence, Fence(False)])
    region = SimpleNamespace(memory="VRAM", device=0)
    area = SimpleNamespace(region=region, slot=lambda slot: (5000 + slot, None), move=lambda *_, **__: next(begun))
    desk = SimpleNamespace(
        parcel=lambda *_: parcel,
        peer=lambda number: there if peer is None else peer,
        report=lambda *_: None,
    )
    one = carrier(_agent=calls, sender=Machine(slot_2=asks), areas={"sender": area}, _desk=desk)
    one.add("sender", [action("gather", slot=2, sequence=0, remote_slot=3, peer=7, request="r")])
    one.run()
    return one, fence


def ended(one: Any, fence: Fence) -> None:
    """The gather is over."""
    fence.over = True
    one.look(every=True)
    one.run()


WRITE: dict[str, Any] = {"slot": 2, "remote_slot": 3, "peer": 7, "bytes": 1000}


def test_a_write_is_made_while_its_chunk_is_gathered_and_only_posted_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Carrier, "_send", lambda self, action: None)
    calls = Calls()
    one, fence = gathering(calls, [action("write", **WRITE)])
    made = [("WRITE there", [5002, 700, 0], [(1 << 20) + 3000, 700, 1])]
    assert (calls.made, calls.posted) == (made, [])
    assert one.busy_with(None)
    ended(one, fence)
    assert (calls.made, calls.posted, calls.released) == (made, [0], [0])
    assert not one.busy_with(None)


@pytest.mark.parametrize(
    ("kind", "slot", "posted"), [(None, None, []), ("gather", 2, []), ("write", 1, [1]), ("failed", None, [])]
)
def test_a_write_that_was_made_for_a_chunk_given_up_is_released(
    kind: str | None, slot: int | None, posted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else is asked for then: another chunk for that slot, a write of another slot."""
    monkeypatch.setattr(Carrier, "_send", lambda self, action: None)
    calls = Calls()
    other: dict[str, Any] = {"sequence": 0, "remote_slot": 3, "peer": 7, "bytes": 1000, "request": "r"}
    one, fence = gathering(calls, [] if kind is None else [action(kind, slot=slot, **other)])
    one._loaded[1] = 5
    ended(one, fence)
    assert (calls.posted, calls.released) == (posted, [0, *posted])
    assert one.busy_with(None) is (kind == "gather")


def test_a_write_that_was_made_to_a_peer_that_is_another_now_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Carrier, "_send", lambda self, action: None)
    calls = Calls()
    ring = SimpleNamespace(slots=4, address=1 << 30, slot_bytes=1000, device=1, memory="VRAM")
    anew = SimpleNamespace(name="there", rings=SimpleNamespace(receive=ring))
    one, fence = gathering(calls, [action("write", **WRITE)], anew)
    ended(one, fence)
    assert [theirs[0] for _, _, theirs in calls.made] == [(1 << 20) + 3000, (1 << 30) + 3000]
    assert (calls.posted, calls.released) == ([1], [0, 1])


def test_given_up_carriers_release_what_they_had_made() -> None:
    calls = Calls()
    one, _ = gathering(calls, [])
    one._kernels = []
    assert one.abandon() == []
    assert calls.released == [0]


def flight(handle: int, name: str = "there", role: str = "sender") -> Any:
    """A transfer of the slot of that number."""
    stage = SimpleNamespace(handle=handle)
    return SimpleNamespace(role=role, slot=handle, peer=SimpleNamespace(name=name), stage=stage)


@pytest.mark.parametrize(("every", "seen"), [(True, [1, 2, 3, 4]), (False, [1, 2, 4])])
def test_a_short_look_ends_at_the_first_transfer_with_a_peer_that_has_not(
    every: bool, seen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    arrived: list[int] = []

    def done(handle: int, peer: str) -> bool:
        asked.append(handle)
        return handle != 2

    monkeypatch.setattr(Carrier, "_arrived", lambda self, flight, ok: arrived.append(flight.stage.handle))
    flights = [flight(1, "a"), flight(2, "a"), flight(3, "a"), flight(4, "b")]
    one = carrier(_flights=flights, _agent=SimpleNamespace(done=done))
    one.look(every=every)
    assert asked == seen
    assert arrived == [handle for handle in seen if handle != 2]
    assert [left.stage.handle for left in one._flights] == [number for number in (1, 2, 3, 4) if number not in arrived]


def test_kernels_of_a_role_end_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[tuple[str, int]] = []
    monkeypatch.setattr(Carrier, "_kernel_ended", lambda self, role, slot, ok: ended.append((role, slot)))
    kernels = [
        kernel("sender", 0, over=True),
        kernel("sender", 1, over=False),
        kernel("sender", 2, over=True),
        kernel("receiver", 0, over=True),
    ]
    one = carrier(_kernels=kernels)
    one.look(every=True)
    assert ended == [("sender", 0), ("receiver", 0)]
    assert [left.slot for left in one._kernels] == [1, 2]


def test_a_transfer_that_failed_is_over_when_its_connection_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any other failure NIXL has to say whether it still moves; the next ones are looked at all the same."""
    arrived: list[tuple[int, bool]] = []
    lost: list[tuple[str, str]] = []
    gone = PeerLost("gone")

    def done(handle: int, peer: str) -> bool:
        assert peer == ("other" if handle == 3 else "there")
        if handle in (1, 3):
            raise TransferError("who knows") if handle == 1 else gone
        return True

    monkeypatch.setattr(Carrier, "_arrived", lambda self, flight, ok: arrived.append((flight.stage.handle, ok)))
    flights = [flight(1), flight(2), flight(3, "other"), flight(4)]
    one = carrier(
        _flights=list(flights),
        _agent=SimpleNamespace(done=done),
        _lost=lambda peer, error: lost.append((peer.name, str(error))),
    )
    one.look(every=True)
    assert arrived == [(2, True), (3, False), (4, True)]
    assert lost == [("other", "gone")]
    assert one._flights == [flights[0]]


def test_a_short_look_looks_at_either_way_by_itself() -> None:
    """What is read from a peer says nothing of what is written to it."""
    asked: list[int] = []

    def done(handle: int, peer: str) -> bool:
        asked.append(handle)
        return False

    flights = [flight(1), flight(2, role="receiver"), flight(3), flight(4, role="receiver")]
    one = carrier(_flights=flights, _agent=SimpleNamespace(done=done))
    one.look(every=False)
    assert asked == [1, 2]


@pytest.mark.parametrize(
    ("error", "lost", "logged"),
    [
        (None, [], []),
        (PeerLost("gone"), ["gone"], []),
        (TransferError("no buffer"), [], ["peer there: no buffer"]),
    ],
)
def test_messages_go_to_the_peer_of_their_number(
    error: Exception | None, lost: list[str], logged: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[tuple[str, str]] = []
    news: list[str] = []

    def notify(peer: str, frame: str) -> None:
        sent.append((peer, frame))
        if error is not None:
            raise error

    peers = {7: SimpleNamespace(name="there"), 8: None}
    one = carrier(
        _agent=SimpleNamespace(notify=notify),
        _lost=lambda peer, error: news.append(str(error)),
        _desk=SimpleNamespace(peer=lambda number: peers[number]),
    )
    actions = [action("send", "first", peer=7), action("send", "nobody's", peer=8), action("send", "second", peer=7)]
    one.add("sender", [*actions, SimpleNamespace(kind="send", frame=None, peer=7)])
    one.run()
    assert sent == [("there", "first"), ("there", "second")]
    assert news == lost * 2
    assert [record.getMessage() for record in caplog.records] == logged * 2


@pytest.mark.parametrize("why", ["refused", "no ring", "no slot"])
def test_a_write_that_cannot_be_made_yet_is_made_when_it_is_posted(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or fails then: the gather goes on."""
    monkeypatch.setattr(Carrier, "_send", lambda self, action: None)
    calls = Calls()
    made = calls.make_exact
    refusals = [TransferError("no memory")] if why == "refused" else []

    def make(*arguments: Any) -> int:
        if refusals:
            raise refusals.pop()
        return made(*arguments)

    monkeypatch.setattr(calls, "make_exact", make)
    one, fence = gathering(calls, [action("write", **WRITE)], slots=3 if why == "no slot" else 4, ring=why != "no ring")
    assert (calls.made, one.busy_with(None)) == ([], False)
    ended(one, fence)
    assert calls.posted == calls.released == ([0] if why == "refused" else [])
    assert one.sender.wrote == [(2, why == "refused")]
