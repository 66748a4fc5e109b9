"""The worked cases of `cases/plans.toml` as the planner plans them: owners, how many runs, how long, the first two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

import kvreshard as kvr
from tests.oracle.cases import HEAD, STATE, Case, Expectation, Side, load_cases

CASES = load_cases()
SPACING = 1 << 30
"""Bytes between the ranks' regions: no two touch."""


def rank_of(case: Case, side: Side, rank: int, base: int) -> kvr.RankLayout:
    """A rank with one layer, its pages back to back from `base`; what it holds is left to the rule of shares."""
    held = max(1, case.total_heads // side.tp)
    extents = {**case.extents, STATE: side.tokens, HEAD: held}
    form = kvr.PageFormat(side.format, extents=extents, types=dict(case.types))
    pages = case.tokens // side.tokens
    segment = kvr.Segment(kvr.Region(base, pages * form.page_bytes), form, pages=pages)
    layer = kvr.Layer("layer", [segment], totals={HEAD: case.total_heads})
    return kvr.RankLayout(engine=f"{side.format} {side.tp}", layers=[layer], tp=(rank, side.tp))


@dataclass(frozen=True)
class Planned:
    """A case's engines, local (the one that wants) and remote, and the route between them."""

    case: Case
    local: kvr.Engine
    remote: kvr.Engine
    route: kvr.Route

    @classmethod
    def of(cls, case: Case) -> Planned:
        """Both engines, far apart, and the route by which local reads."""
        sides = (case.local, case.remote)
        local, remote = (
            kvr.Engine([rank_of(case, side, rank, (1 + 100 * at + rank) * SPACING) for rank in range(side.tp)])
            for at, side in enumerate(sides)
        )
        return cls(case, local, remote, kvr.route(local=local, remote=remote, direction="read"))

    def edge(self, row: Expectation) -> kvr.Edge:
        """The one edge by which a stretch of a rank's heads comes."""
        (edge,) = [edge for edge in self.route.edges_of(local=row.rank) if edge.remote in row.owners]
        return edge

    def request(self) -> kvr.Request:
        """One period of tokens, in pages 0, 1, ... on both sides."""
        local, remote = (
            [kvr.Blocks(range(self.case.tokens // side.tokens))] for side in (self.case.local, self.case.remote)
        )
        return kvr.Request((0, self.case.tokens), local, remote)


def base(rank: kvr.RankLayout) -> int:
    """The address of a rank's first page."""
    return rank.regions[0].base


def descriptors(rows: npt.NDArray[np.uint64], ids: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Address and length of numbered descriptors of prepared rows, (N, 2): numbers count through row after row."""
    address, length, _, stride, count = rows.astype(np.int64).T
    ends = np.cumsum(count)
    row = np.searchsorted(ends, ids, side="right")
    within = ids - (ends - count)[row]
    return np.stack([address[row] + within * stride[row], length[row]], axis=1)


def runs(plan: kvr.Plan, request: kvr.Request) -> list[tuple[int, int, int]]:
    """Local byte, remote byte and length of every descriptor of a request, by local byte from the first page on."""
    local_ids, remote_ids = plan.ids(request)
    local, remote = descriptors(plan.local_rows(), local_ids), descriptors(plan.remote_rows(), remote_ids)
    assert (local[:, 1] == remote[:, 1]).all()
    here, there = local[:, 0] - base(plan.local), remote[:, 0] - base(plan.remote)
    return sorted(zip(here.tolist(), there.tolist(), local[:, 1].tolist(), strict=True))


def check(row: Expectation, found: Sequence[tuple[int, int, int]]) -> None:
    """Holds runs against a row of the file."""
    lengths = [length for _, _, length in found]
    assert len(found) == row.runs
    assert tuple(sorted({min(lengths), max(lengths)})) == row.run_bytes
    assert tuple(found[:2]) == row.first


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_route_and_runs(case: Case) -> None:
    planned = Planned.of(case)
    for row in case.expect:
        edge = planned.edge(row)
        plan = kvr.plan(planned.local.ranks[row.rank], planned.remote.ranks[edge.remote], edge=edge)
        assert plan.runs == row.runs
        check(row, runs(plan, planned.request()))
    assert len(planned.route.edges) == len(case.expect), "a head is read more than once"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_push_has_the_same_runs(case: Case) -> None:
    """The owner writes what the other side would read: the sides of every run change places."""
    planned = Planned.of(case)
    pushed = kvr.route(local=planned.remote, remote=planned.local, direction="write")
    wanted = planned.request()
    turned = kvr.Request(wanted.tokens, wanted.remote, wanted.local)
    for row in case.expect:
        (edge,) = [edge for edge in pushed.edges_of(remote=row.rank) if edge.local in row.owners]
        plan = kvr.plan(planned.remote.ranks[edge.local], planned.local.ranks[row.rank], edge=edge)
        assert plan.direction == "write"
        check(row, sorted((there, here, length) for here, there, length in runs(plan, turned)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_exact_lists_move_the_same_bytes(case: Case) -> None:
    """Joined wherever they touch, page to page too, the runs carry each byte from and to the same place."""
    planned = Planned.of(case)
    for row in case.expect:
        edge = planned.edge(row)
        plan = kvr.plan(planned.local.ranks[row.rank], planned.remote.ranks[edge.remote], edge=edge)
        local, remote = plan.lists(planned.request())
        assert (local[:, 1] == remote[:, 1]).all()
        joined: list[list[int]] = []
        for here, there, length in runs(plan, planned.request()):
            if joined and [here, there] == [joined[-1][0] + joined[-1][2], joined[-1][1] + joined[-1][2]]:
                joined[-1][2] += length
            else:
                joined.append([here, there, length])
        places = zip(local[:, 0].tolist(), remote[:, 0].tolist(), local[:, 1].tolist(), strict=True)
        found = sorted([here - base(plan.local), there - base(plan.remote), length] for here, there, length in places)
        assert found == joined
