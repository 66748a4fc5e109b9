"""What a connector passes on of what it is given."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("nixl")

from kvreshard.nixl import Connector, rank
from kvreshard.nixl.agent import Agent
from tests.fabric import Fabric, Fake
from tests.pairs import Pair, pages


@pytest.mark.parametrize(
    "given",
    [{}, {"progress_thread": True}, {"telemetry": False}, {"threads": 3}],
    ids=["nothing", "progress_thread", "telemetry", "threads"],
)
def test_an_agent_is_opened_as_it_is_said(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def opened(name: str, **options: Any) -> Agent:
        asked.append((name, options))
        return Agent(Fake(name, Fabric()), owned=True)

    monkeypatch.setattr(rank, "open_agent", opened)
    Connector("here", **given).close(timeout=0)
    Connector(**given).close(timeout=0)
    ((name, options), (made, others)) = asked
    assert name == "here"
    assert made.startswith("kvreshard-")
    assert options == others == {"progress_thread": False, "telemetry": True, "threads": 0, **given}


def test_requests_have_the_connectors_deadline_unless_they_say_another(fabric: Fabric) -> None:
    """Looked at by what they fail with: nothing ends here."""
    pair = Pair(deadline=0.0)
    fabric.held = lambda handle: True
    pair.here.read(pair.peer, pages(1), id="own", strategy="direct", deadline=30)
    pair.here.read(pair.peer, pages(1), id="given", strategy="direct")
    (failed,) = pair.here.poll()
    assert (type(failed).__name__, failed.id) == ("Failed", "given")  # type: ignore[union-attr]
    fabric.held = lambda handle: False
    pair.turns(2)
    pair.close()
