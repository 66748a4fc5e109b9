"""Attributes that are made when first asked for."""

from __future__ import annotations

import os
import threading
import time

import pytest

from tests.vllm.conftest import NEEDS_VLLM
from tests.vllm.harness import set_environment

if not os.environ.get("KVRESHARD_TEST_VLLM"):
    pytest.skip(f"KVRESHARD_TEST_VLLM is not {NEEDS_VLLM}", allow_module_level=True)
set_environment()

from kvreshard.vllm.state import FirstUse  # noqa: E402  (vLLM reads the environment when it is imported)


def _slowly() -> list[int]:
    time.sleep(0.05)
    return []


class Worker:
    """Has state, and no constructor that makes it."""

    jobs = FirstUse(_slowly)


def test_all_threads_get_the_same() -> None:
    """Also those that ask while it is being made: what one notes the others see."""
    worker = Worker()
    threads = [threading.Thread(target=lambda at=at: worker.jobs.append(at)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(worker.jobs) == list(range(8))


def test_each_object_has_its_own() -> None:
    """And one that is assigned stays."""
    first, second = Worker(), Worker()
    first.jobs.append(1)
    assert second.jobs == []
    second.jobs = [2]
    assert (first.jobs, second.jobs) == ([1], [2])
