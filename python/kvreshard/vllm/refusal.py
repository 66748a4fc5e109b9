"""Why a peer is not served."""

from __future__ import annotations

import kvreshard as kvr


def refusal(text: str, *, field: str, remedy: str) -> kvr.IncompatibleLayout:
    """An error for a peer that cannot be planned for and must not be guessed at."""
    problem = kvr.IncompatibleLayout(f"{text}; {remedy}")
    problem.field = field
    problem.remedy = remedy
    return problem
