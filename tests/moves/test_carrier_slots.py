"""What a carrier does for a machine that asks for what cannot be, and which rings outlive their connector."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nixl")

from kvreshard.nixl import NotRegistered, PeerLost, TransferError, carrier
from kvreshard.nixl.carrier import Carrier
from kvreshard.nixl.control import Flow
from tests.fabric import Fabric
from tests.pairs import Pair, pages


@pytest.mark.parametrize(("flow", "here", "there"), [("push", ["receiver"], []), ("pull", [], ["sender"])])
def test_rings_that_a_peer_may_still_touch_are_kept_for_good(
    fabric: Fabric, flow: Flow, here: list[str], there: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots that were granted to a writer, or told to a reader."""
    kept: list[Any] = []
    monkeypatch.setattr(carrier, "_outlived", kept)
    pair = Pair(flow=flow)
    fabric.held = lambda handle: True
    pair.here.read(pair.peer, pages(8), id="r", strategy="packed")
    pair.turns(5)
    assert fabric.made
    fabric.ending = True
    for connector, wanted in ((pair.here, here), (pair.there, there)):
        running = connector._packing._running
        assert running is not None
        areas: Any = running[0].areas
        kept.clear()
        connector.close(timeout=0)
        found = [role for role in ("receiver", "sender") if any(one is areas[role].buffer for one in kept)]
        assert (found, len(kept)) == (wanted, len(wanted))


class Agent:
    """Makes and posts what it is asked to, or raises."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.released: list[Any] = []
        self.make: Exception | None = None
        self.post_: bool | Exception = False

    def make_exact(self, operation: str, peer: str, ours: Any, theirs: Any, notice: bytes) -> Any:
        if self.make is not None:
            raise self.make
        rows = (ours[0].tolist(), ours[1]), (theirs[0].tolist(), theirs[1])
        self.made.append((operation, peer, *rows, notice))
        return "handle"

    def post(self, handle: Any, peer: str) -> bool:
        assert (handle, peer) == ("handle", "there")
        if isinstance(self.post_, Exception):
            raise self.post_
        return self.post_

    def release(self, handle: Any) -> None:
        self.released.append(handle)


class Machine:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        def told(*arguments: Any) -> list[Any]:
            self.told.append((name, *arguments))
            return []

        return told


class One:
    """A carrier whose machines ask for nothing by themselves."""

    def __init__(self) -> None:
        self.agent, self.lost = Agent(), list[tuple[str, type]]()
        region = SimpleNamespace(memory="DRAM", device=0)
        areas = {
            role: SimpleNamespace(slot=lambda index, base=base: (base + 100 * index, None), region=region)
            for role, base in (("receiver", 1000), ("sender", 2000))
        }
        ring = SimpleNamespace(address=5000, slots=3, slot_bytes=200, device=2, memory="VRAM")
        self.rings = SimpleNamespace(send=ring, receive=SimpleNamespace(**{**vars(ring), "address": 9000}))
        self.peer: Any = SimpleNamespace(name="there", rings=self.rings)
        self.carrier = Carrier.__new__(Carrier)
        self.machines = Machine(), Machine()
        fields: dict[str, Any] = {
            "receiver": self.machines[0],
            "sender": self.machines[1],
            "areas": areas,
            "_desk": SimpleNamespace(peer=lambda number: self.peer, parcel=lambda *_: None),
            "_agent": self.agent,
            "_lost": lambda peer, error: self.lost.append((peer.name, type(error))),
            "_unsent": deque(),
            "_todo": deque(),
            "_launches": deque(),
            "_kernels": [],
            "_flights": [],
            "_ready": {},
            "_loaded": {1: 64},
        }
        for name, value in fields.items():
            setattr(self.carrier, name, value)

    def ask(self, role: Any, kind: str, remote: int = 2) -> list[tuple[Any, ...]]:
        """What the role's machine is told when it has asked for that."""
        action: Any = SimpleNamespace(kind=kind, slot=1, peer=0, remote_slot=remote, bytes=48, request="r", sequence=0)
        self.carrier.add(role, [action])
        self.carrier.run()
        receiver, sender = (machine.told for machine in self.machines)
        told, other = (receiver, sender) if role == "receiver" else (sender, receiver)
        assert other == []
        return told


ROLES = pytest.mark.parametrize(
    ("role", "kind", "end"), [("receiver", "read", "read_ended"), ("sender", "write", "write_ended")]
)


@ROLES
def test_a_slot_moves_whole_or_as_far_as_it_is_loaded(role: Any, kind: str, end: str) -> None:
    one = One()
    one.agent.post_ = True
    assert one.ask(role, kind) == [(end, 1, True)]
    base, ring, size = (1000, 5000, 48) if role == "receiver" else (2000, 9000, 64)
    rows = ([[base + 100, size, 0]], "DRAM"), ([[ring + 400, size, 2]], "VRAM")
    assert one.agent.made == [(kind.upper(), "there", *rows, b"")]
    assert (one.agent.released, one.lost, one.carrier.busy) == (["handle"], [], False)


@ROLES
def test_a_slot_that_is_under_way_keeps_the_carrier_busy(role: Any, kind: str, end: str) -> None:
    one = One()
    assert one.ask(role, kind) == []
    assert one.carrier.busy
    stranger: Any = SimpleNamespace()
    assert [one.carrier.busy_with(peer) for peer in (one.peer, None, stranger)] == [True, True, False]
    ((peer, stage),) = one.carrier.abandon()
    assert peer is one.peer
    assert (stage.posted, stage.bytes, stage.prepared) == (1, 48 if role == "receiver" else 64, False)
    assert not one.carrier.busy


@ROLES
@pytest.mark.parametrize("missing", ["peer", "rings", "slot"])
def test_what_there_is_no_slot_for_does_not_move(role: Any, kind: str, end: str, missing: str) -> None:
    one = One()
    if missing == "peer":
        one.peer = None
    elif missing == "rings":
        one.peer.rings = None
    assert one.ask(role, kind, remote=3 if missing == "slot" else 2) == [(end, 1, False)]
    assert (one.agent.made, one.lost) == ([], [])


@ROLES
def test_what_nixl_does_not_make_does_not_move(role: Any, kind: str, end: str) -> None:
    one = One()
    one.agent.make = NotRegistered("no such memory")
    assert one.ask(role, kind) == [(end, 1, False)]
    assert (one.agent.released, one.lost) == ([], [])


@ROLES
@pytest.mark.parametrize(
    ("error", "over"), [(PeerLost("gone"), True), (NotRegistered("no"), True), (TransferError("who knows"), False)]
)
def test_what_nixl_does_not_post(role: Any, kind: str, end: str, error: Exception, over: bool) -> None:
    one = One()
    one.agent.post_ = error
    assert one.ask(role, kind) == ([(end, 1, False)] if over else [])
    assert one.agent.released == (["handle"] if over else [])
    assert one.carrier.busy is not over
    assert one.lost == ([("there", PeerLost)] if isinstance(error, PeerLost) else [])


@ROLES
def test_a_handle_that_cannot_be_released_ends_as_others_do(
    role: Any, kind: str, end: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(handle: Any) -> None:
        raise TransferError("in use")

    one = One()
    one.agent.post_ = True
    monkeypatch.setattr(one.agent, "release", refuse)
    assert one.ask(role, kind) == [(end, 1, True)]
    assert [record.getMessage() for record in caplog.records] == ["peer there: in use"]


def test_a_read_into_a_slot_is_not_the_write_that_was_made_of_the_other_ring() -> None:
    """Slots of both rings have the same numbers."""
    one = One()
    made: Any = SimpleNamespace(peer=one.peer, stage=SimpleNamespace(handle="another"))
    one.carrier._ready[1] = made
    one.agent.post_ = True
    assert one.ask("receiver", "read") == [("read_ended", 1, True)]
    assert [operation for operation, *_ in one.agent.made] == ["READ"]
    assert (one.agent.released, one.carrier._ready) == (["handle"], {1: made})


@pytest.mark.parametrize(
    ("role", "kind", "end"), [("receiver", "scatter", "scattered"), ("sender", "gather", "gathered")]
)
def test_kernels_of_parcels_that_are_gone_have_failed(role: Any, kind: str, end: str) -> None:
    assert One().ask(role, kind) == [(end, 1, False)]
