"""What becomes of a case that hangs, or that ends its process. Needs no vLLM."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.vllm import conftest
from tests.vllm.conftest import ROOT, run_cases

_CASE = json.dumps([{"prefill": {}, "decode": {}}])
_HANG = """
import sys, time
from tests.vllm import harness
harness.CASE_SECONDS = 0.5
harness.run = lambda case: time.sleep(60)
harness.main()
"""


def test_a_case_that_hangs_is_ended() -> None:
    """The process ends, and says where its threads were."""
    done = subprocess.run(
        [sys.executable, "-c", _HANG, _CASE], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Timeout" in done.stderr
    assert "<lambda>" in done.stderr


_NOISE = """
import os, sys
import tests.vllm.harness as harness

sys.argv[1:] = ['[{}]']
harness.Case.read = lambda values: values
harness.run = lambda case: os.write(1, b"sock.c:355 UCX ERROR") and {"verdict": "right"}
harness.main()
"""


def test_what_libraries_print_is_no_result() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _NOISE], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, 'RESULT {"verdict": "right"}\n')
    assert "UCX ERROR" in done.stderr


def test_the_cases_after_a_dead_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies in its second case leaves the result of the first, and another runs the third."""
    asked: list[int] = []

    def harness(cases: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
        asked.append(len(cases))
        right = 'RESULT {"verdict": "right"}\n'
        return subprocess.CompletedProcess([], -11 if len(cases) == 3 else 0, right, "Segmentation fault")

    monkeypatch.setattr(conftest, "_harness", harness)
    results = run_cases([{}, {}, {}])
    assert [result["verdict"] for result in results] == ["right", "died", "right"]
    assert asked == [3, 1]
    assert "-11" in results[1]["errors"][0]
    assert "Segmentation fault" in results[1]["errors"][0]
