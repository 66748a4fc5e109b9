"""First contact between two connectors."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("nixl")

import kvreshard as kvr
from kvreshard.nixl import DeadlinePassed, FirstContact, NotConnected, PeerDown, PeerLost, Unsupported, control, wire
from kvreshard.nixl.control import Found, Marked
from kvreshard.nixl.meetings import Meetings, told_blocks
from kvreshard.probe import ProbeError, Source, WriterMismatch
from tests.connector_rank import request
from tests.fabric import Fabric
from tests.marked import reader, writer
from tests.pairs import HERE, THERE, Pair, other_agent, other_rank
from tests.told import told

BLOCKS = request((0, 32), [7, 9], [15, 3])


def contact(pair: Pair, direction: str, *, lie: bool = False, **options: Any) -> FirstContact:
    """Blocks 7 and 9 here, 15 and 3 there; a side that lies has its axes the other way."""
    other = THERE.notation if lie else HERE.notation
    options.setdefault("deadline", 3.0)
    if direction == "read":
        return FirstContact(BLOCKS, read=reader(pair.mine, HERE, other), seed=5, **options)
    return FirstContact(BLOCKS, write=writer(pair.mine, HERE, other), seed=5, **options)


def meet(pair: Pair, fabric: Fabric, first: FirstContact, direction: Any) -> None:
    """Makes contact while the other side serves."""
    pair.here.disconnect(pair.peer)
    fabric.told.clear()
    with pair.there.serve():
        pair.peer = pair.here.connect(pair.there.metadata(), direction=direction, first_contact=first)


def said(fabric: Fabric, kind: type) -> list[Any]:
    found = [control.decode(message) for _, _, message in fabric.told if control.is_control(message)]
    return [message for message in found if isinstance(message, kind)]


def test_a_read_of_marked_pages_meets(fabric: Fabric) -> None:
    pair = Pair()
    pair.there.mark([kvr.Blocks([15, 3])], writer(pair.theirs, THERE, THERE.notation), seed=5)
    for strategy in ("auto", "landed", "packed", "direct"):
        fabric.made.clear()
        meet(pair, fabric, contact(pair, "read", strategy=strategy), "read")
        assert pair.peer.connected
        # By choice it lands: runs of these two formats are short.
        assert pair.peer.metrics.requests == {"landed" if strategy == "auto" else strategy: 1}
        assert pair.here.poll() == []
        assert pair.here.in_flight == ()
        # No notice: it is no request of the peer's.
        assert [message for _, _, message in fabric.told if not control.is_control(message)] == [
            message for _, _, message in fabric.told if message.startswith(b"kvreshard-ring")
        ]
    with pytest.raises(WriterMismatch, match=r"first contact with prefill: layer layers.0, page 7: component k"):
        meet(pair, fabric, contact(pair, "read", lie=True), "read")
    assert not pair.peer.connected
    assert pair.here._peers == {}
    with pytest.raises(WriterMismatch):
        meet(pair, fabric, replace(contact(pair, "read"), seed=6), "read")
    pair.peer = pair.here.connect(pair.there.metadata())
    pair.close()


def test_a_write_of_marked_pages_meets_where_the_target_says_so(fabric: Fabric) -> None:
    pair = Pair()
    scratch = [kvr.Blocks([15, 3])]
    pair.there.expect_contacts(scratch, reader(pair.theirs, THERE, THERE.notation))
    meet(pair, fabric, contact(pair, "write"), "write")
    (asked,) = said(fabric, Marked)
    assert (asked.seed, asked.tokens, asked.blocks, asked.takes) == (5, (0, 32), told_blocks(scratch), None)
    assert asked.id.startswith("first-contact/")
    size = HERE.heads * HERE.size * 2
    assert said(fabric, Found) == [Found(asked.id, 4, HERE.layers * 32 * size, False, "")]
    assert pair.here._meetings._asked == {}
    # The same connection once more: who asks is known.
    fabric.told.clear()
    with pair.there.serve():
        data = pair.there.metadata()
        assert pair.here.connect(data, direction="write", first_contact=contact(pair, "write")) is pair.peer
    assert (len(said(fabric, Marked)), said(fabric, control.Hello)) == (1, [])
    with pytest.raises(WriterMismatch) as caught:
        meet(pair, fabric, contact(pair, "write", lie=True), "write")
    text = "first contact: there says: first contact with decode: layer layers.0, page 15: component k, element "
    assert str(caught.value).startswith(text)
    pair.there.expect_contacts(None)
    with pytest.raises(Unsupported) as refused:
        meet(pair, fabric, contact(pair, "write"), "write")
    text = "first contact: there says: it expects no first contact: expect_contacts() there first"
    assert told(refused.value) == (text, {"peer": "there"})
    pair.peer = pair.here.connect(pair.there.metadata())
    pair.close()


def test_a_question_is_asked_again_and_answered_alike(fabric: Fabric) -> None:
    pair = Pair()
    looked: list[int] = []
    read = reader(pair.theirs, THERE, THERE.notation)

    def seen(layer: str, page: int) -> Any:
        looked.append(page)
        return read(layer, page)

    pair.there.expect_contacts([kvr.Blocks([15, 3])], seen)
    fabric.lost = lambda sender, receiver, message: (
        sender == "there" and control.is_control(message) and len(said(fabric, Found)) == 1
    )
    meet(pair, fabric, contact(pair, "write", strategy="direct"), "write")
    assert len(said(fabric, Marked)) == len(said(fabric, Found)) == 2
    assert len({one.id for one in (*said(fabric, Marked), *said(fabric, Found))}) == 1
    # Who it is, once more: the first question had no answer.
    assert len(said(fabric, control.Hello)) == 2
    assert looked == [15, 3, 15, 3]
    pair.close()


def test_no_answer_in_time_is_the_end_of_the_contact(fabric: Fabric) -> None:
    pair = Pair()
    fabric.lost = lambda *_: True
    begun = time.monotonic()
    with pytest.raises(DeadlinePassed) as caught:
        meet(pair, fabric, contact(pair, "write", deadline=0.4, strategy="direct"), "write")
    assert time.monotonic() - begun >= 0.4
    text = "first contact: there did not say what its reader finds (does it poll?)"
    assert told(caught.value) == (text, {"peer": "there"})
    # At once, and after 0.25 s where that was not late.
    assert 1 <= len(said(fabric, Marked)) <= 2
    assert pair.here._meetings._asked == {}
    # Marked pages that do not come.
    fabric.held = lambda handle: True
    with pytest.raises(DeadlinePassed) as late:
        meet(pair, fabric, contact(pair, "read", deadline=0.02, strategy="direct"), "read")
    assert "did not finish in time" in str(late.value)
    # What is held keeps its peer.
    assert list(pair.here._peers) == ["there"]
    fabric.held = lambda handle: False
    pair.turns(2)
    pair.close()


def test_a_target_that_looked_at_nothing_is_no_witness(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    monkeypatch.setattr(Meetings, "answer", lambda self, layout, peer, asked: Found(asked.id, 0, 0, False, ""))
    with pytest.raises(ProbeError) as caught:
        meet(pair, fabric, contact(pair, "write"), "write")
    assert str(caught.value) == "first contact: there looked at nothing"
    pair.peer = pair.here.connect(pair.there.metadata())
    pair.close()


SIDES = "first contact goes with direction 'read' and a reader, or with 'write' and a writer"


@pytest.mark.parametrize(
    ("direction", "given"), [("read", "write"), ("write", "read"), (None, "read"), (None, "write")]
)
def test_a_contact_has_the_side_of_its_direction(fabric: Fabric, direction: Any, given: str) -> None:
    pair = Pair()
    with pytest.raises(Unsupported) as caught:
        meet(pair, fabric, contact(pair, given), direction)
    assert told(caught.value) == (SIDES, {})
    assert fabric.made == []
    pair.peer = pair.here.connect(pair.there.metadata())
    pair.close()


def test_a_target_that_does_not_answer_contacts_is_not_asked(fabric: Fabric) -> None:
    pair = Pair()
    pair.here.disconnect(pair.peer)
    older = wire.encode(replace(wire.decode(pair.there.metadata()), notices=control.CONTACTS - 1))
    with pytest.raises(Unsupported) as caught:
        pair.here.connect(older, direction="write", first_contact=contact(pair, "write"))
    assert told(caught.value) == ("peer there did not announce that it answers first contacts", {"peer": "there"})
    assert fabric.made == []
    pair.close()


def test_a_host_agent_makes_contact_by_direct_reads_only(fabric: Fabric) -> None:
    """Its notices are the host's, who does not pass them on meanwhile."""
    pair = Pair()
    pair.there.mark([kvr.Blocks([15, 3])], writer(pair.theirs, THERE, THERE.notation), seed=5)
    host, arrays = other_agent(fabric, "host")
    peer = host.connect(
        pair.there.metadata(), first_contact=FirstContact(BLOCKS, read=reader(arrays, HERE, HERE.notation), seed=5)
    )
    assert peer.metrics.requests == {"direct": 1}
    host.disconnect(peer)
    # What is asked for by name is done as it is asked.
    landed = FirstContact(BLOCKS, read=reader(arrays, HERE, HERE.notation), seed=5, strategy="landed")
    peer = host.connect(pair.there.metadata(), first_contact=landed)
    assert peer.metrics.requests == {"landed": 1}
    host.disconnect(peer)
    first = FirstContact(BLOCKS, write=writer(arrays, HERE, HERE.notation), seed=5)
    with pytest.raises(Unsupported) as caught:
        host.connect(pair.there.metadata(), direction="write", first_contact=first)
    assert told(caught.value)[0] == "first contact of a push needs an agent of our own: the answer is a notice"
    host.close(timeout=0)
    pair.close()


@pytest.mark.parametrize("direction", ["read", "write"])
def test_a_contact_is_made_by_the_edge(fabric: Fabric, direction: Any) -> None:
    pair = Pair()
    looked: list[str] = []
    arrays, spec = (pair.theirs, THERE) if direction == "write" else (pair.mine, HERE)
    read = reader(arrays, spec, spec.notation)

    def seen(layer: str, page: int) -> Any:
        looked.append(layer)
        return read(layer, page)

    first = contact(pair, direction)
    if direction == "write":
        pair.there.expect_contacts([kvr.Blocks([15, 3])], seen)
    else:
        pair.there.mark([kvr.Blocks([15, 3])], writer(pair.theirs, THERE, THERE.notation), seed=5)
        first = replace(first, read=seen)
    pair.here.disconnect(pair.peer)
    edge = kvr.Edge.told(direction, [("layers.1", [("h", 0, 8)], True)])
    with pair.there.serve():
        pair.peer = pair.here.connect(pair.there.metadata(), edge=edge, direction=direction, first_contact=first)
    assert looked == ["layers.1"] * 2
    pair.close()


SOURCES = {"k": Source("k"), "v": Source("v")}


@pytest.mark.parametrize("direction", ["read", "write"])
def test_writers_that_quantise_meet_by_what_they_were_given(fabric: Fabric, direction: Any) -> None:
    pair = Pair()
    blocks = [kvr.Blocks([15, 3])]
    if direction == "write":
        pair.there.expect_contacts(blocks, reader(pair.theirs, THERE, THERE.notation), sources=SOURCES)
    else:
        pair.there.mark(blocks, writer(pair.theirs, THERE, THERE.notation), seed=5, sources=SOURCES)
    meet(pair, fabric, contact(pair, direction, sources=SOURCES), direction)
    assert pair.peer.connected
    with pytest.raises(WriterMismatch):
        meet(pair, fabric, contact(pair, direction), direction)
    pair.peer = pair.here.connect(pair.there.metadata())
    pair.close()


@pytest.mark.parametrize("direction", ["read", "write"])
def test_a_contact_is_not_fenced_where_all_else_is(fabric: Fabric, direction: Any) -> None:
    """Nobody expects it."""
    pair = Pair(fence=True)
    blocks = [kvr.Blocks([15, 3])]
    pair.there.mark(blocks, writer(pair.theirs, THERE, THERE.notation), seed=5)
    pair.there.expect_contacts(blocks, reader(pair.theirs, THERE, THERE.notation))
    meet(pair, fabric, contact(pair, direction), direction)
    assert said(fabric, control.Ask) == said(fabric, control.Done) == []
    pair.close()


def test_what_ends_meanwhile_is_left_for_polls(fabric: Fabric) -> None:
    pair = Pair()
    other, second = other_rank(pair)
    pair.there.mark([kvr.Blocks([15, 3])], writer(pair.theirs, THERE, THERE.notation), seed=5)
    pair.here.read(second, request((0, 16), [20], [20]), id="r", strategy="direct")
    pair.here.read(second, request((0, 16), [21], [21]), id="late", strategy="direct", deadline=0.0)
    meet(pair, fabric, contact(pair, "read", strategy="direct"), "read")
    assert [getattr(event, "id", None) for event in pair.here.poll()] == ["r", "late"]
    pair.close()
    other.close(timeout=0)


def test_a_target_that_is_lost_meanwhile_is_not_waited_for(fabric: Fabric) -> None:
    pair = Pair()
    pair.here.disconnect(pair.peer)

    def seen(layer: str, page: int) -> Any:
        pair.here._lost(pair.here._peers["there"], PeerLost("why"))

    pair.there.expect_contacts([kvr.Blocks([15, 3])], seen)
    fabric.lost = lambda sender, receiver, message: sender == "there"
    first = contact(pair, "write", strategy="direct", deadline=5.0)
    with pair.there.serve(), pytest.raises(NotConnected) as caught:
        pair.here.connect(pair.there.metadata(), direction="write", first_contact=first)
    (asked, *_) = said(fabric, Marked)
    assert told(caught.value)[1]["request"] == asked.id
    assert [type(event) for event in pair.here.poll()] == [PeerDown]
    assert pair.here._peers == {}
    pair.close()
