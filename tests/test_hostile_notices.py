"""Messages of a peer that means no good, into a connector that is at work: none raises, and it goes on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import kvreshard as kvr
from tests import wire_v1
from tests.connector_rank import Spec, publish, request, wait
from tests.marked import reader

pytest.importorskip("nixl")

from kvreshard.nixl import Connector, control

ODD: list[Any] = [0, 1, -1, 2**62, 2**63, 2**64 - 1, None, "", [], b"", True, 1.5, float("nan"), "r", "layers.0"]
ODD += [[0, 1], [2**62, 2**62], [[0, b"\x03\x00\x00\x00"]], {"a": 1}, "\n", "x" * 5000, b"\xff" * 4001]


def hostile(messages: list[bytes], rng: random.Random) -> bytes:
    """A message with bytes changed, cut off or added, or with odd fields."""
    message = bytearray(rng.choice(messages))
    for _ in range(rng.randint(1, 4)):
        way = rng.random()
        if way < 0.4:
            message[rng.randrange(len(message))] = rng.randrange(256)
        elif way < 0.5:
            del message[rng.randrange(1, len(message) + 1) :]
        elif way < 0.6:
            message += rng.randbytes(rng.randint(1, 20))
        else:
            try:
                fields = msgspec.msgpack.decode(bytes(message[len(control.PREFIX) :]))
            except msgspec.MsgspecError:
                continue
            if isinstance(fields, list) and fields:
                fields[rng.randrange(len(fields))] = rng.choice(ODD)
                message[len(control.PREFIX) :] = msgspec.msgpack.encode(fields)
    return bytes(message)


@pytest.fixture
def pair() -> Iterator[tuple[Connector, Connector]]:
    with Connector("here", staging=1 << 20) as here, Connector("there", staging=1 << 20) as there:
        yield here, there


@pytest.mark.parametrize("seed", range(3))
def test_nothing_that_a_peer_says_is_raised(pair: tuple[Connector, Connector], seed: int) -> None:
    here, there = pair
    spec, other = Spec("here", engine="decode"), Spec("there")
    mine, theirs = spec.arrays(1), other.arrays(2)
    publish(here, spec, mine)
    publish(there, other, theirs)
    peer = here.connect(there.metadata())
    here.expect_contacts([kvr.Blocks([3])], reader(mine, spec, spec.notation))
    here.expect("r", readers=2)
    before = [array.copy() for array in mine]
    messages = [data for name, data in wire_v1.messages().items() if name.startswith(("control/", "notice/"))]
    messages.append(control.encode(control.Hello(there.metadata())))
    rng = random.Random(seed)
    for number in range(10_000):
        here._hear("there" if number % 3 else "stranger", hostile(messages, rng))
        if number % 50 == 0:
            # Answers are sent, and fill a queue where nobody takes them.
            here.poll()
            there.poll()
    assert all((array == kept).all() for array, kept in zip(mine, before, strict=True)), "a message alone moves nothing"
    # The peer may have introduced itself anew, and is then another one.
    if not peer.connected:
        peer = here.connect(there.metadata())
    here.read(peer, request((0, 16), [1], [2]), id="after", notify=False, strategy="direct")
    with there.serve():
        wait(here, "Finished")
    assert all((array[1] == source[2]).all() for array, source in zip(mine, theirs, strict=True))
