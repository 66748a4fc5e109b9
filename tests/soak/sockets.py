"""What NIXL keeps open of a peer that was loaded and removed, with no code of this project in between.

python -m tests.soak.sockets --rounds 30
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np


def _agent(name: str) -> tuple[Any, Any]:
    import nixl

    agent = nixl.nixl_agent(name, nixl.nixl_agent_config(enable_prog_thread=False, backends=["UCX"]))
    memory = np.zeros(1 << 16, np.uint8)
    agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
    return agent, memory


def _serve(pipe: Connection) -> None:
    agent, memory = _agent("there")
    pipe.send((agent.get_agent_metadata(), memory.ctypes.data))
    while not pipe.poll(0.0005):
        agent.get_new_notifs()


def _open(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def main() -> None:
    """Prints the open descriptors of both processes, before and after."""
    parser = argparse.ArgumentParser(description="Descriptors that NIXL leaves open.")
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    peer = context.Process(target=_serve, args=(theirs,), daemon=True)
    peer.start()
    assert peer.pid is not None
    metadata, address = pipe.recv()
    agent, memory = _agent("here")
    before = _open(os.getpid()), _open(peer.pid)
    for _ in range(rounds):
        agent.add_remote_agent(metadata)
        here, there = (
            agent.get_xfer_descs(np.array([[at, 4096, 0]], np.uint64), "DRAM") for at in (memory.ctypes.data, address)
        )
        handle = agent.initialize_xfer("READ", here, there, "there")
        state = agent.transfer(handle)
        while state != "DONE":
            state = agent.check_xfer_state(handle)
        agent.release_xfer_handle(handle)
        agent.remove_remote_agent("there")
        for _ in range(20):
            agent.get_new_notifs()
            time.sleep(0.0005)
    after = _open(os.getpid()), _open(peer.pid)
    print(f"{rounds} rounds: {before[0]} -> {after[0]} descriptors here, {before[1]} -> {after[1]} there")
    pipe.send(None)
    peer.join()


if __name__ == "__main__":
    main()
