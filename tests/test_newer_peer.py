"""A test pretends to be a newer peer: it says more than this build knows, everywhere, and moves pages all the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

import kvreshard as kvr
from tests import wire_v1
from tests.connector_rank import Spec, publish, request, running, wait

pytest.importorskip("nixl")

from kvreshard.nixl import Connector, MetadataError, control, notices, wire

LATER = {"later": {"nested": [1, 2.5, None, b"bytes"]}, "later still": 2**64 - 1}


def more(value: Any) -> Any:
    """The message with unknown keys in every map whose keys are fields, first and last."""
    if isinstance(value, list):
        return [more(one) for one in value]
    if isinstance(value, dict) and value.keys() & {"engine", "tp", "kind", "notation", "group"}:
        return {"earlier": [], **{key: more(one) for key, one in value.items()}, **LATER}
    return {key: more(one) for key, one in value.items()} if isinstance(value, dict) else value


def newer(data: bytes, **fields: object) -> bytes:
    """A connector's message from a newer build: unknown fields outside and in its layout.

    Its digest covers what version 1 has of it, which is the rule for every build of version 1.
    """
    message = msgspec.msgpack.decode(data)
    message["layout"] = msgspec.msgpack.encode(more(msgspec.msgpack.decode(message["layout"])))
    message.update(fields)
    known = ["magic", "version", "name", "nixl", "layout", "generation", "notices"]
    digested = [*(message[name] for name in known), b"", *([first(message["rings"])] if "rings" in message else [])]
    digest = hashlib.sha256(msgspec.msgpack.encode(digested)).digest()
    return msgspec.msgpack.encode({**LATER, **message, "digest": digest})


def first(rings: list[Any]) -> list[Any]:
    """What version 1 has of rings."""
    version, receive, send = rings[:3]
    return [version, receive[:5], send[:5]]


@pytest.fixture
def here() -> Iterator[Connector]:
    with Connector("here") as connector:
        yield connector


@pytest.mark.parametrize("name", wire_v1.layouts())
def test_layouts_say_more(name: str) -> None:
    layout = wire_v1.layouts()[name]
    message = msgspec.msgpack.decode(layout.to_bytes())
    longer = msgspec.msgpack.encode(more(message))
    assert len(longer) > len(layout.to_bytes()) + 200
    assert kvr.RankLayout.from_bytes(longer) == layout
    tags = kvr.RegionTags.of(layout)
    again = kvr.RegionTags.from_bytes(msgspec.msgpack.encode(more(msgspec.msgpack.decode(tags.to_bytes()))))
    assert again.to_bytes() == tags.to_bytes()
    # A major version is another language: nothing after it is looked at.
    rests: list[Any] = [message[1], {}, None, [LATER]]
    for version in (2, 3, 2**63):
        for rest in rests:
            with pytest.raises(kvr.WireError, match=rf"version {version}\b.*\b1\b") as caught:
                kvr.RankLayout.from_bytes(msgspec.msgpack.encode([version, rest]))
            assert (caught.value.found, caught.value.limit) == (version, 1)


def test_metadata_says_more() -> None:
    for name, expected in wire_v1.metadata().items():
        told = wire.decode(newer(wire.encode(expected), notices=99))
        assert (told.name, told.layout, told.rings, told.notices) == (
            expected.name,
            expected.layout,
            expected.rings,
            99,
        )
        with pytest.raises(MetadataError, match="version 2, this build reads up to 1") as caught:
            wire.decode(newer(wire.encode(expected), version=2))
        assert caught.value.limit == 1, name
    # What a digest does not cover could be changed on the way, but nothing that this build reads.
    damaged = msgspec.msgpack.decode(newer(wire.encode(wire_v1.metadata()["plain"])))
    with pytest.raises(MetadataError, match="damaged"):
        wire.decode(msgspec.msgpack.encode({**damaged, "name": "prefill-1"}))


def test_a_newer_packed_protocol_includes_ours() -> None:
    """Rings of a later version with more to each: what is known of them is read, and version 1 is spoken."""
    data = msgspec.msgpack.decode(wire.encode(wire_v1.metadata()["rings"]))
    version, receive, send = data["rings"]
    told = wire.decode(newer(msgspec.msgpack.encode(data), rings=[version + 1, [*receive, "more"], send, "more"]))
    expected = wire_v1.metadata()["rings"].rings
    assert told.rings is not None
    assert expected is not None
    assert (told.rings.version, told.rings.receive, told.rings.send) == (2, expected.receive, expected.send)


def test_messages_of_tomorrow_are_dropped_and_longer_ones_understood() -> None:
    for message in wire_v1.controls().values():
        # Whoever has more to say says all that is known before it, also what others leave out.
        fields = [message.__struct_config__.tag, *msgspec.structs.astuple(message)]
        assert control.decode(control.PREFIX + msgspec.msgpack.encode([*fields, "later", LATER])) == message
    assert control.decode(control.PREFIX + msgspec.msgpack.encode(["tomorrow", 1, 2])) is None
    for unknown in ((2, 0, "r", 1), (1, 7, "r", 1)):
        assert notices.decode(notices.PREFIX + msgspec.msgpack.encode(unknown)) is None


def test_pages_move_with_a_newer_peer(here: Connector) -> None:
    spec = Spec("here", engine="decode", notation="h n k[d] v[d]", heads=4, tp=(1, 2))
    mine = spec.arrays(1)
    publish(here, spec, mine)
    with running(Spec("there", notation="n h k[d] v[d]", options={"staging": 1 << 20})) as (there,):
        theirs = there.call("pages")
        peer = here.connect(newer(there.call("metadata"), notices=99))
        name = there.call("connect", newer(here.metadata(), notices=99), {"direction": None}, during=here)
        # It says things that this build has never heard of, and goes on.
        for message in (
            control.PREFIX + msgspec.msgpack.encode(["tomorrow", {"a": 1}]),
            notices.PREFIX + msgspec.msgpack.encode((2, 0, "r", 1)),
            b"kvreshard\x07" + bytes(100),
        ):
            here._agent.notify(peer.name, message)
        there.call("expect", "r", {"readers": 1}, during=here)
        here.read(peer, request((0, 21), [7, 2], [0, 15]), id="r")
        wait(here, "Finished")
        assert name == "here"
        for layer in range(2):
            ours = mine[layer].view(np.uint16).reshape(16, 4, 16, 64)
            source = theirs[layer].view(np.uint16).reshape(16, 16, 8, 64)[:, :, 4:8].transpose(0, 2, 1, 3)
            np.testing.assert_array_equal(ours[7], source[0])
            np.testing.assert_array_equal(ours[2, :, :5], source[15, :, :5])
        seen: set[tuple[str, str]] = set()
        while ("Released", "r") not in seen:
            seen |= set(there.call("events", during=here))
            # An answer that is there at once leaves no time for this side's progress.
            here.poll(timeout=0.002)
