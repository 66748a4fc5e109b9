"""One connected peer: its plans, what NIXL holds prepared for them, and how it is let go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("nixl")

import kvreshard as kvr
from kvreshard.nixl import NotRegistered, control, peer, wire
from kvreshard.nixl.peer import Peer
from tests.fabric import Fabric, connected
from tests.pairs import Pair
from tests.scripted import BROKEN, MISSING


@pytest.fixture
def pair() -> Iterator[Pair]:
    with connected() as fabric:
        made = Pair()
        made.fabric = fabric  # type: ignore[attr-defined]
        yield made
        made.close()


def agent(pair: Pair) -> Any:
    fabric: Fabric = pair.fabric  # type: ignore[attr-defined]
    return fabric.agents["here"]


def test_what_a_peer_announced(pair: Pair) -> None:
    told = wire.decode(pair.there.metadata())
    one = pair.peer
    assert (one.name, one.layout, one.generation, one.rings, one.digest) == (
        "there",
        pair.there.layout,
        pair.there.generation,
        told.rings,
        told.digest,
    )
    assert (one.packs, one.state) == (1, "connected")
    assert [sorted(kinds) for kinds in (one.here, one.there, one.memory)] == [["DRAM"]] * 3
    assert repr(one) == f"Peer('there', connected, engine='prefill', generation={one.generation})"
    assert one.registered_as(told)
    assert not one.registered_as(wire.decode(pair.here.metadata()))
    for notices in range(5):
        with_fewer = Peer(
            pair.here._agent,
            pair.here.layout,
            wire.Metadata("x", b"x", pair.there.layout, one.generation, notices),
            added=False,
            senders=notices,
            transport="cma",
        )
        assert (with_fewer.senders, with_fewer.transport) == (notices, "cma")
        announced = with_fewer.understands_notices, with_fewer.understands_control, with_fewer.answers_contacts
        assert announced == (notices >= 1, notices >= control.VERSION, notices >= control.CONTACTS)
        assert with_fewer.packs == 0


def test_plans_are_made_once(pair: Pair) -> None:
    one = pair.peer
    assert one.plan("read") is one.plan("read")
    assert one.plan("write") is one.plan("write")
    assert one.plan("read", ("layers.0",)) is one.plan("read", ("layers.0",))
    assert len({plan.digest for plan in (one.plan("read"), one.plan("write"), one.plan("read", ("layers.0",)))}) == 3
    assert one.plan("write").direction == "write"
    edge = kvr.Edge.told("read", [("layers.1", [("h", 0, 8)], True)])
    narrowed = kvr.plan(pair.here.layout, pair.there.layout, edge=edge, direction="read")
    before = one.plan("write"), one.plan("read", ("layers.1",))
    one.set_plan("read", narrowed, edge)
    assert one.plan("read") is narrowed
    # Parts of it are planned anew, by the edge; the other direction is as it was.
    assert one.plan("write") is before[0]
    assert one.plan("read", ("layers.1",)) is not before[1]
    with pytest.raises(kvr.Error):
        one.plan("read", ("layers.0",))
    assert (one.takes("read"), one.takes("write")) == ([*edge.takes], None)
    one.set_plan("read", before[0], None)
    assert one.takes("read") is None


def test_what_both_sides_pack_by_is_found_by_its_digest(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    one = pair.peer
    made = list[Any]()
    plan = kvr.plan

    def counted(*arguments: Any, **options: Any) -> Any:
        made.append(options)
        return plan(*arguments, **options)

    monkeypatch.setattr(kvr, "plan", counted)
    received, sent = one.packed_plan("receiver", None, None), one.packed_plan("sender", None, None)
    assert received.digest == plan(pair.here.layout, pair.there.layout, direction="read").digest
    assert sent.digest == plan(pair.there.layout, pair.here.layout, direction="read").digest
    assert one.packed_plan("receiver", None, None) is received
    assert one.packed_plan("receiver", ("unknown",), None, received.digest) is received
    with pytest.raises(kvr.Error):
        one.packed_plan("sender", ("unknown",), None, received.digest)
    takes: control.Takes = [("layers.0", [("h", 0, 4)], True)]
    part = one.packed_plan("sender", ("layers.0",), takes)
    assert part.digest not in (received.digest, sent.digest)
    assert len(made) == 4
    monkeypatch.setattr(peer, "MAX_PACKED", 3)
    one.packed_plan("receiver", ("layers.1",), None)
    assert one.packed_plan("receiver", None, None, received.digest) is not received


def test_rows_are_prepared_once_and_released(pair: Pair) -> None:
    one, here = pair.peer, agent(pair)
    plan = one.plan("read")
    local, remote = one.prepared(plan, 0)
    assert one.prepared(plan, 0) == (local, remote)
    assert [(made.owner, made.memory) for made in here.prepared] == [("here", "DRAM"), ("there", "DRAM")]
    one.prepared(one.plan("write"), 0)
    assert len(here.prepared) == 4
    one.close("closed")
    assert (here.prepared, one.state, here.peers) == ([], "closed", {"there"})
    one.close("lost")
    assert one.state == "lost"


def test_what_a_peer_does_not_have_registered_leaves_nothing(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    one, here = pair.peer, agent(pair)
    prepare = here.prep_xfer_dlist

    def refused(owner: str, rows: Any, kind: str) -> Any:
        if owner == "there":
            raise MISSING
        return prepare(owner, rows, kind)

    monkeypatch.setattr(here, "prep_xfer_dlist", refused)
    with pytest.raises(NotRegistered):
        one.prepared(one.plan("read"), 0)
    assert here.prepared == []
    monkeypatch.undo()
    assert len(one.prepared(one.plan("read"), 0)) == 2


@pytest.mark.parametrize("state", ["closed", "lost"])
def test_what_fails_while_a_peer_is_let_go_is_logged(
    pair: Pair, state: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one, here = pair.peer, agent(pair)
    one.prepared(one.plan("read"), 0)
    release = here.release_dlist_handle

    def fails(handle: Any) -> None:
        release(handle)
        raise BROKEN

    def kept(name: str) -> None:
        raise BROKEN

    monkeypatch.setattr(here, "release_dlist_handle", fails)
    monkeypatch.setattr(here, "remove_remote_agent", kept)
    one.close(state)
    texts = ["peer there: NIXL could not release descriptor rows: NIXL_ERR_BACKEND"] * 2
    if state == "lost":
        texts.append("peer there: NIXL could not remove a peer (peer there): NIXL_ERR_BACKEND")
    assert [record.getMessage() for record in caplog.records] == texts
    assert here.prepared == []
