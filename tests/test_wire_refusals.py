"""What the message of a peer may be, and what each refusal of one tells; without NIXL."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import msgspec
import pytest

pytest.importorskip("msgspec")

from kvreshard.nixl import wire
from kvreshard.nixl.errors import MetadataError
from tests import wire_v1
from tests.told import told

GOOD = wire_v1.metadata()["rings"]
FIELDS = ("magic", "version", "name", "nixl", "layout", "generation", "notices", "digest", "rings")


def message(digest: bytes | None = None, **fields: object) -> bytes:
    """A peer's message with other fields, and the digest that is right for them unless another is given."""
    made: dict[str, Any] = msgspec.msgpack.decode(wire.encode(GOOD))
    made.update(fields, digest=b"")
    right = hashlib.sha256(msgspec.msgpack.encode([made[name] for name in FIELDS])).digest()
    return msgspec.msgpack.encode({**made, "digest": right if digest is None else digest})


def test_a_message_is_read_as_it_was_meant() -> None:
    read = wire.decode(message())
    assert replace(read, digest="") == GOOD
    assert read.digest == msgspec.msgpack.decode(wire.encode(GOOD))["digest"].hex()
    assert wire.decode(message(name="x" * wire.MAX_NAME)).name == "x" * wire.MAX_NAME


REFUSED: list[tuple[bytes, str, dict[str, object]]] = [
    (
        message(magic="another"),
        "peer metadata is not a kvreshard message",
        {"field": "magic", "found": "another", "expected": "kvreshard"},
    ),
    (
        message(version=2),
        "peer metadata has version 2, this build reads up to 1",
        {"field": "version", "found": 2, "limit": 1, "remedy": "upgrade this side"},
    ),
    (message(name=""), "peer metadata: Expected `str` of length >= 1 - at `$.name`", {}),
    (message(nixl=b""), "peer metadata has no nixl", {"field": "nixl"}),
    (message(layout=b""), "peer metadata has no layout", {"field": "layout"}),
    (
        message(name="a\nb"),
        "peer metadata: the name has characters that do not print",
        {"field": "name", "found": "'a\\nb'"},
    ),
    (
        message(digest=bytes(32)),
        "peer metadata was damaged on the way: its digest does not match",
        {"field": "digest"},
    ),
    (
        message(generation=9),
        "peer metadata names generation 9, its layout 7",
        {"field": "generation", "found": 9, "expected": 7},
    ),
    (b"\x80", "peer metadata: Object missing required field `magic`", {}),
]


@pytest.mark.parametrize("case", REFUSED, ids=[text[:40].replace(" ", "-") for _, text, _ in REFUSED])
def test_each_refusal_says_what_is_wrong(case: tuple[bytes, str, dict[str, object]]) -> None:
    data, text, facts = case
    if not facts:
        # Of what does not decode, the decoder's words are what was found.
        facts = {"field": "message", "found": text.removeprefix("peer metadata: ")}
    with pytest.raises(MetadataError) as caught:
        wire.decode(data)
    assert told(caught.value) == (text, facts)


def test_a_message_without_a_name_has_none() -> None:
    """The one that a decoder fills in: fields have defaults, so that an older build can leave some out."""
    fields: dict[str, Any] = msgspec.msgpack.decode(message())
    del fields["name"]
    with pytest.raises(MetadataError) as caught:
        wire.decode(msgspec.msgpack.encode(fields))
    assert told(caught.value) == ("peer metadata has no name", {"field": "name"})


def test_the_longest_message_is_read_and_a_longer_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    data = message()
    monkeypatch.setattr(wire, "MAX_MESSAGE", len(data))
    assert wire.decode(data).name == GOOD.name
    monkeypatch.setattr(wire, "MAX_MESSAGE", len(data) - 1)
    with pytest.raises(MetadataError) as caught:
        wire.decode(data)
    text = f"peer metadata has {len(data)} bytes, over the limit of {len(data) - 1}"
    assert told(caught.value) == (text, {"field": "message", "found": len(data), "limit": len(data) - 1})
