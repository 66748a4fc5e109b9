"""Direct, landed and packed transfers in VRAM, from a prefill process to a decode process, every byte checked.

    python benches/gpu_transfers.py [--mib 1024] [--strategies direct,landed,packed]

Prefill has TP 2 and decode TP 4, all ranks of a side in one process with a NIXL agent each, spread over the visible
GPUs: prefill on the first, decode on the last. Pages of 16 tokens, scattered. The bound beside the table is one write
of the same bytes as one descriptor. Needs torch, Triton, nixl, msgspec, numpy and kvreshard; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

import kvreshard as kvr
from kvreshard.nixl import Connector, Failed, Finished

os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")

LAYERS, HEADS, TOKENS, SIZE = 32, 8, 16, 128
PACKED, SLOTS, SHUFFLED = "h n k[d] v[d]", "k[h n d] v[h n d]", "k[h d/8 n d%8] v[h n/8 d n%8]"


def elements(layer: int, pages: int, device: torch.device) -> torch.Tensor:
    """K and V of a layer: int16 [2, heads, pages, tokens, size], the same in both processes."""
    generator = torch.Generator(device=device).manual_seed(1000 + layer)
    shape = (2, HEADS, pages, TOKENS, SIZE)
    return torch.randint(-(2**15), 2**15 - 1, shape, dtype=torch.int16, device=device, generator=generator)


def written(notation: str, of: torch.Tensor) -> torch.Tensor:
    """Pages of `of` ([2, heads, pages, tokens, size]) as int16 [pages, elements], by the formulas of the formats."""
    pages = of.shape[2]
    if notation == PACKED:
        return of.permute(2, 1, 3, 0, 4).reshape(pages, -1)
    if notation == SLOTS:
        return of.permute(2, 0, 1, 3, 4).reshape(pages, -1)
    k = of[0].reshape(-1, pages, TOKENS, SIZE // 8, 8).permute(1, 0, 3, 2, 4).reshape(pages, -1)
    v = of[1].reshape(-1, pages, TOKENS // 8, 8, SIZE).permute(1, 0, 2, 4, 3).reshape(pages, -1)
    return torch.cat([k, v], dim=1)


def orders(pages: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Scattered page ids of decode and prefill."""
    generator = np.random.default_rng(7)
    return generator.permutation(pages).astype(np.int32), generator.permutation(pages).astype(np.int32)


class Side:
    """All ranks of one engine."""

    def __init__(self, name: str, size: int, notation: str, pages: int, device: torch.device) -> None:
        self.size, self.notation, self.pages, self.device = size, notation, pages, device
        self.ranks = []
        self.caches: list[list[torch.Tensor]] = []
        heads = HEADS // size
        form = kvr.PageFormat(notation, h=heads, n=TOKENS, d=SIZE, dtype="bf16")
        for rank in range(size):
            one = Connector(f"{name}-{rank}", staging=256 << 20, slot_bytes=32 << 20, deadline=120.0)
            caches = []
            for layer in range(LAYERS):
                cache = torch.full((pages, form.page_bytes // 2), -1, dtype=torch.int16, device=device)
                one.add_layer(f"layers.{layer}", cache.view(torch.uint8), form, totals={"h": HEADS})
                caches.append(cache)
            one.publish(engine=name, tp=(rank, size))
            self.ranks.append(one)
            self.caches.append(caches)
        torch.cuda.synchronize(device)

    def share(self, rank: int) -> slice:
        """The heads of a rank."""
        heads = HEADS // self.size
        return slice(rank * heads, (rank + 1) * heads)

    def fill(self, ids: np.ndarray[Any, Any]) -> None:
        """Writes every layer's pages at `ids`."""
        at = torch.from_numpy(ids).long().to(self.device)
        for layer in range(LAYERS):
            of = elements(layer, self.pages, self.device)
            for rank in range(self.size):
                self.caches[rank][layer][at] = written(self.notation, of[:, self.share(rank)])
        torch.cuda.synchronize(self.device)

    def wrong(self, ids: np.ndarray[Any, Any]) -> int:
        """Elements of all pages that are not what they should be; clears the pages for the next run."""
        at, count = torch.from_numpy(ids).long().to(self.device), 0
        for layer in range(LAYERS):
            of = elements(layer, self.pages, self.device)
            for rank in range(self.size):
                cache = self.caches[rank][layer]
                count += int((cache[at] != written(self.notation, of[:, self.share(rank)])).sum())
                cache.fill_(-1)
        torch.cuda.synchronize(self.device)
        return count


def prefill(pipe: Connection, notation: str, pages: int) -> None:
    """The prefill process: publishes, connects back, and polls until told to end."""
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    side = Side("prefill", 2, notation, pages, device)
    side.fill(orders(pages)[1])
    pipe.send([rank.metadata() for rank in side.ranks])
    for data in pipe.recv():
        for rank in side.ranks:
            rank.connect(data, direction=None)
    pipe.send("ready")
    while not pipe.poll():
        for rank in side.ranks:
            rank.poll()
    for rank in side.ranks:
        rank.close()


def run(side: Side, sources: list[list[tuple[Any, kvr.Request]]], strategy: str, name: str) -> tuple[float, int]:
    """Seconds until every decode rank has everything, and descriptors posted."""
    torch.cuda.synchronize(side.device)
    start = time.perf_counter()
    for rank, pairs in zip(side.ranks, sources, strict=True):
        rank.read_all(pairs, id=name, strategy=strategy)
    left, posted = set(range(side.size)), 0
    while left:
        for index in list(left):
            for event in side.ranks[index].poll():
                if isinstance(event, Failed):
                    raise event.reason
                if isinstance(event, Finished):
                    left.discard(index)
                    posted += event.posted
    torch.cuda.synchronize(side.device)
    return time.perf_counter() - start, posted


def table(source: str, target: str, arguments: argparse.Namespace) -> None:
    """One pair of formats."""
    page = 2 * HEADS * TOKENS * SIZE * 2
    pages = (arguments.mib << 20) // (LAYERS * page)
    context = mp.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=prefill, args=(theirs, source, pages))
    process.start()
    device = torch.device("cuda", torch.cuda.device_count() - 1)
    torch.cuda.set_device(device)
    side = Side("decode", 4, target, pages, device)
    mine, remote = orders(pages)
    told = pipe.recv()
    pipe.send([rank.metadata() for rank in side.ranks])
    assert pipe.recv() == "ready"
    sources = []
    for index, rank in enumerate(side.ranks):
        peer = rank.connect(told[index * 2 // side.size])
        request = kvr.Request((0, pages * TOKENS), [kvr.Blocks(mine)], [kvr.Blocks(remote)])
        sources.append([(peer, request)])
    total = LAYERS * page * pages
    for strategy in arguments.strategies.split(","):
        times = []
        for turn in range(1 if strategy == "direct" else arguments.repeats):
            seconds, posted = run(side, sources, strategy, f"{strategy}-{turn}")
            wrong = side.wrong(mine)
            times.append(seconds)
            if wrong:
                raise SystemExit(f"{strategy}: {wrong} wrong elements")
        best = sorted(times)[len(times) // 2]
        print(
            f"{source:28s} -> {target:28s} {strategy:7s} posted {posted:7d} "
            f"{best * 1e3:9.2f} ms {total / best / 1e9:8.1f} GB/s  first {times[0] * 1e3:.0f} ms  all bytes right",
            flush=True,
        )
    pipe.send("end")
    process.join(60)
    for rank in side.ranks:
        rank.close()
    torch.cuda.empty_cache()


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--strategies", default="direct,landed,packed")
    arguments = parser.parse_args()
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    print(f"{len(names)} x {names[0]}, torch {torch.__version__}, {arguments.mib} MiB, TP 2 to TP 4", flush=True)
    for source, target in ((SLOTS, SLOTS), (PACKED, SHUFFLED)):
        if source != target:
            # Direct descriptors of 2 bytes are not worth anyone's time.
            arguments.strategies = arguments.strategies.replace("direct,", "")
        table(source, target, arguments)


if __name__ == "__main__":
    main()
