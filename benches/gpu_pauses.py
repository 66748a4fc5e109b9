"""What the host needs for a chunk at once and after a pause, and what two processes on one GPU do to each other.

    python -m benches.gpu_pauses

Microseconds, medians. `plan and message`: pairing and chunks of a request of 1 GiB, its message encoded and decoded;
`launch`: table and kernel of a gather of 128 MiB, until the call returns. A pause is spent in a loop that does nothing,
or asleep. Then gathers by one process and by two at a time, each with some under way.
"""

from __future__ import annotations

import multiprocessing as mp
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import kvreshard as kvr
from benches.gpu_ranks import HEADS, LAYERS, SIZE, SLOTS
from kvreshard.kernels import Mover, mover
from kvreshard.nixl import control
from kvreshard.nixl.parcels import blocks, size
from kvreshard.nixl.staging import Area, Fence, Size

PAGES, TOKENS, SLOT = 512, 16, 128 << 20
TABLE = 1 << 20


class Sender:
    """Pages on a device, a ring of slots beside them, and the chunks of a request for all of them."""

    def __init__(self, device: int = 0) -> None:
        form = kvr.PageFormat(SLOTS, h=HEADS, n=TOKENS, d=SIZE, dtype="bf16")
        where = torch.device("cuda", device)
        shape = (PAGES, form.page_bytes)
        self.caches = [torch.zeros(shape, dtype=torch.uint8, device=where) for _ in range(LAYERS)]

        def rank(engine: str, bases: list[int]) -> kvr.RankLayout:
            regions = [kvr.Region(base, PAGES * form.page_bytes, device, "VRAM") for base in bases]
            layers = [
                kvr.Layer(f"layers.{at}", [kvr.Segment(region, form, pages=PAGES)], totals={"h": HEADS})
                for at, region in enumerate(regions)
            ]
            return kvr.RankLayout(engine=engine, layers=layers)

        there = rank("decode", [1 << 44 | layer << 32 for layer in range(LAYERS)])
        self.plan = kvr.plan(there, rank("prefill", [cache.data_ptr() for cache in self.caches]))
        order = np.random.default_rng(1).permutation(PAGES)
        self.request = kvr.Request((0, PAGES * TOKENS), [kvr.Blocks(order)], [kvr.Blocks(order[::-1])])
        self.tiles = self.plan.packed_tiles("remote")
        self.chunks = self.plan.pair(self.request).chunks(self.tiles, SLOT)
        self.mover: Mover = mover(self.tiles, self.caches)
        count = len(self.chunks)
        ring = torch.empty(count * SLOT, dtype=torch.uint8, device=where)
        pinned = torch.empty(count * TABLE, dtype=torch.uint8, pin_memory=True)
        region = kvr.Region(ring.data_ptr(), ring.numel(), device, "VRAM")
        tables = pinned, torch.empty_like(pinned, device=where)
        stream = torch.cuda.Stream(device=device)
        self.area = Area(Size(count * SLOT, SLOT), region, ring.data_ptr(), ring, stream, tables)
        for at in range(2 * count):
            self.gather(at).wait()

    def gather(self, number: int) -> Fence:
        """Launches a chunk's."""
        at = number % len(self.chunks)
        return self.area.move(self.mover, self.chunks[at], at, gather=True)

    def message(self) -> None:
        """Plans the request and tells it to nobody."""
        chunks = self.plan.pair(self.request).chunks(self.tiles, SLOT)
        bytes, chunk = size(chunks)
        told = control.Parcel(
            name="parcel",
            id="request",
            gather=True,
            zero=False,
            tokens=self.request.tokens,
            more=False,
            local=blocks(self.request.local),
            remote=blocks(self.request.remote),
            layers=None,
            takes=None,
            limit=SLOT,
            bytes=bytes,
            chunk=chunk,
            digest=self.plan.digest,
        )
        assert control.decode(control.encode(told)) == told


def spin(seconds: float) -> None:
    """Does nothing, busily."""
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        pass


def pauses(sender: Sender, repeats: int = 12) -> None:
    """The first table."""
    before: dict[str, Callable[[], None]] = {
        "at once": lambda: None,
        "after 1 ms in a loop": lambda: spin(1e-3),
        "after 50 ms in a loop": lambda: spin(50e-3),
        "after 50 ms asleep": lambda: time.sleep(50e-3),
    }
    print(f"{'':24s} plan and message  launch")
    for name, pause in before.items():
        plans, launches = [], []
        for _ in range(repeats):
            pause()
            begun = time.perf_counter()
            sender.message()
            plans.append(time.perf_counter() - begun)
        for number in range(repeats):
            pause()
            begun = time.perf_counter()
            fence = sender.gather(number)
            launches.append(time.perf_counter() - begun)
            fence.wait()
        print(f"{name:24s} {statistics.median(plans) * 1e6:16.0f} {statistics.median(launches) * 1e6:7.0f}", flush=True)


def loop(depth: int, ready: Any, go: Any, stop: Any, told: Any) -> None:
    """A process: gathers, `depth` under way, as long as it may; tells how long one took and until its end was seen."""
    sender = Sender()
    under_way: list[tuple[float, Fence]] = []
    times: list[float] = []
    ready.set()
    go.wait()
    begun = time.perf_counter()
    while not stop.is_set():
        under_way.append((time.perf_counter(), sender.gather(len(times) + len(under_way))))
        while len(under_way) >= depth:
            if under_way[0][1].over:
                times.append(time.perf_counter() - under_way.pop(0)[0])
    told.put(((time.perf_counter() - begun) / len(times), statistics.median(times)))


def together(seconds: float = 1.0) -> None:
    """The second table."""
    context = mp.get_context("spawn")
    print(f"\n{'processes on one GPU':24s} gathers under way  us each  us until seen")
    for count in (1, 2):
        for depth in (1, 4):
            go, stop, told = context.Event(), context.Event(), context.Queue()
            ready = [context.Event() for _ in range(count)]
            made = [context.Process(target=loop, args=(depth, one, go, stop, told)) for one in ready]
            for process in made:
                process.start()
            for one in ready:
                one.wait()
            go.set()
            time.sleep(seconds)
            stop.set()
            found = [told.get() for _ in made]
            for process in made:
                process.join()
            each, seen = (", ".join(f"{times[at] * 1e6:.0f}" for times in found) for at in (0, 1))
            print(f"{count:24d} {depth:17d} {each:>8s} {seen:>14s}", flush=True)


def main() -> None:
    """Prints both."""
    if not torch.cuda.is_available():
        print("no CUDA device: nothing measured")
        return
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, kvreshard {kvr.__version__}\n")
    pauses(Sender())
    torch.cuda.empty_cache()
    together()


if __name__ == "__main__":
    main()
