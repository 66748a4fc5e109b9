"""A short soak, of the kind that `make soak` runs for ten minutes; and that it would notice."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("nixl")

from tests.soak import worker
from tests.soak.__main__ import soak


def test_random_transfers_under_random_faults() -> None:
    totals = soak(12.0, seed=2026)
    assert totals.problems == []
    assert totals.elements > 0
    assert sum(totals.requests.values()) > 0


def test_pages_that_are_not_what_was_said_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rank that is started writes its pages backwards."""
    monkeypatch.setattr(worker, "_serve", _backwards)
    totals = soak(10.0, seed=1)
    assert any("elements wrong" in text for text in totals.problems), totals.problems


def _backwards(pipe: Any) -> None:
    from kvreshard.demo.memory import Memory

    write = Memory.write

    def turned(memory: Memory, tokens: tuple[int, int], *, backwards: bool = False) -> int:
        return write(memory, tokens, backwards=memory.which == "prefill")

    setattr(Memory, "write", turned)  # noqa: B010
    _serve(pipe)


_serve = worker._serve
