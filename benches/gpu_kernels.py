"""Gather and scatter kernels on a GPU, as shares of a device-to-device copy of as many bytes.

    python benches/gpu_kernels.py                    the table, with every byte of every row checked
    python benches/gpu_kernels.py --tune             which configuration is fastest for each row
    python benches/gpu_kernels.py --json FILE        the numbers as well

Needs torch, Triton, numpy, kvreshard and one GPU; nothing is downloaded. Medians over CUDA events, random data, pages
in random order over 32 layers. A row moves 1 GiB unless --mib says otherwise. GB/s counts bytes read and written.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import triton

import kvreshard as kvr
from kvreshard.kernels.blocks import DEFAULT, Config
from kvreshard.kernels.mover import Mover, Work
from kvreshard.kernels.torch_backend import TorchMover
from kvreshard.kernels.triton_backend import TritonMover

LAYERS = 32
TOKENS = 16
DEVICE = torch.device("cuda", 0)


@dataclass(frozen=True)
class Case:
    """What moves: a page of the source, a page of the destination, and the heads that the destination has a part of."""

    name: str
    source: kvr.PageFormat
    target: kvr.PageFormat
    heads: int
    goal: float


def cases() -> list[Case]:
    """The rows of the table."""
    full = {"h": 8, "n": TOKENS, "d": 128}
    half = {**full, "h": 4}
    tiny = {"h": 64, "n": TOKENS, "d": 8}
    preset = kvr.preset
    packed = preset("packed-hnd", **full)
    straight = [
        Case("whole pages, runs of 64 KiB", packed, packed, 8, 0.85),
        Case("half the heads, runs of 32 KiB", packed, preset("packed-hnd", **half), 8, 0.85),
        Case("half the heads, runs of 2 KiB", preset("packed-nhd", **full), preset("packed-nhd", **half), 8, 0.85),
        Case("half the heads, runs of 1 KiB", preset("two-slot-nhd", **full), preset("two-slot-nhd", **half), 8, 0.85),
        Case(
            "one head of 8, runs of 256 B",
            preset("two-slot-nhd", **full),
            preset("two-slot-nhd", **full | {"h": 1}),
            8,
            0.85,
        ),
        Case("runs of 16 B", two_slots("h n", tiny), two_slots("n h", tiny), 64, 0.85),
    ]
    back = [
        (preset("aiter-shuffle", **full), packed, "AITER shuffle to packed"),
        (preset("rocm-attn", **full), packed, "ROCM_ATTN to packed"),
        (preset("nvfp4-flashinfer-swizzled", **full), preset("nvfp4-flashinfer", **full), "NVFP4 swizzled to linear"),
        (preset("packed-nhd", **full), packed, "token-major to head-major"),
    ]
    there = [
        (packed, preset("aiter-shuffle", **full), "packed to AITER shuffle"),
        (packed, preset("rocm-attn", **full), "packed to ROCM_ATTN"),
        (value("h n d", full), value("h d n", full), "V alone to ROCM_ATTN"),
        (preset("nvfp4-flashinfer", **full), preset("nvfp4-flashinfer-swizzled", **full), "NVFP4 linear to swizzled"),
        (packed, preset("packed-nhd", **full), "head-major to token-major"),
        (packed, preset("cpu-amx", **full), "packed to CPU_ATTN AMX"),
        (value("h n d", full, "f8e4m3fn"), value("h d n", full, "f8e4m3fn"), "fp8 V alone to ROCM_ATTN"),
    ]
    return straight + [Case(name, one, other, one.extents["h"], 0.70) for one, other, name in there + back]


def two_slots(order: str, extents: dict[str, int]) -> kvr.PageFormat:
    return kvr.PageFormat(f"k[{order} d] v[{order} d]", dtype="bf16", extents=extents)


def value(order: str, extents: dict[str, int], dtype: str = "bf16") -> kvr.PageFormat:
    return kvr.PageFormat(f"v[{order}]", dtype=dtype, extents=extents)


@dataclass
class Sides:
    """A case in device memory: both sides' pages, and a request for all pages of the destination, shuffled."""

    plan: kvr.Plan
    request: kvr.Request
    source: torch.Tensor
    target: torch.Tensor


def built(case: Case, mib: int) -> Sides:
    """The case with about `mib` MiB to move."""
    pages = max(1, (mib << 20) // (case.target.page_bytes * LAYERS))

    def rank(form: kvr.PageFormat, engine: str) -> tuple[kvr.RankLayout, torch.Tensor]:
        memory = noise(LAYERS * pages * form.page_bytes)
        region = kvr.Region(memory.data_ptr(), memory.numel(), 0, "VRAM" if memory.is_cuda else "DRAM")
        layers = [
            kvr.Layer(
                f"layers.{index}",
                [kvr.Segment(region, form, pages=pages, offset=index * pages * form.page_bytes)],
                totals={"h": case.heads},
            )
            for index in range(LAYERS)
        ]
        tp = (1 % (case.heads // form.extents["h"]), case.heads // form.extents["h"])
        return kvr.RankLayout(engine=engine, layers=layers, tp=tp), memory

    there, source = rank(case.source, "prefill")
    here, target = rank(case.target, "decode")
    random = np.random.default_rng(0)
    ids = [random.permutation(pages).astype(np.int32) for _ in range(2)]
    request = kvr.Request((0, pages * TOKENS), [kvr.Blocks(ids[0])], [kvr.Blocks(ids[1])])
    return Sides(kvr.plan(here, there), request, source, target)


def noise(size: int) -> torch.Tensor:
    """Random bytes: zeros hide what was never written, and are moved faster."""
    words = torch.randint(-(1 << 62), 1 << 62, (-(-size // 8),), dtype=torch.int64, device=DEVICE)
    return words.view(torch.uint8)[:size]


def median_ms(run: Callable[[], object], repeats: int) -> float:
    """Median milliseconds of device time."""
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return float(statistics.median(times))


def copy_ms(size: int, repeats: int) -> float:
    """Median milliseconds of a device-to-device copy."""
    source, target = noise(size), noise(size)
    return median_ms(lambda: target.copy_(source), repeats)


@dataclass
class Pass:
    """One of the three passes that a case has: which tiles, which way, on which chunk."""

    name: str
    tiles: kvr.Tiles
    memory: torch.Tensor
    work: Work
    buffer: int
    moved: int
    gather: bool

    def mover(self, config: Config) -> TritonMover:
        return TritonMover(self.tiles, [self.memory], config)


def passes(sides: Sides) -> Iterator[Pass]:
    """Gather and scatter of a packed transfer, scatter of a landed one."""
    most = 1 << 40
    pairing = sides.plan.pair(sides.request)
    for name, side, memory in (("gather", "remote", sides.source), ("scatter", "local", sides.target)):
        tiles = sides.plan.packed_tiles("remote" if side == "remote" else "local")
        (work,) = pairing.chunks(tiles, most)
        yield Pass(name, tiles, memory, work, work.bytes, work.bytes, name == "gather")
        packed = work.bytes
    landed = sides.plan.landed()
    (chunk,) = pairing.landed_chunks(landed, most)
    yield Pass("landed scatter", landed.tiles, sides.target, chunk, chunk.bytes, packed, False)


def checked(one: Pass, mover: TritonMover) -> None:
    """Runs the pass on fresh random bytes and compares all of both sides with the torch mover's result."""
    reference: Mover = TorchMover(one.tiles, [one.memory])
    buffer = noise(one.buffer)
    written = buffer if one.gather else one.memory
    before = written.clone()
    mover.run(mover.prepare(one.work), buffer, gather=one.gather)
    torch.cuda.synchronize()
    found = written.clone()
    written.copy_(before)
    (reference.gather if one.gather else reference.scatter)(one.work, buffer)
    if not torch.equal(found, written):
        wrong = int((found != written).sum())
        raise SystemExit(f"{one.name}: {wrong} of {found.numel()} bytes are wrong")
    if torch.equal(written, before):
        raise SystemExit(f"{one.name}: nothing was written")


def host_us(mover: TritonMover, one: Pass, buffer: torch.Tensor) -> tuple[float, float]:
    """Median microseconds of host time to prepare a chunk, and to launch it."""
    prepare, launch = [], []
    for _ in range(20):
        begin = time.perf_counter()
        job = mover.prepare(one.work)
        middle = time.perf_counter()
        mover.run(job, buffer, gather=one.gather)
        launch.append(time.perf_counter() - middle)
        prepare.append(middle - begin)
        torch.cuda.synchronize()
    return statistics.median(prepare) * 1e6, statistics.median(launch) * 1e6


VARIANTS = [
    DEFAULT,
    Config(warps=2),
    Config(bytes=2048, warps=2),
    Config(bytes=8192),
    Config(bytes=8192, warps=8),
    Config(bytes=16384, warps=8),
    Config(staged=True),
    Config(staged=False),
    Config(evict=True),
]


def measured(case: Case, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each pass."""
    sides = built(case, arguments.mib)
    for one in passes(sides):
        buffer = noise(one.buffer)
        copy = copy_ms(one.moved, arguments.repeats)
        found = {}
        for config in VARIANTS if arguments.tune else [DEFAULT]:
            mover = one.mover(config)
            if not arguments.unchecked:
                checked(one, mover)
            job = mover.prepare(one.work)
            found[config] = median_ms(partial(mover.run, job, buffer, gather=one.gather), arguments.repeats)
        config = min(found, key=lambda config: found[config])
        mover = one.mover(config)
        host = host_us(mover, one, buffer)
        yield {
            "case": case.name,
            "pass": one.name,
            "mib": one.moved / 2**20,
            "ms": found[config],
            "copy_ms": copy,
            "gb_per_s": 2 * one.moved / found[config] / 1e6,
            "share": copy / found[config],
            "goal": case.goal,
            "prepare_us": host[0],
            "launch_us": host[1],
            "config": str(config),
            "all": {str(config): copy / ms for config, ms in found.items()},
        }
    del sides
    torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=int, default=1024, help="MiB that a row moves")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--tune", action="store_true", help="measure every variant of the kernel")
    parser.add_argument("--unchecked", action="store_true", help="skip the comparison with torch")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--json", help="file to write all numbers to")
    arguments = parser.parse_args()

    if not torch.cuda.is_available():
        print("no CUDA device: nothing measured")
        return
    torch.manual_seed(0)
    properties = torch.cuda.get_device_properties(DEVICE)
    print(f"{properties.name}, torch {torch.__version__}, Triton {triton.__version__}, kvreshard {kvr.__version__}")
    copy = copy_ms(4 << 30, arguments.repeats)
    print(f"device-to-device copy of 4 GiB: {copy:.3f} ms, {(8 << 30) / copy / 1e6:.0f} GB/s\n")
    head = f"{'case':32s} {'pass':15s} {'MiB':>6s} {'ms':>7s} {'GB/s':>6s} {'copy ms':>8s} {'share':>6s} {'goal':>5s}"
    print(f"{head}  host us: prepare + launch")
    rows = []
    chosen = [case for case in cases() if arguments.only in case.name]
    for row in itertools.chain.from_iterable(measured(case, arguments) for case in chosen):
        rows.append(row)
        print(
            f"{row['case']:32s} {row['pass']:15s} {row['mib']:6.0f} {row['ms']:7.3f} {row['gb_per_s']:6.0f} "
            f"{row['copy_ms']:8.3f} {row['share']:6.2f} {row['goal']:5.2f}  "
            f"{row['prepare_us']:.0f} + {row['launch_us']:.0f}",
            flush=True,
        )
        if arguments.tune:
            print(f"    best {row['config']}")
            print("    " + "  ".join(f"{share:.2f}" for share in row["all"].values()), flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"device": properties.name, "copy_4gib_ms": copy, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
