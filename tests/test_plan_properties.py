"""Plans between random ranks, held to the oracle: the same bytes, nothing else, in the fewest runs."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal, cast

import numpy as np
from hypothesis import HealthCheck, given, note, settings
from numpy.typing import NDArray

import kvreshard as kvr
from tests.convert import to_rank, to_request
from tests.oracle.model import Rank
from tests.oracle.notation import Ints, unroll
from tests.oracle.transfer import pairs
from tests.strategies import Transfer, transfers

Rows = NDArray[np.uint64]
Direction = Literal["read", "write"]

many = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


class Memory:
    """All of a rank's regions as one array of bytes, gaps between them included."""

    def __init__(self, rank: Rank, seed: int) -> None:
        self.base = min(region.base for region in rank.regions)
        end = max(region.base + region.bytes for region in rank.regions)
        self.bytes = np.random.default_rng(seed).integers(0, 256, end - self.base, dtype=np.uint8)

    def at(self, addresses: Ints) -> Ints:
        """Positions in `bytes`; IndexError if one lies outside."""
        position = addresses - self.base
        if len(position) and not 0 <= position.min() <= position.max() < len(self.bytes):
            raise IndexError("an address lies outside the rank's memory")
        return position


def make_plan(transfer: Transfer) -> kvr.Plan:
    note(f"{transfer}")
    local, remote = to_rank(transfer.local, "local"), to_rank(transfer.remote, "remote")
    return kvr.plan(local, remote, direction=cast(Direction, transfer.direction))


def signed(rows: Rows) -> Ints:
    return rows.astype(np.int64)


def every_byte(rows: Ints) -> Ints:
    """The address of each byte of rows [address, bytes, ...], in their order."""
    spans = [np.arange(row[0], row[0] + row[1], dtype=np.int64) for row in rows]
    return np.concatenate(spans) if spans else np.zeros(0, dtype=np.int64)


def expanded(rows: Rows) -> Rows:
    """Rows [address, bytes, device, stride, count] as the descriptors they stand for, [address, bytes, device]."""
    found = [(row[0] + i * row[3], row[1], row[2]) for row in rows.tolist() for i in range(row[4])]
    return np.array(found, dtype=np.uint64).reshape(-1, 3)


def end_to_end(transfer: Transfer, moved: tuple[Ints, Ints]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The destination's memory after the bytes (local, remote) moved, and as it was before."""
    local, remote = Memory(transfer.local, 1), Memory(transfer.remote, 2)
    source, target = (remote, local) if transfer.direction == "read" else (local, remote)
    there, here = (moved[1], moved[0]) if transfer.direction == "read" else moved
    after = target.bytes.copy()
    assert len(np.unique(here)) == len(here), "a destination byte is written twice"
    after[target.at(here)] = source.bytes[source.at(there)]
    return after, target.bytes


@many
@given(transfers())
def test_lists_move_what_the_oracle_says_in_the_fewest_runs(transfer: Transfer) -> None:
    plan = make_plan(transfer)
    local, remote = (signed(rows) for rows in plan.lists(to_request(transfer.request)))
    assert local.shape == remote.shape == (len(local), 3)
    assert (local[:, 1] == remote[:, 1]).all()
    wanted = pairs(transfer.local, transfer.remote, transfer.request)

    here, there, _ = wanted.by_byte()
    after, _ = end_to_end(transfer, (every_byte(local), every_byte(remote)))
    expected, _ = end_to_end(transfer, (here, there))
    assert np.array_equal(after, expected)

    order = np.argsort(local[:, 0])
    found = [local[order, 0].tolist(), remote[order, 0].tolist(), local[order, 1].tolist()]
    assert found == [column.tolist() for column in wanted.runs()]


def period(transfer: Transfer) -> int:
    """Tokens after which all boundaries of pages, blocks and stretches of both sides meet again."""
    tokens = [1]
    for rank in (transfer.local, transfer.remote):
        for layer in rank.layers:
            group, extents = rank.groups[layer.group], layer.segments[0].page.extents
            if group.kind == "tokens":
                states = extents["n"] * group.pages_per_block
                tokens.append(int(math.lcm(states, rank.interleave) * rank.cp[1] * group.tokens_per_state))
    return math.lcm(*tokens)


@many
@given(transfers())
def test_ids_name_rows_that_move_the_request(transfer: Transfer) -> None:
    """Prepared rows have fixed lengths: a request begins with a row, and its end is rounded up in pages of its own."""
    plan = make_plan(transfer)
    flat = plan.local_flat(), plan.remote_flat()
    assert np.array_equal(flat[0], expanded(plan.local_rows()))
    assert np.array_equal(flat[1], expanded(plan.remote_rows()))
    start, end = transfer.request.tokens
    try:
        ids = plan.ids(to_request(transfer.request))
    except kvr.RequestError:
        assert start % period(transfer) or end % period(transfer)
        return
    assert ids[0].dtype == ids[1].dtype == np.int32
    assert all((numbers >= 0).all() for numbers in ids)
    rows = [signed(side[numbers]) for side, numbers in zip(flat, ids, strict=True)]
    assert (rows[0][:, 1] == rows[1][:, 1]).all()
    moved = every_byte(rows[0]), every_byte(rows[1])
    end_to_end(transfer, moved)

    exact = pairs(transfer.local, transfer.remote, transfer.request).by_byte()
    to_the_end = dataclasses.replace(transfer.request, tokens=(start, 1 << 40))
    most = pairs(transfer.local, transfer.remote, to_the_end).by_byte()
    got = set(zip(moved[0].tolist(), moved[1].tolist(), strict=True))
    assert set(zip(exact[0].tolist(), exact[1].tolist(), strict=True)) <= got
    assert got <= set(zip(most[0].tolist(), most[1].tolist(), strict=True))


@many
@given(transfers())
def test_zero_spares_what_is_wanted_and_what_came_before(transfer: Transfer) -> None:
    plan = make_plan(transfer)
    cleared = every_byte(signed(plan.zero(to_request(transfer.request))))
    assert len(np.unique(cleared)) == len(cleared)
    reading = transfer.direction == "read"
    rank = transfer.local if reading else transfer.remote
    lists = transfer.request.local if reading else transfer.request.remote
    # The destination against itself: all elements of its pages up to the end of the request.
    until = dataclasses.replace(transfer.request, tokens=(0, transfer.request.tokens[1]), local=lists, remote=lists)
    kept, _, _ = pairs(rank, rank, until).by_byte()
    assert not np.intersect1d(cleared, kept).size
    mine = []
    for layer in rank.layers:
        group = rank.groups[layer.group]
        for segment in layer.segments:
            size = unroll(segment.page.notation, segment.page.extents, segment.page.types).page_bytes
            start = rank.regions[segment.region].base + segment.offset
            mine += [
                (start + (block * group.pages_per_block + j) * segment.page_stride, size)
                for block in lists[layer.group].ids
                for j in range(group.pages_per_block)
            ]
    assert np.isin(cleared, every_byte(np.array(mine, dtype=np.int64))).all()


@many
@given(transfers())
def test_plans_prove_themselves_and_survive_the_wire(transfer: Transfer) -> None:
    plan = make_plan(transfer)
    plan.verify()
    local, remote = to_rank(transfer.local, "local"), to_rank(transfer.remote, "remote")
    received = kvr.RankLayout.from_bytes(remote.to_bytes())
    assert received == remote
    again = kvr.plan(local, received, direction=cast(Direction, transfer.direction))
    assert again.digest == plan.digest
