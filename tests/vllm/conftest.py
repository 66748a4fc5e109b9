"""Tests that need vLLM run under `make test-vllm`, which installs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
# Files of tests that need no vLLM.
_ANYWHERE = ("test_formats.py", "test_backends.py", "test_docs.py", "test_harness.py")
NEEDS_VLLM = "set by make test-vllm, which installs vLLM"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what needs vLLM outside `make test-vllm`: the interpreter at hand need not have it."""
    if os.environ.get("KVRESHARD_TEST_VLLM"):
        return
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.path.name not in _ANYWHERE:
            item.add_marker(pytest.mark.skip(reason=f"KVRESHARD_TEST_VLLM is not {NEEDS_VLLM}"))


class Runs:
    """Cases run in processes of their own, a batch at a time; results by case."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=2)
        self._batches: dict[str, Future[list[dict[str, Any]]]] = {}

    def start(self, name: str, cases: list[dict[str, Any]]) -> None:
        """Starts a batch, once."""
        if name not in self._batches:
            self._batches[name] = self._pool.submit(run_cases, cases)

    def result(self, name: str, index: int) -> dict[str, Any]:
        """The result of one case of a batch."""
        return self._batches[name].result()[index]


def run_cases(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs cases in a process of the harness, which ends a case that hangs.

    A case that a process dies in has the verdict `died`, and what the process said last; the next ones have another.
    """
    results: list[dict[str, Any]] = []
    while len(results) < len(cases):
        done = _harness(cases[len(results) :])
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        results += [json.loads(line.removeprefix("RESULT ")) for line in lines]
        if len(results) < len(cases):
            said = f"the harness's process ended with {done.returncode}:\n{done.stderr[-6000:]}"
            results.append({"verdict": "died", "errors": [said], "warnings": []})
    return results


def _harness(cases: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, "-m", "tests.vllm.harness", json.dumps(cases)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="session")
def runs() -> Runs:
    """The batches of this session."""
    return Runs()
