"""The worked pairs of page formats in `tests/cases/plans.toml`, and what the oracle makes of them."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.oracle.model import Blocks, Layer, Page, Rank, Region, Request, Segment, share
from tests.oracle.notation import unroll
from tests.oracle.transfer import pairs

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PLANS = Path(__file__).parent.parent / "cases" / "plans.toml"
HEAD, STATE, LAYER = "h", "n", "layer"


@dataclass(frozen=True)
class Side:
    """One engine of a case: notation, tokens in a page, tensor-parallel ranks."""

    format: str
    tokens: int
    tp: int


@dataclass(frozen=True)
class Expectation:
    """What must come out for one local rank and one stretch of its heads; the fields are those of the file."""

    rank: int
    heads: tuple[int, int]
    owners: tuple[int, ...]
    tokens: int
    runs: int
    run_bytes: tuple[int, ...]
    first: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Case:
    """A pair of engines and the runs that carry the cache from `remote` to `local`."""

    id: str
    total_heads: int
    types: Mapping[str, str]
    extents: Mapping[str, int]
    remote: Side
    local: Side
    expect: tuple[Expectation, ...]

    @property
    def tokens(self) -> int:
        """Tokens of one period of both page sizes."""
        return math.lcm(self.local.tokens, self.remote.tokens)

    def rank(self, side: Side, rank: int, base: int = 0) -> Rank:
        """One rank of an engine: one layer, its pages back to back at address `base`, enough of them for one period."""
        held = share(rank, side.tp, self.total_heads)
        extents = {**self.extents, STATE: side.tokens, HEAD: held[1] - held[0]}
        page = Page(side.format, extents, self.types)
        size, count = unroll(side.format, extents, self.types).page_bytes, self.tokens // side.tokens
        segment = Segment(0, page, 0, count, size, {HEAD: held})
        layer = Layer(LAYER, (segment,), totals={HEAD: self.total_heads})
        return Rank((Region(base, size * count),), (layer,), tp=(rank, side.tp))

    def request(self) -> Request:
        """All tokens of one period, in pages 0, 1, ... on both sides."""
        sides = ((Blocks(tuple(range(self.tokens // side.tokens))),) for side in (self.local, self.remote))
        return Request((0, self.tokens), *sides)


def load_cases(path: Path = PLANS) -> list[Case]:
    """All cases of the file."""
    return [_case(entry) for entry in tomllib.loads(path.read_text(encoding="utf-8"))["case"]]


def _case(entry: dict[str, Any]) -> Case:
    expect = (
        Expectation(
            rank=row["rank"],
            heads=(row["heads"][0], row["heads"][1]),
            owners=tuple(row["owners"]),
            tokens=row["tokens"],
            runs=row["runs"],
            run_bytes=tuple(row["run_bytes"]),
            first=tuple((run[0], run[1], run[2]) for run in row["first"]),
        )
        for row in entry["expect"]
    )
    local, remote = (
        Side(entry[side]["format"], entry[side]["tokens"], entry[side]["tp"]) for side in ("local", "remote")
    )
    return Case(entry["id"], entry["total_heads"], entry["types"], entry["extents"], remote, local, tuple(expect))


def recompute(case: Case) -> tuple[Expectation, ...]:
    """The expectations of a case from the oracle alone; ValueError if owners of the same heads give different runs."""
    return tuple(
        _expect(case, rank, heads, owners)
        for rank in range(case.local.tp)
        for heads, owners in _stretches(case, share(rank, case.local.tp, case.total_heads))
    )


def _stretches(case: Case, held: tuple[int, int]) -> list[tuple[tuple[int, int], tuple[int, ...]]]:
    """Maximal intervals of the held heads with the remote ranks that hold them all."""
    found: list[tuple[tuple[int, int], tuple[int, ...]]] = []
    for head in range(*held):
        shares = [share(q, case.remote.tp, case.total_heads) for q in range(case.remote.tp)]
        owners = tuple(q for q, (low, high) in enumerate(shares) if low <= head < high)
        if found and found[-1][1] == owners:
            found[-1] = ((found[-1][0][0], head + 1), owners)
        else:
            found.append(((head, head + 1), owners))
    return found


def _expect(case: Case, rank: int, heads: tuple[int, int], owners: tuple[int, ...]) -> Expectation:
    results = set()
    for owner in owners:
        moved = pairs(case.rank(case.local, rank), case.rank(case.remote, owner), case.request())
        local, remote, lengths = (column.tolist() for column in moved.runs(inside_pages=True))
        sizes = sorted({min(lengths), max(lengths)})
        first = tuple(zip(local[:2], remote[:2], lengths[:2], strict=True))
        results.add((len(lengths), tuple(sizes), first))
    if len(results) != 1:
        raise ValueError(f"{case.id}: owners {owners} of heads {heads} give different runs")
    runs, run_bytes, first = results.pop()
    return Expectation(rank, heads, owners, case.tokens, runs, run_bytes, first)
