"""What connects, transfers and goes leaves nothing behind; `make soak-leaks` does the same ten thousand times."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("nixl")

from tests.soak.leaks import Sample, coming_and_going, reconnecting


@pytest.mark.parametrize(("loop", "turns"), [(reconnecting, 300), (coming_and_going, 50)])
def test_what_is_held_levels_off(loop: Callable[[int], list[Sample]], turns: int) -> None:
    """Counts are the same after the first third and at the end; memory grows by less than a page a turn."""
    samples = loop(turns)
    begin, end = samples[len(samples) // 3], samples[-1]
    assert end.turns == turns
    assert (end.handles, end.prepared) == (0, 0)
    for held in ("registered", "peers", "threads", "peer_threads"):
        assert getattr(begin, held) == getattr(end, held), held
    # A garbage collector's whim, but not one a turn.
    for held in ("fds", "peer_fds"):
        assert getattr(end, held) <= getattr(begin, held) + 2, held
    for held in ("resident", "peer_resident"):
        assert getattr(end, held) - getattr(begin, held) < 4 * (end.turns - begin.turns) + 2048, held
