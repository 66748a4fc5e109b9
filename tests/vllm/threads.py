"""Uses one NIXL agent from three threads, as vLLM's push worker does, and shows which processes survive that.

`python -m tests.vllm.threads [SECONDS]` runs a process for each way of making agents: with and without NIXL's progress
thread (vLLM's agents have it, those of these tests do not), and for each lock that NIXL offers. It prints a line for
each: the signal that ended it, or how much was done.

The threads do what vLLM 0.33's do: the writer polls for news and posts writes, the engine's thread looks whether they
are done and sends heartbeats, and the handshakes' thread loads agents and prepares lists. In each process two ranks,
three threads each, write to one another, and meet a third one in another process again and again.
"""

from __future__ import annotations

import itertools
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.vllm.conftest import ROOT

_PAGES, _PAGE = 64, 4096
_LOCKS = ("NONE", "RW", "STRICT")


class Rank:
    """An agent, its memory, and the three threads that use it."""

    def __init__(self, name: str, *, progress: bool, lock: str) -> None:
        from nixl import nixl_agent, nixl_agent_config, nixl_thread_sync_t

        sync = nixl_thread_sync_t[f"NIXL_THREAD_SYNC_{lock}"]
        config = nixl_agent_config(enable_prog_thread=progress, sync_mode=sync, capture_telemetry=True)
        self.agent: Any = nixl_agent(name, config)
        self.memory = np.zeros(_PAGES * _PAGE, dtype=np.uint8)
        self.agent.register_memory([(self.memory.ctypes.data, self.memory.nbytes, 0, "")], "DRAM")
        self.rows = np.array([[self.memory.ctypes.data, _PAGE, 0, _PAGE, _PAGES]], dtype=np.uint64)
        self.posted: queue.Queue[Any] = queue.Queue()
        self.done = self.heard = self.met = 0

    def meet(self, other: Rank) -> None:
        """Prepares writes to another rank."""
        self.peer = self.agent.add_remote_agent(other.agent.get_agent_metadata()).decode()
        self.here = self.agent.prep_xfer_dlist("NIXL_INIT_AGENT", self.rows, mem_type="DRAM")
        self.there = self.agent.prep_xfer_dlist(self.peer, other.rows, mem_type="DRAM")

    def write(self) -> None:
        """The writer's part."""
        self.heard += sum(map(len, self.agent.get_new_notifs().values()))
        if self.posted.qsize() >= 16:
            return
        ids = np.arange(0, _PAGES, 2, dtype=np.int32)
        handle = self.agent.make_prepped_xfer("WRITE", self.here, ids, self.there, ids, notif_msg=b"done:1")
        self.agent.transfer(handle)
        self.posted.put(handle)

    def look(self) -> None:
        """The part of the engine's thread."""
        self.agent.send_notif(self.peer, notif_msg=b"HB:request")
        for _ in range(self.posted.qsize()):
            handle = self.posted.get()
            if self.agent.check_xfer_state(handle) == "DONE":
                self.agent.get_xfer_telemetry(handle)
                self.agent.release_xfer_handle(handle)
                self.done += 1
            else:
                self.posted.put(handle)
        time.sleep(0.0005)

    def answer(self, parent: int) -> None:
        """The part of a rank that is met."""
        while os.getppid() == parent:
            self.agent.get_new_notifs()
            time.sleep(0.0005)

    def handshake(self, data: bytes) -> None:
        """The part of the handshakes' thread: an agent that comes and goes."""
        name = self.agent.add_remote_agent(data)
        self.agent.release_dlist_handle(self.agent.prep_xfer_dlist("NIXL_INIT_AGENT", self.rows, mem_type="DRAM"))
        self.agent.remove_remote_agent(name.decode())
        self.met += 1
        time.sleep(0.002)


def guest() -> None:
    """The process of a rank that is met, for as long as its parent lives."""
    rank = Rank("guest", progress=False, lock="NONE")
    print("met", rank.agent.get_agent_metadata().hex(), flush=True)
    rank.answer(os.getppid())


def child(progress: bool, lock: str, seconds: float) -> None:
    """One process."""
    ranks = [Rank(f"rank-{index}", progress=progress, lock=lock) for index in range(2)]
    command = [sys.executable, "-m", "tests.vllm.threads", "--guest"]
    guest = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert guest.stdout is not None
    data = bytes.fromhex(next(line for line in guest.stdout if line.startswith("met ")).split()[1])
    ranks[0].meet(ranks[1])
    ranks[1].meet(ranks[0])
    until = time.monotonic() + seconds

    def repeat(act: Callable[[], None]) -> None:
        while time.monotonic() < until:
            act()

    acts = [act for rank in ranks for act in (rank.write, rank.look, lambda rank=rank: rank.handshake(data))]
    threads = [threading.Thread(target=repeat, args=(act,), daemon=True) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 20)
    stuck = sum(thread.is_alive() for thread in threads)
    counts = [sum(getattr(rank, name) for rank in ranks) for name in ("done", "heard", "met")]
    print(f"{counts[0]} writes, {counts[1]} notices, {counts[2]} handshakes" + (f", {stuck} stuck" if stuck else ""))
    sys.stdout.flush()
    os._exit(1 if stuck else 0)


def main() -> None:
    """Runs every way, and prints how each ended."""
    seconds = sys.argv[1] if len(sys.argv) > 1 else "20"
    for progress, lock in itertools.product((True, False), _LOCKS):
        found = subprocess.run(
            [sys.executable, "-m", "tests.vllm.threads", "--child", str(int(progress)), lock, seconds],
            cwd=ROOT,
            env={"UCX_LOG_LEVEL": "fatal", "NIXL_LOG_LEVEL": "FATAL", **os.environ},
            capture_output=True,
            text=True,
            timeout=float(seconds) + 120,
            check=False,
        )
        code = found.returncode
        said = (found.stdout or found.stderr).strip().splitlines()
        outcome = signal.Signals(-code).name if code < 0 else said[-1] if said else f"ended with {code}"
        print(f"progress thread {'on' if progress else 'off'}, lock {lock}: {outcome}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--guest"]:
        guest()
    elif sys.argv[1:2] == ["--child"]:
        child(sys.argv[2] == "1", sys.argv[3], float(sys.argv[4]))
    else:
        main()
