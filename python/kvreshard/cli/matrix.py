"""Every backend against every other: what kvreshard does, and beside it what stock vLLM 0.33 does."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from html import escape
from typing import Any

import kvreshard as kvr
from kvreshard.cli.sides import BadSide, Side
from kvreshard.cli.stock import verdict

WORKS, CONVERTS, REFUSED = "works", "converts", "refused"
SIGNS = {
    (WORKS, "right"): "=",
    (WORKS, "refused"): "+",
    (WORKS, "wrong"): "!",
    (CONVERTS, "right"): "=",
    (CONVERTS, "refused"): "c",
    (CONVERTS, "wrong"): "!",
}
LEGEND = (
    "= right with either   + refused by stock, right with kvreshard   c the same, after conversion on arrival   "
    "! silently wrong with stock, right with kvreshard   . refused by both   ? silently wrong with stock, refused here"
)


@dataclass(frozen=True)
class Cell:
    """One pair of engines.

    Attributes:
        prefill: The prefill engine's backend.
        decode: The decode engine's backend.
        ours: `works`, `converts` (after a conversion on arrival) or `refused`.
        why: Why it is refused; the runs otherwise.
        runs_per_page: Descriptors a decode page, one layer, moved directly.
        bytes_per_run: Bytes of each, in the mean.
        stock: What stock vLLM 0.33 does: `right`, `refused` or `wrong`.
        stock_why: Why.
        stock_share: The share of elements right on the worst rank; `None` where refused.
    """

    prefill: str
    decode: str
    ours: str
    why: str
    runs_per_page: int | None
    bytes_per_run: int | None
    stock: str
    stock_why: str
    stock_share: float | None

    @property
    def sign(self) -> str:
        """One character for both verdicts."""
        if self.ours == REFUSED:
            return "?" if self.stock == "wrong" else "."
        return SIGNS[self.ours, self.stock]


def pair(prefill: Side, decode: Side) -> Cell:
    """Both verdicts about one pair."""
    theirs = verdict(prefill, decode)
    report = kvr.check(_engine(decode), _engine(prefill))
    runs, bytes = report.runs_per_page, report.bytes_per_run
    if not report.accepted:
        ours, why = REFUSED, str(report.errors[0].error)
        runs = bytes = None
    else:
        ours = WORKS if report.advice == "direct" else CONVERTS
        why = f"{runs} runs a page of {bytes} bytes" if runs else report.advice
    return Cell(prefill.format, decode.format, ours, why, runs, bytes, theirs.outcome, theirs.why, theirs.share)


@lru_cache(maxsize=256)
def _engine(side: Side) -> kvr.Engine:
    return kvr.Engine(side.ranks())


def matrix(sides: Sequence[tuple[Side, Side]], done: Callable[[], None] = lambda: None) -> list[Cell]:
    """The verdicts about pairs; `done` is called after each."""
    cells = []
    for prefill, decode in sides:
        cells.append(pair(prefill, decode))
        done()
    return cells


def pairs(names: Sequence[str], prefill: Side, decode: Side) -> list[tuple[Side, Side]]:
    """Every backend of `names` in the place of both sides' formats; those that cannot be made are left out."""
    found = []
    for one in names:
        for other in names:
            sides = _with(prefill, one), _with(decode, other)
            try:
                for side in sides:
                    choice = side.backend
                    if choice is None or side.tokens() not in choice.backend.pages:
                        raise BadSide("pages that the backend does not take")
                    side.build(0)
            except BadSide:
                continue
            found.append(sides)
    return found


def _with(side: Side, name: str) -> Side:
    return replace(side, format=name, layers=1, pages=64)


def names_of(cells: Sequence[Cell]) -> tuple[list[str], list[str]]:
    """The prefill and the decode backends of cells, in order."""
    return list(dict.fromkeys(cell.prefill for cell in cells)), list(dict.fromkeys(cell.decode for cell in cells))


def grid(cells: Sequence[Cell]) -> tuple[list[str], list[str], list[list[str]]]:
    """Prefill backends, decode backends, and a sign for each pair of them."""
    rows, columns = names_of(cells)
    found = {(cell.prefill, cell.decode): cell.sign for cell in cells}
    return rows, columns, [[found.get((row, column), " ") for column in columns] for row in rows]


def as_markdown(cells: Sequence[Cell]) -> str:
    """A table of signs, and the legend."""
    rows, columns, signs = grid(cells)
    head = ["prefill \\ decode", *columns]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join([row, *line]) + " |" for row, line in zip(rows, signs, strict=True)]
    return "\n".join([*lines, "", f"`{LEGEND}`", ""])


def as_csv(cells: Sequence[Cell]) -> str:
    """A line for each pair, everything that is known of it."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [*asdict(cells[0])], lineterminator="\n") if cells else None
    if writer is not None:
        writer.writeheader()
        writer.writerows(asdict(cell) for cell in cells)
    return out.getvalue()


def as_json(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """A mapping for each pair."""
    return [asdict(cell) for cell in cells]


COLOURS = {"=": "#2da44e", "+": "#54aeff", "c": "#8250df", "!": "#d1242f", "?": "#bf8700", ".": "#afb8c1", " ": "none"}


def as_svg(cells: Sequence[Cell]) -> str:
    """A heat map: a coloured square for each pair, its verdicts as the tooltip."""
    rows, columns, signs = grid(cells)
    told = {(cell.prefill, cell.decode): cell for cell in cells}
    # A letter is about 8 wide; names of columns are turned by 40 degrees.
    left, top, size = 16 + 8 * max(map(len, rows)), 20 + 5 * max(map(len, columns)), 26
    body = [f'<text x="{left - 6}" y="{top - 8}" text-anchor="end" font-weight="600">prefill, to decode:</text>']
    for y, row in enumerate(rows):
        middle = top + y * size + size / 2 + 4
        body.append(f'<text x="{left - 6}" y="{middle:g}" text-anchor="end">{escape(row)}</text>')
        for x, column in enumerate(columns):
            sign = signs[y][x]
            if (row, column) not in told:
                continue
            cell = told[row, column]
            words = f"{row} to {column}: stock {cell.stock} ({cell.stock_why}); kvreshard {cell.ours} ({cell.why})"
            at, down = left + x * size, top + y * size
            centre = f'x="{at + size / 2 - 1:g}" y="{middle:g}" text-anchor="middle"'
            body.append(
                f'<g><title>{escape(words)}</title><rect x="{at}" y="{down}" width="{size - 2}" '
                f'height="{size - 2}" rx="3" fill="{COLOURS[sign]}"/>'
                f'<text class="sign" {centre}>{escape(sign)}</text></g>'
            )
    for x, column in enumerate(columns):
        body.append(
            f'<text transform="translate({left + x * size + size / 2:g} {top - 6}) rotate(-40)">{escape(column)}</text>'
        )
    bottom = top + len(rows) * size + 16
    entries = [part.strip() for part in LEGEND.split("   ")]
    for number, entry in enumerate(entries):
        y = bottom + 20 * number
        body.append(f'<rect x="8" y="{y - 12}" width="16" height="16" rx="3" fill="{COLOURS[entry[0]]}"/>')
        body.append(f'<text x="32" y="{y}">{escape(entry)}</text>')
    width = max(left + len(columns) * size + 5 * max(map(len, columns)), 620)
    height = bottom + 20 * len(entries)
    style = (
        "svg{font:13px system-ui,sans-serif;background:#fff;color:#1c2430}text{fill:currentColor}"
        ".sign{fill:#fff;font-weight:600}"
        "@media (prefers-color-scheme:dark){svg{background:#14181d;color:#e6e9ed}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="Backends against backends"><style>{style}</style>{"".join(body)}</svg>'
    )
