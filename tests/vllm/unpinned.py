"""A pytest plugin that leaves the process on all cores: vLLM's CPU platform pins every worker's process to one."""

from __future__ import annotations

import os


def _ignored(pid: int, mask: object) -> None:
    """In the place of `os.sched_setaffinity`."""


os.sched_setaffinity = _ignored
