"""The examples that need no NIXL run, and say what they are to say."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def output(name: str) -> str:
    done = subprocess.run([sys.executable, EXAMPLES / name], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_engines_are_planned() -> None:
    lines = output("plan_two_engines.py").splitlines()
    assert len(lines) == 4
    assert lines[3] == ("decode rank 3 reads from prefill rank 1: 8 runs a page of 8,192 bytes, 8 rows, 56 ids")


def test_a_writer_is_probed() -> None:
    right, wrong, found = output("probe_writer.py").splitlines()
    assert right.startswith("k[n h d] v[n h d]: confirmed with ")
    assert "has it at byte 2048" in wrong
    assert found == "without being told: k[n h d] v[n h d]"


def test_logits_are_those_of_the_undivided_model() -> None:
    pytest.importorskip("torch")
    assert output("paged_attention.py").startswith("75 tokens handed over in ")


def test_other_bytes_would_give_other_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is handed over matters: without it, or with two heads exchanged, the comparison fails."""
    torch = pytest.importorskip("torch")
    example = runpy.run_path(str(EXAMPLES / "paged_attention.py"))
    names = example["main"].__globals__

    def exchanged(prefill: list[object], decode: list[object], *blocks: list[int]) -> int:
        count: int = example["hand_over"](prefill, decode, *blocks)
        for rank in decode:
            page = rank.memory.view(-1, rank.page.page_bytes // 4)  # type: ignore[attr-defined]
            half = page.shape[1] // 2
            page.copy_(torch.roll(page, half, dims=1))
        return count

    monkeypatch.setitem(names, "hand_over", exchanged)
    with pytest.raises(AssertionError):
        example["main"]()
