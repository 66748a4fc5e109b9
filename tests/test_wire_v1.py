"""Version 1 on the wire is frozen: everything in `tests/cases/v1.toml` is read as what it was, and written the same."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import kvreshard as kvr

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytest.importorskip("nixl")

from kvreshard.nixl import control, notices, wire
from tests import wire_v1

FROZEN: dict[str, list[dict[str, Any]]] = tomllib.loads(wire_v1.V1.read_text(encoding="utf-8"))
MESSAGES = {entry["name"]: bytes.fromhex(entry["hex"].replace("\n", "")) for entry in FROZEN["message"]}


def test_nothing_was_taken_away() -> None:
    """Of what was frozen first; entries may come, none may go."""
    kinds = [name.split("/")[0] for name in MESSAGES]
    assert {kind: kinds.count(kind) for kind in kinds}.items() >= {
        "layout": 9,
        "tags": 9,
        "metadata": 2,
        "notice": 2,
    }.items()
    assert kinds.count("control") >= 12
    assert len(FROZEN["format"]) >= len(kvr.presets()) + 2


@pytest.mark.parametrize("entry", FROZEN["format"], ids=lambda entry: entry["name"])
def test_fingerprints(entry: dict[str, Any]) -> None:
    made = kvr.PageFormat(entry["notation"], extents=entry["extents"], types=entry["types"])
    assert made.fingerprint == entry["fingerprint"]


@pytest.mark.parametrize("name", [name for name in MESSAGES if name.startswith("layout/")])
def test_layouts(name: str) -> None:
    expected = wire_v1.layouts()[name.partition("/")[2]]
    assert kvr.RankLayout.from_bytes(MESSAGES[name]) == expected
    assert expected.to_bytes() == MESSAGES[name]


@pytest.mark.parametrize("name", [name for name in MESSAGES if name.startswith("tags/")])
def test_tags(name: str) -> None:
    layout = wire_v1.layouts()[name.partition("/")[2]]
    tags = kvr.RegionTags.from_bytes(MESSAGES[name])
    assert tags.formats == [segment.format for layer in layout.layers for segment in layer.segments]
    assert tags.layers == [layer.name for layer in layout.layers for _ in layer.segments]
    assert tags.to_bytes() == kvr.RegionTags.of(layout).to_bytes() == MESSAGES[name]


@pytest.mark.parametrize("name", [name for name in MESSAGES if name.startswith("metadata/")])
def test_metadata(name: str) -> None:
    expected = wire_v1.metadata()[name.partition("/")[2]]
    told = wire.decode(MESSAGES[name])
    assert told.digest
    for field in ("name", "nixl", "layout", "generation", "notices", "rings"):
        assert getattr(told, field) == getattr(expected, field), field
    assert wire.encode(expected) == MESSAGES[name]


@pytest.mark.parametrize("name", [name for name in MESSAGES if name.startswith(("notice/", "control/"))])
def test_notices_and_control_messages(name: str) -> None:
    kind, _, what = name.partition("/")
    if kind == "notice":
        note = wire_v1.notes()[what]
        assert notices.decode(MESSAGES[name]) == note
        assert notices.encode(note) == MESSAGES[name]
    else:
        message = wire_v1.controls()[what]
        assert control.is_control(MESSAGES[name])
        assert control.decode(MESSAGES[name]) == message
        assert control.encode(message) == MESSAGES[name]
