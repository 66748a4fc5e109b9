"""`python -m benches.first_contact`: what first contact costs, and digests after it, over NIXL on host memory.

80 layers of one page of 64 KiB (8 heads, 16 tokens, 128 channels, 16 bits) between two processes, head-major here and
token-major there. Each figure is the median of `--rounds`; the marks are looked at every time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

from tests.connector_rank import Spec, publish, request, running
from tests.marked import reader, writer

import kvreshard as kvr
from kvreshard.nixl import Connector, FirstContact

from .table import machine

HERE = Spec("here", engine="decode", layers=80, pages=4, size=128)
THERE = Spec("there", notation="n h k[d] v[d]", layers=80, pages=4, size=128)
ONE = request((0, 16), [1], [2])


def median(rounds: int, work: Callable[[int], Any]) -> float:
    """Milliseconds of the median round; rounds are numbered from 1."""
    took = []
    for number in range(1, rounds + 1):
        start = time.perf_counter()
        work(number)
        took.append(time.perf_counter() - start)
    return 1000 * statistics.median(took)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benches.first_contact")
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    mine = HERE.arrays(1)
    read, write = reader(mine, HERE, HERE.notation), writer(mine, HERE, HERE.notation)
    with running(THERE) as (there,), Connector("here") as here:
        publish(here, HERE, mine)
        there.call("expect_contacts", THERE.notation, [2])
        data = there.call("metadata")

        def reads(number: int) -> None:
            there.call("mark", THERE.notation, [2], number, during=here)
            start = time.perf_counter()
            here.connect(data, first_contact=FirstContact(ONE, read, seed=number))
            contacts.append(1000 * (time.perf_counter() - start))

        contacts: list[float] = []
        whole = median(rounds, reads)
        rows = [
            ("read: marking there", whole - statistics.median(contacts)),
            ("read: connect() with first contact", statistics.median(contacts)),
            (
                "write: connect() with first contact, marking and the answer",
                median(
                    rounds,
                    lambda number: here.connect(
                        data, direction="write", first_contact=FirstContact(ONE, seed=number, write=write)
                    ),
                ),
            ),
        ]
        peer = here.connect(data)
        rows += [
            ("connect() again, without", median(rounds, lambda _: here.connect(data))),
            (
                "digests, 64 samples a component",
                median(rounds, lambda number: here.digests(peer, [kvr.Blocks([1])], (0, 16), seed=number)),
            ),
        ]
    print(f"Machine: {machine()}\n{HERE.layers} layers of {HERE.format.page_bytes} bytes; medians of {rounds}\n")
    for what, milliseconds in rows:
        print(f"{what:62} {milliseconds:8.1f} ms")


if __name__ == "__main__":
    main()
