"""Is a page what its format says? Ask the function that writes it.

A writer is put to the test of the format that it follows, and of one of the same size that it does not; then the format
is found without being told. Run it: `python examples/probe_writer.py`. numpy is all that it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import kvreshard as kvr
from kvreshard import probe

HEADS, TOKENS, CHANNELS = 2, 16, 32
SIZES = {"h": HEADS, "n": TOKENS, "d": CHANNELS}

# One page of K and V in float16: all K, then all V, token-major. An engine's cache would be many of them on a GPU.
cache = np.zeros((2, TOKENS, HEADS, CHANNELS), dtype=np.float16)


def write(inputs: Mapping[str, Any]) -> None:
    """The engine's cache writer, as the probe calls it: float32 (tokens, heads, channels) for K and for V."""
    cache[0] = inputs["k"]
    cache[1] = inputs["v"]


def main() -> None:
    right = kvr.PageFormat("k[n h d] v[n h d]", extents=SIZES, dtype="f16")
    print(f"{right.notation}: confirmed with {probe.check_writer(right, write, cache)} writes")

    wrong = kvr.PageFormat("h n k[d] v[d]", extents=SIZES, dtype="f16")
    try:
        probe.check_writer(wrong, write, cache)
    except probe.WriterMismatch as error:
        print(f"{wrong.notation}: {error}")

    found = probe.infer(write, cache, {"k": SIZES, "v": SIZES}, page_bytes=cache.nbytes, types="f16")
    print(f"without being told: {found.notation}")


if __name__ == "__main__":
    main()
