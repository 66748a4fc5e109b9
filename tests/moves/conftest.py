"""Agents of one process, which know each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("nixl")

from kvreshard.nixl.staging import Fence
from tests.fabric import Fabric, connected


@pytest.fixture(autouse=True)
def no_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that are said to be on a device are the host's: where torch is imported, it would look for the device."""
    monkeypatch.setattr(Fence, "now", staticmethod(lambda devices: None))


@pytest.fixture
def fabric() -> Iterator[Fabric]:
    with connected() as made:
        yield made
