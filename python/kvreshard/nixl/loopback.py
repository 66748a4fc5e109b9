"""Two processes of this host, to measure what there is no peer for: the cost model's constants, and the ways between
devices.

    python -m kvreshard.nixl.loopback [HERE THERE]     rates between host memory, or two devices, as JSON
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import kvreshard as kvr

from .calibrate import BUFFER, calibrate, time_path
from .connector import Connector
from .errors import TransferError
from .events import Direction
from .peer import Peer

TIMEOUT = 60.0


def calibrate_host(*, repeats: int = 5, devices: tuple[int, int] | None = None) -> kvr.Transport:
    """Starts a process with pages of its own, measures reads and writes with it, and ends it.

    Pages are in host memory, or on two `devices`, perhaps the same: this process's and the other's. The process is
    spawned, so a script that calls this needs the usual `if __name__ == "__main__":`.

    Raises:
        TransferError: The process does not answer, or a transfer failed.
    """
    with other_process(devices) as (here, peer):
        return calibrate(here, peer, repeats=repeats, idle=True)


@contextmanager
def other_process(devices: tuple[int, int] | None) -> Iterator[tuple[Connector, Peer]]:
    """A connector of this process, and its peer in another."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, None if devices is None else devices[1]), daemon=True)
    process.start()
    theirs.close()
    try:
        if not pipe.poll(TIMEOUT):
            raise TransferError(f"calibration: the other process did not answer within {TIMEOUT:.0f} s")
        told = pipe.recv()
        with Connector(f"calibration-{os.getpid()}") as here:
            _publish(here, _pages(1 << 20, None if devices is None else devices[0]))
            yield here, here.connect(told, direction=None)
    except EOFError:
        raise TransferError("calibration: the other process ended") from None
    finally:
        process.terminate()
        process.join()


def _pages(size: int, device: int | None) -> Any:
    if device is None:
        return np.ones(size, np.uint8)
    import torch

    torch.cuda.set_device(device)
    return torch.ones(size, dtype=torch.uint8, device=f"cuda:{device}")


def _publish(connector: Connector, memory: Any) -> None:
    pages = memory.reshape(-1, 1 << 16)
    form = kvr.PageFormat("n c[d]", n=1, d=1 << 16, dtype="u8")
    connector.add_layer("calibration", pages, form)
    connector.publish(engine=connector.name)


def _serve(pipe: Connection, device: int | None) -> None:
    with Connector(f"calibrated-{os.getpid()}") as connector:
        _publish(connector, _pages(4 * BUFFER, device))
        pipe.send(connector.metadata())
        while not pipe.poll(0.0005):
            connector.poll()


def main() -> None:
    """Prints the rates of one pair."""
    devices = (int(sys.argv[1]), int(sys.argv[2])) if len(sys.argv) > 2 else None
    with other_process(devices) as (here, peer):
        both: tuple[Direction, ...] = ("read", "write")
        paths = {direction: time_path(here, peer, direction) for direction in both}
    print(json.dumps({name: [path.bytes_per_second, path.slow, path.said] for name, path in paths.items()}))


if __name__ == "__main__":
    main()
