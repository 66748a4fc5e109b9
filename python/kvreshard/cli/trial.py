"""What NIXL does on this machine: the plugins that load, and a small transfer with the transports that it took.

`python -m kvreshard.cli.trial` is the transfer as a process of its own: UCX tells at its end which transports it took,
if it was asked before it began, and a transfer that crashes must not take the report with it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import time
from typing import Any

import numpy as np

import kvreshard as kvr

SECONDS = 20
"""For which a transfer may take to arrive."""
PAIRS = ((7, 5), (3, 6), (5, 2))
"""Pages of the reader and where they come from."""


def plugins() -> dict[str, list[str]]:
    """NIXL's plugins and the kinds of memory that each takes; none where its libraries do not load."""
    from nixl._api import nixl_agent, nixl_agent_config

    # A plugin that does not load is told with a traceback each time that it is asked for.
    logging.disable(logging.WARNING)
    try:
        agent = nixl_agent("kvreshard-doctor", nixl_agent_config(backends=[]))
        kinds = {name: agent.get_plugin_mem_types(name) for name in sorted(agent.get_plugin_list())}
    finally:
        logging.disable(logging.NOTSET)
    return {name: sorted(str(kind).removesuffix("_SEG") for kind in found) for name, found in kinds.items()}


def trial() -> dict[str, Any]:
    """The transfer in a process of its own: whether it was right, what is said of it, and `transports`."""
    program = [sys.executable, "-m", "kvreshard.cli.trial"]
    environment = {**os.environ, "UCX_PROTO_INFO": "used"}
    try:
        done = subprocess.run(
            program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, timeout=3 * SECONDS
        )
    except subprocess.TimeoutExpired:
        return {"right": False, "said": f"no end within {3 * SECONDS} s", "transports": []}
    answer = re.search(r"^\{.*\}$", done.stdout, re.MULTILINE)
    if answer is None:
        told = done.stdout.strip().splitlines()
        said = f"ended with {done.returncode}: {told[-1] if told else 'nothing was said'}"
        return {"right": False, "said": said, "transports": []}
    found: dict[str, Any] = json.loads(answer.group())
    return {**found, "transports": transports(done.stdout)}


def transports(said: str) -> list[dict[str, Any]]:
    """What UCX took, from the tables that it prints with `UCX_PROTO_INFO=used`: one entry a row that was used.

    A table has a row for the pair of workers, a row for the operation, a head, and rows of count, range of bytes,
    method and transports::

        | remote memory read by ucp_get*(multi) into host memory from host |
        | Count | Range  | Description |              Config               |
        |     3 | 0..inf | zero-copy   | cma/memory                        |
    """
    found, operation, before = [], "", ""
    for line in said.splitlines():
        cells = [cell.strip() for cell in line.partition("|")[2].rstrip().removesuffix("|").split("|")]
        if cells[0] == "Count":
            operation = before
        elif len(cells) == 4 and cells[0].isdigit():
            if int(cells[0]) > 0:
                entry = {"operation": operation, "times": int(cells[0]), "bytes": cells[1]}
                found.append({**entry, "method": cells[2], "transport": cells[3]})
        elif len(cells) == 1 and cells[0]:
            before = cells[0]
    return found


def transfer() -> dict[str, Any]:
    """Moves three pages between two connectors of this process, and looks whether they arrived."""
    from kvreshard.nixl import Connector, Finished

    page = kvr.PageFormat("h n k[d] v[d]", h=2, n=16, d=64, dtype="bf16")
    pages = [np.zeros((8, page.page_bytes), np.uint8) for _ in range(2)]
    pages[0][:] = np.random.default_rng(1).integers(0, 256, pages[0].shape, dtype=np.uint8)
    with Connector("doctor-prefill") as prefill, Connector("doctor-decode") as decode:
        for side, array in zip((prefill, decode), pages, strict=True):
            side.add_layer("layers.0", array, page, totals={"h": 2})
            side.publish(engine=side.name)
        peer = decode.connect(prefill.metadata())
        here, there = zip(*PAIRS, strict=True)
        decode.read(peer, kvr.Request((0, 48), [kvr.Blocks(here)], [kvr.Blocks(there)]), id="doctor")
        end = time.monotonic() + SECONDS
        while not (events := decode.poll()):
            prefill.poll()
            if time.monotonic() > end:
                return {"right": False, "said": f"no transfer within {SECONDS} s"}
    event = events[0]
    if not isinstance(event, Finished):
        return {"right": False, "said": str(event)}
    right = all((pages[1][here] == pages[0][there]).all() for here, there in PAIRS)
    return {"right": right, "said": f"{event.bytes:,} bytes {'as sent' if right else 'and not as sent'}"}


if __name__ == "__main__":
    try:
        answer = transfer()
    except Exception as error:  # Whatever NIXL raises is the diagnosis.
        answer = {"right": False, "said": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer))
