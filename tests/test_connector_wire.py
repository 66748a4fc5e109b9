"""Metadata and notices from peers that cannot be trusted to be well or well-meaning."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

import kvreshard as kvr
from tests.connector_rank import Spec, publish

pytest.importorskip("nixl")

from kvreshard.nixl import (
    Arrived,
    Connector,
    LeaseEnded,
    MetadataError,
    Released,
    TransferError,
    control,
    issue,
    notices,
    wire,
)
from kvreshard.nixl.notices import Kind, Ledger, Notice

SPEC = Spec("there", layers=1, pages=4)


@pytest.fixture(scope="module")
def data() -> Iterator[bytes]:
    arrays = SPEC.arrays(1)
    with Connector("there") as there:
        publish(there, SPEC, arrays)
        yield there.metadata()


@pytest.fixture
def here() -> Iterator[Connector]:
    with Connector("here") as connector:
        publish(connector, SPEC, SPEC.arrays(2))
        yield connector


def changed(data: bytes, **fields: object) -> bytes:
    """A message with other fields, its digest right for them."""
    message = msgspec.msgpack.decode(data)
    message.update(fields)
    known = ("magic", "version", "name", "nixl", "layout", "generation", "notices")
    digested = msgspec.msgpack.encode([*(message[name] for name in known), b""])
    return msgspec.msgpack.encode({**message, "digest": hashlib.sha256(digested).digest()})


def test_round_trip(data: bytes) -> None:
    told = wire.decode(data)
    assert told.name == "there"
    assert told.layout.engine == "prefill"
    assert told.generation == told.layout.generation > 0
    assert told.notices == notices.VERSION
    assert wire.decode(wire.encode(told)) == told
    assert wire.decode(changed(data)) == told


def test_every_flipped_bit_is_noticed(data: bytes) -> None:
    """NIXL itself accepts some, and after others it can never load that peer again."""
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        with pytest.raises(MetadataError):
            wire.decode(bytes(flipped))


def test_a_newer_minor_message_with_more_fields_is_read(data: bytes) -> None:
    assert wire.decode(changed(data, later="a field that this build does not know")).name == "there"


@pytest.mark.parametrize(
    "fields",
    [
        {"magic": "something else"},
        {"version": 2},
        {"version": 0},
        {"version": "1"},
        {"name": ""},
        {"name": "x" * 257},
        {"name": 5},
        {"name": "prefill-0\n2026-01-01 ERROR forged"},
        {"name": "\x1b[31mprefill-0"},
        {"name": "prefill-0\u202e"},
        {"nixl": b""},
        {"nixl": "text"},
        {"layout": b""},
        {"generation": -1},
        {"generation": 12345},
        {"notices": -1},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_fields_that_cannot_be_are_refused(data: bytes, fields: dict[str, object]) -> None:
    with pytest.raises(MetadataError) as caught:
        wire.decode(changed(data, **fields))
    assert isinstance(caught.value, kvr.WireError)


def test_texts_of_peers_forge_no_lines() -> None:
    for message in (control.Refused("1", "no\n2026 ERROR \x1b[31mforged"), control.Found("1", 0, 0, True, "no\u202e")):
        told = control.decode(control.encode(message))
        assert isinstance(told, control.Refused | control.Found)
        assert told.text.isprintable()
        assert told.text.startswith("no\\")


def test_garbage_is_refused_with_a_typed_error(data: bytes) -> None:
    rng = np.random.default_rng(1)
    hostile = [b"", b"\xc1", b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\x80", rng.bytes(1000)]
    hostile += [data[:cut] for cut in range(0, len(data), 97)]
    for garbage in hostile:
        with pytest.raises(MetadataError):
            wire.decode(garbage)
    with pytest.raises(MetadataError) as caught:
        wire.decode(bytes(wire.MAX_MESSAGE + 1))
    assert caught.value.limit == wire.MAX_MESSAGE


def test_a_layout_that_does_not_decode_is_a_typed_error(data: bytes) -> None:
    layout = msgspec.msgpack.decode(data)["layout"]
    for cut in range(1, len(layout), 7):
        with pytest.raises(kvr.Error):
            wire.decode(changed(data, layout=layout[:cut]))


def test_a_target_without_end_is_not_cleared(here: Connector, data: bytes) -> None:
    """What no token fills of a peer's pages is cleared by writes of ours; it says how much that is."""
    peer = here.connect(data, direction="write")
    size = (issue.MAX_CLEARED + 1) * issue.ZEROS
    rows = np.array([[1 << 20, size // 2, 0], [1 << 50, size // 2, 0]], np.uint64)
    with pytest.raises(TransferError, match="pieces of 65536 bytes would have to be cleared on peer there"):
        here._issuer._clear_remote(peer, rows, "DRAM", b"")


def test_bad_nixl_metadata_is_a_typed_error_and_leaves_no_peer(here: Connector, data: bytes) -> None:
    with pytest.raises(MetadataError) as caught:
        here.connect(changed(data, nixl=b"garbage"))
    assert caught.value.code == "NIXL_ERR_MISMATCH"
    with pytest.raises(MetadataError) as caught:
        here.connect(changed(data, name="somebody else"))
    assert (caught.value.field, caught.value.found, caught.value.expected) == ("name", "there", "somebody else")
    with pytest.raises(MetadataError):
        here.connect(here.metadata())
    assert here.connect(data).connected


def test_nixl_metadata_cut_short_is_a_typed_error(here: Connector, data: bytes) -> None:
    with pytest.raises(MetadataError) as caught:
        here.connect(changed(data, nixl=msgspec.msgpack.decode(data)["nixl"][:-20]))
    assert caught.value.code == "NIXL_ERR_NOT_FOUND"


def test_notice_round_trip_and_garbage() -> None:
    notice = Notice(Kind.WRITTEN, "request-1", 3)
    assert notices.decode(notices.encode(notice)) == notice
    body = msgspec.msgpack.encode
    for bad in (b"", body(5), body((2, 0, "a", 1)), body((1, 7, "a", 1)), body((1, 0, "a", 0)), body((1, 0, b"a", 1))):
        assert notices.decode(notices.PREFIX + bad) is None
    assert notices.decode(notices.PREFIX + body((1, 0, "a" * 2000, 1))) is None
    assert notices.decode(notices.PREFIX + body((1, 0, "a" * 5000, 1))) is None


def read_by(ledger: Ledger, sender: str, id: str, senders: int = 1, kind: Kind = Kind.READ) -> None:
    assert ledger.hear(sender, notices.encode(Notice(kind, id, senders)))


def test_distinct_senders_are_counted() -> None:
    ledger = Ledger()
    ledger.expect(Kind.READ, "r", 2, None)
    for sender in ("a", "a"):
        read_by(ledger, sender, "r", 2)
    assert ledger.events == []
    read_by(ledger, "b", "r", 2)
    read_by(ledger, "b", "r", 2)
    assert ledger.events == [Released("r", ("a", "b"))]
    assert ledger.awaited == ()


@pytest.mark.parametrize("order", list(itertools.permutations(["expect", "a", "b"])))
def test_any_order(order: tuple[str, ...]) -> None:
    ledger = Ledger()
    for step in order:
        if step == "expect":
            ledger.expect(Kind.READ, "r", 2, None)
        else:
            read_by(ledger, step, "r", 2)
    (event,) = ledger.events
    assert isinstance(event, Released)
    assert set(event.readers) == {"a", "b"}


def test_the_larger_count_wins_since_early_release_corrupts() -> None:
    ledger = Ledger()
    ledger.expect(Kind.READ, "r", 1, None)
    read_by(ledger, "a", "r", 2)
    assert ledger.events == []
    read_by(ledger, "b", "r", 1)
    assert ledger.events == [Released("r", ("a", "b"))]


def test_without_a_count_the_notices_tell_it() -> None:
    ledger = Ledger()
    ledger.expect(Kind.READ, "r", None, None)
    assert ledger.events == []
    read_by(ledger, "a", "r", 2)
    read_by(ledger, "b", "r", 2)
    assert ledger.events == [Released("r", ("a", "b"))]


def test_no_readers_is_released_at_once() -> None:
    ledger = Ledger()
    ledger.expect(Kind.READ, "r", 0, None)
    assert ledger.events == [Released("r", ())]


def test_readers_and_writers_of_one_id_are_apart() -> None:
    ledger = Ledger()
    ledger.expect(Kind.WRITTEN, "r", 1, None)
    read_by(ledger, "a", "r")
    assert ledger.events == []
    read_by(ledger, "a", "r", kind=Kind.WRITTEN)
    assert ledger.events == [Arrived("r", ("a",))]


def test_a_late_duplicate_does_not_count_for_the_next_use_of_an_id() -> None:
    ledger = Ledger()
    ledger.expect(Kind.READ, "r", 1, None)
    read_by(ledger, "a", "r")
    read_by(ledger, "a", "r")
    ledger.expect(Kind.READ, "r", 1, None)
    assert ledger.events == [Released("r", ("a",))]
    assert ledger.awaited == ("r",)


def test_lease() -> None:
    ledger = Ledger()
    ledger.expect(Kind.READ, "r", 2, 10.0)
    read_by(ledger, "a", "r", 2)
    ledger.expire(9.9)
    assert ledger.events == []
    ledger.expire(10.0)
    assert ledger.events == [LeaseEnded("r", ("a",), 2)]
    read_by(ledger, "b", "r", 2)
    assert len(ledger.events) == 1


def test_what_strangers_send_is_bounded() -> None:
    ledger = Ledger()
    for number in range(notices.MAX_EARLY + 100):
        read_by(ledger, "a", str(number))
    assert len(ledger._early) == notices.MAX_EARLY
    assert not ledger.hear("a", b"not ours")
    assert ledger.hear("a", notices.PREFIX + b"ours, but garbage")


def test_expectations_are_checked(here: Connector) -> None:
    here.expect("r", readers=1)
    for id in ("r", "", "x" * 1025):
        with pytest.raises(TransferError):
            here.expect(id)
    with pytest.raises(TransferError):
        here.expect("s", readers=1, writers=1)
    with pytest.raises(TransferError):
        here.expect("s", readers=-1)
    assert here.forget("r")
    assert not here.forget("r")
    here.expect("lease", readers=1, lease=0.01)
    assert here.poll(timeout=5) == [LeaseEnded("lease", (), 1)]
