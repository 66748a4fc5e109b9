"""The planner as it is called from Python, beside vLLM's own code in the same process."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator

import numpy as np

import kvreshard as kvr

from . import stock
from .table import Row, cpu_seconds, short

LAYERS = 80
PAGE = 16


def rank(
    pages: int, *, heads: int = 8, total: int = 8, tp: tuple[int, int] = (0, 1), base: int = 1 << 40
) -> kvr.RankLayout:
    """A rank of 80 layers of two-slot pages, each in a region of its own: K and V are two runs where heads are cut."""
    form = kvr.PageFormat("k[h n d] v[h n d]", h=heads, n=PAGE, d=128, dtype="bf16")
    size = form.page_bytes * pages
    layers = []
    for number in range(LAYERS):
        region = kvr.Region(base + number * (size + 4096), size)
        segment = kvr.Segment(region, form, pages=pages)
        layers.append(kvr.Layer(f"model.layers.{number}.self_attn.attn", [segment], totals={"h": total}))
    return kvr.RankLayout(engine="bench", layers=layers, tp=tp)


def stock_worker(pages: int, regions: int = LAYERS) -> stock.StockWorker:
    """vLLM's worker for regions of as many pages."""
    page_bytes = 2 * 4 * PAGE * 128 * 2
    bases = [(1 << 40) + number * (page_bytes * pages + 4096) for number in range(regions)]
    return stock.StockWorker(bases, bases, page_bytes, pages)


def rows() -> Iterator[Row]:
    """Plans, ids and the import."""
    yield from plans()
    yield from ids()
    took = import_seconds()
    yield Row("Python: import kvreshard, over numpy", short(took), "30 ms")


def plans() -> Iterator[Row]:
    """An edge, planned, with the rows of both sides."""
    for pages in (1_000, 1_000_000):
        here, there = rank(pages, heads=4, tp=(0, 2)), rank(pages)

        def work(here: kvr.RankLayout = here, there: kvr.RankLayout = there) -> None:
            plan = kvr.plan(here, there)
            plan.local_rows()
            plan.remote_rows()

        took, beside = cpu_seconds(work), "vLLM is not installed"
        if stock.installed():
            theirs = cpu_seconds(stock_worker(pages, 2 * LAYERS).rows)
            beside = f"vLLM 0.33, as many rows (160 regions): {short(theirs)}, {theirs / took:.1f} times"
        what = f"Python: plan an edge, {LAYERS} layers, K and V runs, rows of both sides, {pages:,} pages"
        yield Row(what, short(took), "50 us, 10 times faster than vLLM", beside)


def ids() -> Iterator[Row]:
    """Ids of a request, from lists and from arrays, into buffers that are used again."""
    pages = 65_536
    plan = kvr.plan(rank(pages), rank(pages))
    for blocks in (128, 2_048, 8_192, 65_536):
        local = np.arange(blocks, dtype=np.int32)
        remote = local ^ 1
        out = (np.empty(LAYERS * blocks, np.int32), np.empty(LAYERS * blocks, np.int32))
        for kind, here, there in (("array", local, remote), ("list", local.tolist(), remote.tolist())):

            def work(here=here, there=there, blocks=blocks, out=out) -> None:  # type: ignore[no-untyped-def]
                request = kvr.Request((0, blocks * PAGE), [kvr.Blocks(here)], [kvr.Blocks(there)])
                plan.ids(request, out)

            took, beside = cpu_seconds(work), "vLLM is not installed"
            if stock.installed():
                worker = stock_worker(pages)
                theirs = cpu_seconds(lambda here=here, there=there, worker=worker: worker.ids(here, there))  # type: ignore[misc]
                beside = f"vLLM 0.33 `_compute_desc_ids`: {short(theirs)}, {theirs / took:.1f} times"
            what = f"Python: ids of {blocks:,} blocks given as {kind}, {LAYERS} regions"
            yield Row(what, short(took), "5 times faster than vLLM", beside)


def import_seconds(repeats: int = 9) -> float:
    """CPU seconds that `import kvreshard` takes in a fresh process where numpy is imported already."""
    code = "import numpy, time; begun = time.process_time(); import kvreshard; print(time.process_time() - begun)"
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(repeats)
    ]
    return statistics.median(float(run.stdout) for run in runs)
