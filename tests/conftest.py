"""What every test that transfers is held to: NIXL posts as many descriptors and bytes as were predicted."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def posted_as_predicted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compares NIXL's telemetry of every handle of this process with what the connector expected of it."""
    if importlib.util.find_spec("nixl") is None:
        yield
        return
    from kvreshard.nixl.agent import Agent
    from kvreshard.nixl.leg import Leg, Stage

    wrong: list[str] = []
    measure = Leg._measure

    def check(leg: Leg, stage: Stage) -> Any:
        found = leg.agent.measured(stage.handle) if _real(leg.agent) else None
        if found is not None and (found.posted, found.bytes) != (stage.posted, stage.bytes):
            wrong.append(f"{found} where {stage.posted} descriptors of {stage.bytes} bytes were predicted")
        return measure(leg, stage)

    def _real(agent: Agent) -> bool:
        return type(agent._nixl).__name__ == "nixl_agent"

    monkeypatch.setattr(Leg, "_measure", check)
    yield
    assert not wrong, "; ".join(wrong)
