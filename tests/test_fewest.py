"""The demonstration's brute-force minimum on maps small enough to count by hand."""

from __future__ import annotations

import numpy as np
import pytest

from kvreshard.demo.fewest import fewest_runs
from kvreshard.demo.formulas import Geometry, packed_hnd, two_slot_hnd, two_slot_nhd

I64 = np.int64


def test_breaks_on_either_side() -> None:
    local = np.array([0, 2, 4, 6, 10, 12], dtype=I64)
    remote = np.array([100, 102, 110, 112, 114, 116], dtype=I64)
    runs = fewest_runs(local[::-1], remote[::-1], 2)
    assert runs.local.tolist() == [0, 4, 10]
    assert runs.remote.tolist() == [100, 110, 114]
    assert runs.lengths.tolist() == [4, 4, 4]
    assert runs.bytes == 12


def test_sizes_of_their_own() -> None:
    runs = fewest_runs(np.array([0, 1, 5]), np.array([7, 8, 12]), np.array([1, 4, 2]))
    assert (runs.local.tolist(), runs.remote.tolist(), runs.lengths.tolist()) == ([0], [7], [7])


def test_regions_and_pages_cut() -> None:
    local = np.arange(8, dtype=I64)
    remote = local + 64
    assert len(fewest_runs(local, remote, 1)) == 1
    assert fewest_runs(local, remote, 1, local_regions=np.array([0, 3])).local.tolist() == [0, 3]
    assert fewest_runs(local, remote, 1, remote_regions=np.array([64, 69])).local.tolist() == [0, 5]
    cut = fewest_runs(local, remote, 1, local_pages=local // 4, remote_pages=local // 6)
    assert cut.local.tolist() == [0, 4, 6]


def test_no_elements_and_shared_bytes() -> None:
    nothing = np.zeros(0, dtype=I64)
    assert len(fewest_runs(nothing, nothing, 2)) == 0
    with pytest.raises(ValueError, match="share"):
        fewest_runs(np.array([0, 1]), np.array([0, 2]), 2)


@pytest.mark.parametrize(("formula", "runs"), [(packed_hnd, 1), (two_slot_hnd, 2), (two_slot_nhd, 32)])
def test_half_of_the_heads(formula, runs: int) -> None:  # type: ignore[no-untyped-def]
    small, large = formula(Geometry(4, 16, 128)), formula(Geometry(8, 16, 128))
    states, heads = np.arange(16), np.arange(4)
    local = [small.addresses(c, [0], states=states, heads=heads).ravel() for c in ("k", "v")]
    remote = [large.addresses(c, [0], states=states, heads=heads + 4).ravel() for c in ("k", "v")]
    assert len(fewest_runs(np.concatenate(local), np.concatenate(remote), 2)) == runs
