"""Whom a connector answers: peers that it is connected with, and nobody else."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("nixl")

import kvreshard as kvr
from kvreshard.nixl import Connector, control
from tests.fabric import Fabric
from tests.pairs import Pair, pages


def messages(pair: Pair) -> dict[str, control.Message]:
    """What has an answer, where it comes from a peer."""
    generation = pair.there.generation
    return {
        "lease": control.Ask("r", 1000, generation),
        "void": control.Ask("r", 1000, generation + 1),
        "done": control.Done("r", 0, 2, 1, generation),
        "join": control.Join((1, 2), (0, 0), "push", False, generation),
        "contact": control.Marked("r", 5, (0, 16), [(0, b"\x01\x00\x00\x00")], None),
    }


def answers(pair: Pair, fabric: Fabric, sender: str, message: control.Message) -> list[Any]:
    fabric.told.clear()
    assert pair.there._hear(sender, control.encode(message)) is True
    assert {receiver for _, receiver, _ in fabric.told} <= {"here"}
    return [control.decode(sent) for _, _, sent in fabric.told]


@pytest.mark.parametrize("kind", ["lease", "void", "done", "join", "contact"])
def test_peers_that_are_connected_are_answered(fabric: Fabric, kind: str) -> None:
    pair = Pair()
    message = messages(pair)[kind]
    pair.there.expect("r", readers=3)
    assert answers(pair, fabric, "stranger", message) == []
    assert answers(pair, fabric, "here", message) == []
    back = pair.there.connect(pair.here.metadata(), direction=None)
    (answer, *_) = answers(pair, fabric, "here", message)
    kinds: dict[str, type] = {
        "lease": control.Held,
        "void": control.Void,
        "done": control.Confirmed,
        "join": control.Hello,
        "contact": control.Found,
    }
    assert isinstance(answer, kinds[kind])
    assert answers(pair, fabric, "stranger", message) == []
    # One that is lost is not answered either; while a transfer moves it is still known.
    fabric.held = lambda handle: True
    pair.there.read(back, pages(1), id="moving", strategy="direct")
    pair.there.gone("here")
    assert answers(pair, fabric, "here", message) == []
    fabric.held = lambda handle: False
    pair.there.poll()
    pair.close()


def test_a_peer_is_told_who_asks_once_and_when_it_does_not_answer(fabric: Fabric) -> None:
    pair = Pair()
    ask = control.Ask("r", 1000, pair.there.generation)
    for options, kinds in (({}, ["Hello", "Ask"]), ({}, ["Ask"]), ({"again": True}, ["Hello", "Ask"])):
        fabric.told.clear()
        pair.here.say(pair.peer, ask, **options)
        assert [type(control.decode(sent)).__name__ for _, _, sent in fabric.told] == kinds
    pair.close()


def test_what_is_not_expected_has_no_answer_yet(fabric: Fabric) -> None:
    pair = Pair()
    pair.there.connect(pair.here.metadata(), direction=None)
    assert answers(pair, fabric, "here", control.Ask("r", 1000, pair.there.generation)) == []
    assert answers(pair, fabric, "here", control.Done("r", 0, 2, 1, pair.there.generation)) == []
    pair.close()


def test_without_a_layout_all_that_is_asked_is_void(fabric: Fabric) -> None:
    bare = Connector("bare")
    for message in (control.Ask("r", 1000, 0), control.Join((1, 2), (0, 0), "push", False, 0)):
        assert bare._hear("stranger", control.encode(message)) is True
    assert fabric.told == []
    bare.close(timeout=0)


def test_a_contact_is_refused_where_none_is_expected(fabric: Fabric) -> None:
    pair = Pair()
    pair.there.connect(pair.here.metadata(), direction=None)
    asked = messages(pair)["contact"]
    none = "it expects no first contact: expect_contacts() there first"
    assert answers(pair, fabric, "here", asked) == [control.Found("r", 0, 0, False, none)]
    for blocks in (None, [kvr.Blocks([1])]):
        pair.there.expect_contacts(blocks, None if blocks else lambda layer, page: {})
        assert pair.there._meetings.scratch is None
    pair.close()
