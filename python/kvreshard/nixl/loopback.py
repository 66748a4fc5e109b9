"""The cost model's constants for two processes of this host, where there is no peer to measure them with."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.connection import Connection

import numpy as np
import numpy.typing as npt

import kvreshard as kvr

from .calibrate import BUFFER, calibrate
from .connector import Connector
from .errors import TransferError

TIMEOUT = 60.0


def calibrate_host(*, repeats: int = 5) -> kvr.Transport:
    """Starts a process with pages of its own in host memory, measures reads and writes with it, and ends it.

    The process is spawned, so a script that calls this needs the usual `if __name__ == "__main__":`.

    Raises:
        TransferError: The process does not answer, or a transfer failed.
    """
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    peer = context.Process(target=_serve, args=(theirs,), daemon=True)
    peer.start()
    theirs.close()
    try:
        if not pipe.poll(TIMEOUT):
            raise TransferError(f"calibration: the other process did not answer within {TIMEOUT:.0f} s")
        with Connector(f"calibration-{os.getpid()}") as here:
            _publish(here, np.zeros(1 << 20, np.uint8))
            return calibrate(here, here.connect(pipe.recv(), direction=None), repeats=repeats, idle=True)
    except EOFError:
        raise TransferError("calibration: the other process ended") from None
    finally:
        peer.terminate()
        peer.join()


def _publish(connector: Connector, memory: npt.NDArray[np.uint8]) -> None:
    pages = memory.reshape(-1, 1 << 16)
    form = kvr.PageFormat("n c[d]", n=1, d=1 << 16, dtype="u8")
    connector.add_layer("calibration", pages, form)
    connector.publish(engine=connector.name)


def _serve(pipe: Connection) -> None:
    with Connector(f"calibrated-{os.getpid()}") as connector:
        _publish(connector, np.ones(4 * BUFFER, np.uint8))
        pipe.send(connector.metadata())
        while not pipe.poll(0.0005):
            connector.poll()
