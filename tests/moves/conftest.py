"""Agents of one process, which know each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("nixl")

from tests.fabric import Fabric, connected


@pytest.fixture
def fabric() -> Iterator[Fabric]:
    with connected() as made:
        yield made
