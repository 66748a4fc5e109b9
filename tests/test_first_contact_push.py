"""First contact of a push through real NIXL: the target's own reader looks at what the writer's own has stored."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kvreshard as kvr
from kvreshard.probe import WriterMismatch
from tests.connector_rank import Spec, publish, request, running, wait
from tests.marked import writer

pytest.importorskip("nixl")

from kvreshard.nixl import Connector, DeadlinePassed, FirstContact, PeerLost, Unsupported, wire
from kvreshard.nixl.control import Found, Marked
from kvreshard.nixl.meetings import Meetings, Scratch, told_blocks

HND, NHD = "h n k[d] v[d]", "n h k[d] v[d]"


@pytest.fixture
def here() -> Iterator[Connector]:
    with Connector("here") as connector:
        yield connector


def contact(spec: Spec, arrays: list[Any], notation: str, blocks: list[int] | None = None, **options: Any) -> Any:
    """Block 7 of this side is marked and written into blocks 15 and 3 there."""
    wanted = request((0, 32), [7], blocks or [15, 3])
    return FirstContact(wanted, write=writer(arrays, spec, notation), seed=options.pop("seed", 5), **options)


def test_honest_sides_meet(here: Connector) -> None:
    """This rank holds 8 heads token-major in pages of 32; the target the last 4 head-major in pages of 16."""
    spec = Spec("here", notation=NHD, tokens=32)
    mine = spec.arrays(1)
    publish(here, spec, mine)
    with running(Spec("there", engine="decode", notation=HND, heads=4, tp=(1, 2))) as (there,):
        before = there.call("pages")
        there.call("expect_contacts", HND, [15, 3])
        peer = here.connect(there.call("metadata"), direction="write", first_contact=contact(spec, mine, NHD))
        assert peer.connected
        assert here.poll() == [], "its transfer is no request of the caller's"
        after = there.call("pages", during=here)
        for layer in range(2):
            kept = [page for page in range(spec.pages) if page not in (3, 15)]
            np.testing.assert_array_equal(after[layer][kept], before[layer][kept])
            assert (after[layer][[3, 15]] != before[layer][[3, 15]]).mean() > 0.9
        here.write(peer, request((0, 32), [1], [4, 5]), id="r", notify=False)
        wait(here, "Finished")


@pytest.mark.parametrize("liar", ["writer", "reader"])
def test_a_side_that_lies_is_refused_before_any_request(here: Connector, liar: str) -> None:
    """Both declare head-major pages, and one side's kernels have them token-major."""
    spec = Spec("here", tokens=32)
    mine = spec.arrays(1)
    publish(here, spec, mine)
    with running(Spec("there", engine="decode")) as (there,):
        there.call("expect_contacts", NHD if liar == "reader" else HND, [3, 15])
        metadata = there.call("metadata")
        lying = contact(spec, mine, NHD if liar == "writer" else HND)
        with pytest.raises(
            WriterMismatch, match=r"there says: .* layer layers\.0, page 15: component k, element .* is read"
        ):
            here.connect(metadata, direction="write", first_contact=lying)
        assert here.in_flight == ()
        assert here.poll() == []
        # Nothing is left of the peer: without the switch it is connected anew.
        peer = here.connect(metadata, direction="write")
        here.write(peer, request((0, 32), [1], [2, 4]), id="r", notify=False)
        wait(here, "Finished")


def test_targets_look_at_scratch_blocks_only(here: Connector) -> None:
    spec = Spec("here", tokens=32)
    mine = spec.arrays(1)
    publish(here, spec, mine)
    with running(Spec("there", engine="decode")) as (there,):
        metadata = there.call("metadata")

        def fails(first: FirstContact, text: str) -> None:
            with pytest.raises(Unsupported, match=text):
                here.connect(metadata, direction="write", first_contact=first)

        fails(contact(spec, mine, HND), "it expects no first contact")
        there.call("expect_contacts", HND, [15, 3])
        fails(
            contact(spec, mine, HND, [15, 4]),
            r"blocks \[15, 4\] are not, each once, among the scratch blocks \[3, 15\]",
        )
        here.connect(metadata, direction="write", first_contact=contact(spec, mine, HND))
        there.call("expect_contacts", "unknown to the reader", [15, 3], during=here)
        fails(contact(spec, mine, HND, seed=6), "ValueError: unknown to the reader")
        there.call("expect_contacts", HND, None)
        fails(contact(spec, mine, HND, seed=7), "it expects no first contact")


def test_a_silent_target_costs_the_deadline(here: Connector) -> None:
    spec = Spec("here", tokens=32)
    mine = spec.arrays(1)
    publish(here, spec, mine)
    with running(Spec("there", engine="decode")) as (there,):
        there.call("expect_contacts", HND, [15, 3])
        metadata = there.call("metadata")
        here.connect(metadata, direction="write", first_contact=contact(spec, mine, HND))
        there.signal(signal.SIGSTOP)
        with pytest.raises((DeadlinePassed, PeerLost)):
            here.connect(metadata, direction="write", first_contact=contact(spec, mine, HND, seed=6, deadline=1.0))
        there.signal(signal.SIGCONT)
        here.connect(metadata, direction="write", first_contact=contact(spec, mine, HND, seed=7))


def test_what_cannot_be_is_refused(here: Connector) -> None:
    spec = Spec("here", tokens=32)
    mine = spec.arrays(1)
    publish(here, spec, mine)
    with running(Spec("there", engine="decode")) as (there,):
        metadata = there.call("metadata")
        with pytest.raises(Unsupported, match="or with 'write' and a writer"):
            here.connect(metadata, direction="read", first_contact=contact(spec, mine, HND))
        with pytest.raises(Unsupported, match="or with 'write' and a writer"):
            here.connect(metadata, direction=None, first_contact=contact(spec, mine, HND))
        older = wire.encode(replace(wire.decode(metadata), notices=2))
        with pytest.raises(Unsupported, match="did not announce that it answers first contacts"):
            here.connect(older, direction="write", first_contact=contact(spec, mine, HND))


class Named:
    """As much of a peer as an answer looks at."""

    def __init__(self, layout: kvr.RankLayout, name: str = "writer") -> None:
        self.layout, self.name = layout, name


def test_hostile_questions_are_answered_and_cost_nothing() -> None:
    page = kvr.PageFormat(HND, h=2, n=4, d=8, dtype="i16")
    segment = kvr.Segment(kvr.Region(1 << 20, 8 * page.page_bytes), page, pages=8)
    layout = kvr.RankLayout(engine="e", layers=[kvr.Layer("layers.0", [segment], totals={"h": 2})])
    looked: list[int] = []

    def read(layer: str, number: int) -> dict[str, np.ndarray]:
        looked.append(number)
        return {"k": np.zeros((4, 2, 8), np.uint16), "v": np.zeros((4, 2, 8), np.uint16)}

    meetings = Meetings()
    meetings.scratch = Scratch([kvr.Blocks([5, 6])], read, None)
    peer: Any = Named(layout)

    def ask(id: str, blocks: Any, tokens: tuple[int, int] = (0, 4), takes: Any = None) -> Found:
        return meetings.answer(layout, peer, Marked(id, 1, tokens, blocks, takes))

    for number, (blocks, tokens, takes) in enumerate(
        [
            (told_blocks([kvr.Blocks([5] * 1000)]), (0, 4), None),
            (told_blocks([kvr.Blocks([4])]), (0, 4), None),
            ([(0, b"\xff\xff\xff\xff")], (0, 4), None),
            ([(0, b"\x05\x00\x00")], (0, 4), None),
            ([(0, b"")], (0, 4), None),
            ([], (0, 4), None),
            (told_blocks([kvr.Blocks([5])] * 3), (0, 4), None),
            (told_blocks([kvr.Blocks([5])]), (4, 4), None),
            (told_blocks([kvr.Blocks([5])]), (5, 4), None),
        ]
    ):
        answer = ask(str(number), blocks, tokens, takes)
        assert answer.text
        assert not answer.wrong
    assert looked == []
    empty: list[tuple[int, tuple[int, int], Any]] = [
        (0, (4, 8), None),
        (2**62, (0, 2**62), None),
        (0, (0, 4), []),
        (0, (0, 4), [("layers.0", [("h", 2**62, 2**62 + 1)], True)]),
        (0, (0, 4), [("layers.0", [("h", 2, 1)], False)] * 3),
        (0, (0, 4), [("other", [], True)]),
    ]
    for number, (first, tokens, takes) in enumerate(empty):
        answer = ask(f"empty {number}", told_blocks([kvr.Blocks([5], first)]), tokens, takes)
        assert "covers no element" in answer.text
    # What was answered is not looked at again.
    looked.clear()
    answer = ask("same", told_blocks([kvr.Blocks([5])]))
    assert answer.wrong
    assert ask("same", told_blocks([kvr.Blocks([5])])) is answer
    assert looked == [5]
    # Answers nobody asked for are dropped.
    meetings.hear(Found("stray", 1, 1, False, ""))
    assert meetings.answered("stray") is None
