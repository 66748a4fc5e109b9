"""Bytes of a peer's pages that no transfer covers, over agents that copy memory themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("nixl")

from kvreshard.nixl import Finished, TransferError, issue
from tests.connector_rank import request
from tests.fabric import Fabric
from tests.pairs import HERE, THERE, Pair, tokens
from tests.told import told

RUN = 12 * THERE.size * 2 * 2
"""Bytes of the tokens 4 to 15 of a head."""


def test_a_peer_is_cleared_by_one_block_of_zeros_as_often_as_it_takes(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run a head and layer, each of more bytes than the block has."""
    monkeypatch.setattr(issue, "ZEROS", 1000)
    runs = THERE.heads * THERE.layers
    monkeypatch.setattr(issue, "MAX_CLEARED", 2 * runs)
    assert RUN == 1536
    pair = Pair()
    regions = list(fabric.agents["here"].regions)
    for id in ("w", "x"):
        fabric.made.clear()
        pair.here.write(pair.peer, request((0, 20), [0, 1], [0, 1]), id=id, strategy="direct")
        (finished,) = pair.until("Finished")[0]
        assert isinstance(finished, Finished)
        handle = fabric.made[-1]
        # Registered once, and as long as is said.
        ((address, size, device, kind),) = [one for one in fabric.agents["here"].regions if one not in regions]
        assert (size, device, kind) == (1000, 0, "DRAM")
        assert handle.ours.tolist() == [[address, one, 0] for _ in range(runs) for one in (1000, 536)]
        assert [bool(one.notice) for one in fabric.made] == [False] * (len(fabric.made) - 1) + [True]
        cleared = finished.transfers[-1]
        assert (cleared.posted, cleared.bytes, cleared.prepared) == (2 * runs, runs * RUN, False)
    for layer, theirs in enumerate(pair.theirs):
        wanted = tokens(pair.before[HERE.layers + layer], THERE).copy()
        wanted[:2] = tokens(pair.mine[layer], HERE)[:2]
        wanted[1, 4:] = 0
        np.testing.assert_array_equal(tokens(theirs, THERE), wanted)
    pair.close()


def test_more_than_so_many_pieces_are_not_cleared(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issue, "ZEROS", 1000)
    runs = THERE.heads * THERE.layers
    monkeypatch.setattr(issue, "MAX_CLEARED", 2 * runs - 1)
    pair = Pair()
    with pytest.raises(TransferError) as caught:
        pair.here.write(pair.peer, request((0, 20), [0, 1], [0, 1]), id="w", strategy="direct")
    assert told(caught.value) == (
        f"{2 * runs} pieces of 1000 bytes would have to be cleared on peer there, over {2 * runs - 1}",
        {"peer": "there", "request": "w"},
    )
    assert {handle.state for handle in fabric.made} == {"made"}
    assert (fabric.agents["here"].alive, pair.here.in_flight) == ([], ())
    pair.close()


def test_a_block_of_zeros_that_is_as_long_as_a_run_is_written_once(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issue, "ZEROS", RUN)
    pair = Pair(replace(HERE), THERE)
    pair.here.write(pair.peer, request((0, 20), [0, 1], [0, 1]), id="w", strategy="direct")
    pair.until("Finished")
    assert fabric.made[-1].ours[:, 1].tolist() == [RUN] * THERE.heads * THERE.layers
    pair.close()
