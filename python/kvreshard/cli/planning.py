"""`plan` and `matrix`: what is sent between two engines, and which engines fit."""

from __future__ import annotations

import enum
import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from rich.text import Text

import kvreshard as kvr
from kvreshard.cli import matrix as tables
from kvreshard.cli.drawing import legend, strip
from kvreshard.cli.output import console, dump, fail, progress, refusals, save, say, table
from kvreshard.cli.sides import BadSide, Side, Totals, backend_names, names
from kvreshard.cli.vllm import BACKENDS

MOST_DRAWN = 32
"""Edges of one page of HTML."""
MOST_SAID = 6
"""Nests of runs that are printed."""


class Direction(str, enum.Enum):
    """Which way the bytes go."""

    read = "read"
    write = "write"


class Shown(str, enum.Enum):
    """How a matrix is printed."""

    table = "table"
    markdown = "markdown"
    csv = "csv"
    svg = "svg"


def plan(
    prefill: Annotated[
        str, typer.Option("--remote", "--prefill", help="The prefill engine's format.", autocompletion=names)
    ],
    decode: Annotated[
        str, typer.Option("--local", "--decode", help="The decode engine's format.", autocompletion=names)
    ],
    heads: Annotated[int, typer.Option(help="KV heads of the model.")] = 8,
    head_size: Annotated[int, typer.Option(help="Channels of a head; of a row, for MLA.")] = 128,
    layers: Annotated[int, typer.Option(help="Layers of the model.")] = 32,
    dtype: Annotated[str, typer.Option(help="Element type of K and V.")] = "bf16",
    prefill_tp: Annotated[int, typer.Option("--remote-tp", "--prefill-tp", help="TP size of prefill.")] = 1,
    decode_tp: Annotated[int, typer.Option("--local-tp", "--decode-tp", help="TP size of decode.")] = 1,
    prefill_page: Annotated[
        int,
        typer.Option("--remote-page", "--prefill-page", help="Tokens in a prefill page; the backend's own where 0."),
    ] = 0,
    decode_page: Annotated[
        int, typer.Option("--local-page", "--decode-page", help="Tokens in a decode page; the backend's own where 0.")
    ] = 0,
    total: Totals = None,
    tokens: Annotated[int, typer.Option(help="Tokens of the request that is counted.")] = 1024,
    direction: Annotated[Direction, typer.Option(help="read: decode pulls; write: prefill pushes.")] = Direction.read,
    transport: Annotated[
        str, typer.Option(help="Whose constants predict costs: a transport, or a file of `calibrate --json`.")
    ] = "cma",
    html: Annotated[
        Path | None, typer.Option(help=f"Write a page with drawings of the edges, {MOST_DRAWN} at most, to this file.")
    ] = None,
    svg: Annotated[Path | None, typer.Option(help="Write the drawing of the first edge to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Who reads what from whom: runs, descriptors, bytes, predicted costs, a drawing. Exit code 1 where refused."""
    with refusals(as_json):
        try:
            totals = " ".join(total or ())
            sides = (
                Side("prefill", prefill, heads, head_size, prefill_page, prefill_tp, layers, dtype, totals=totals),
                Side("decode", decode, heads, head_size, decode_page, decode_tp, layers, dtype, totals=totals),
            )
            engines = tuple(_sized(side, tokens).ranks() for side in sides)
        except BadSide as error:
            fail(str(error))
        if tokens < 1:
            fail("there must be at least 1 token")
        way: Literal["read", "write"] = direction.value
        local, remote = (engines[1], engines[0]) if way == "read" else (engines[0], engines[1])
        route = kvr.route(local=kvr.Engine(local), remote=kvr.Engine(remote), direction=way)
        plans = []
        with progress("planning", len(route.edges), quiet=as_json) as done:
            for edge in route.edges:
                plans.append(kvr.plan(local[edge.local], remote[edge.remote], edge=edge, direction=way))
                done()
        requests = [_request(one, tokens) for one in plans]
        constants = _constants(transport)
        facts = [_facts(one, request, constants) for one, request in zip(plans, requests, strict=True)]
        if html is not None:
            from kvreshard.pictures import page

            try:
                text = page(plans[:MOST_DRAWN], title=f"{sides[0].words()} to {sides[1].words()}")
            except ImportError as error:
                fail(str(error))
            save(html, text)
        if svg is not None:
            save(svg, plans[0].to_svg())
        report = kvr.check(kvr.Engine(local), kvr.Engine(remote), direction=way)
        if as_json:
            dump(
                {
                    "accepted": report.accepted,
                    "advice": report.advice,
                    "strategies": report.strategies,
                    "direction": way,
                    "tokens": tokens,
                    "edges": facts,
                    "notify": route.notify,
                }
            )
            return
        _print(sides, plans, facts, route, report, tokens)


def _sized(side: Side, tokens: int) -> Side:
    """The side with pages enough for the request."""
    return replace(side, pages=max(side.pages, -(-tokens // side.tokens())))


def _request(one: kvr.Plan, tokens: int) -> kvr.Request:
    """A request whose blocks lie in random places on both sides, always the same ones."""

    def blocks(layout: kvr.RankLayout, seed: int) -> list[kvr.Blocks]:
        segment = layout.layers[0].segments[0]
        states = segment.format.extents.get("n", 1)
        count = 1 if layout.groups[0].kind == "state" else -(-tokens // states)
        return [kvr.Blocks(np.random.default_rng(seed).permutation(segment.pages)[:count].astype(np.int32))]

    return kvr.Request((0, tokens), blocks(one.local, 1), blocks(one.remote, 2))


def _constants(text: str) -> str | kvr.Transport:
    """A transport by name, or what `calibrate --json` wrote into a file."""
    path = Path(text)
    if path.suffix != ".json":
        return text
    try:
        return kvr.Transport(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        fail(f"{path}: {error}")


def _facts(one: kvr.Plan, request: kvr.Request, transport: str | kvr.Transport) -> dict[str, Any]:
    """A plan in numbers."""
    costs = one.costs(request, transport=transport)
    return {
        "local": one.local.tp[0],
        "remote": one.remote.tp[0],
        "runs_per_page": one.runs_per_page,
        "bytes_per_run": one.bytes_per_run,
        "shortest_run": one.shortest_run,
        "longest_run": one.longest_run,
        "rows": one.row_count,
        "posted": one.posted(request),
        "digest": one.digest,
        "explained": one.explain(),
        "costs": [
            {"strategy": cost.strategy, "posted": cost.posted, "bytes": cost.bytes, "ns": cost.ns} for cost in costs
        ],
        "chosen": one.choose(request, transport=transport).strategy,
    }


def _print(
    sides: tuple[Side, Side],
    plans: list[kvr.Plan],
    facts: list[dict[str, Any]],
    route: kvr.Route,
    report: kvr.Report,
    tokens: int,
) -> None:
    verb = "reads from" if route.direction == "read" else "writes to"
    local, remote = ("decode", "prefill") if route.direction == "read" else ("prefill", "decode")
    for side, layout in zip(sides, (plans[0].remote, plans[0].local)[:: 1 if local == "decode" else -1], strict=True):
        say(f"{side.engine:8} {side.words()}", f"         {layout.layers[0].segments[0].format}")
    say("")
    edges = table(
        f"{local} {verb} {remote}",
        "runs a page",
        "bytes a run",
        "posted",
        "MiB",
        "predicted",
        "by",
        numbers=(1, 2, 3, 4),
    )
    for one in facts:
        costs = {cost["strategy"]: cost for cost in one["costs"]}
        chosen = costs[one["chosen"]]
        told = ", ".join(f"{cost['strategy']} {cost['ns'] / 1e6:,.2f} ms" for cost in one["costs"])
        edges.add_row(
            f"rank {one['local']} {verb} rank {one['remote']}",
            f"{one['runs_per_page']:,}",
            f"{one['bytes_per_run']:,}",
            f"{one['posted']:,}",
            f"{chosen['bytes'] / 2**20:,.1f}",
            told,
            one["chosen"],
        )
    say(edges)
    for pair in route.notify:
        say(f"rank {pair[0]} only tells rank {pair[1]} when it is done")
    say(f"Of a request of {tokens:,} tokens, its blocks in random places, all layers. Advice: {report.advice}.", "")
    if report.findings:
        say(str(report), "")
    runs = [line.strip() for line in plans[0].explain().splitlines() if "<->" in line]
    say("The runs of the first of these, at made-up addresses:", *(f"  {line}" for line in runs[:MOST_SAID]))
    say("  and so on, layer by layer" if len(runs) > MOST_SAID else "", "")
    try:
        picture = plans[0].picture()
    except kvr.LimitExceeded as error:
        say(f"not drawn: {error}")
        return
    screen = console()
    width = min(screen.width, 120)
    pages = (("prefill", picture.remote), ("decode", picture.local))
    if local == "prefill":
        pages = (("prefill", picture.local), ("decode", picture.remote))
    total = max(sum(piece.bytes for piece in pieces) for _, pieces in pages)
    for name, pieces in pages:
        share = sum(piece.bytes for piece in pieces)
        rank = plans[0].remote if (name == "prefill") == (local == "decode") else plans[0].local
        say(f"{name} rank {rank.tp[0]}, layer {picture.layer}, {share:,} bytes")
        for line in strip(pieces, max(1, width * share // total), moved_only=True):
            screen.print(line, soft_wrap=True)
    say(legend([*picture.local, *picture.remote]) + ", . not moved")


def matrix(
    backends: Annotated[
        list[str] | None,
        typer.Argument(help="Backends with settings; all of them where not given.", autocompletion=backend_names),
    ] = None,
    prefill_tp: Annotated[int, typer.Option(help="TP size of prefill.")] = 1,
    decode_tp: Annotated[int, typer.Option(help="TP size of decode.")] = 2,
    prefill_page: Annotated[int, typer.Option(help="Tokens in a prefill page; the backend's own where 0.")] = 0,
    decode_page: Annotated[int, typer.Option(help="Tokens in a decode page; the backend's own where 0.")] = 0,
    heads: Annotated[int, typer.Option(help="KV heads of the model.")] = 8,
    head_size: Annotated[int, typer.Option(help="Channels of a head.")] = 128,
    shown: Annotated[Shown, typer.Option("--as", help="How it is printed.")] = Shown.table,
    out: Annotated[Path | None, typer.Option(help="Write to this file, not to standard output.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Every backend of vLLM 0.33 against every other: what kvreshard does, and what stock vLLM does.

    What stock vLLM does is a model of its rules and of the bytes that it moves, not a run of it.
    """
    with refusals(as_json):
        try:
            prefill = Side("prefill", "-", heads, head_size, prefill_page, prefill_tp)
            decode = Side("decode", "-", heads, head_size, decode_page, decode_tp)
            for name in backends or ():
                if Side("prefill", name).backend is None:
                    fail(f"{name!r} is no vLLM backend; known are {', '.join(BACKENDS)}")
            sides = tables.pairs(backends or list(BACKENDS), prefill, decode)
            if not sides:
                fail("no backend takes pages of that size")
            with progress("pairs", len(sides), quiet=as_json) as done:
                cells = tables.matrix(sides, done)
        except BadSide as error:
            fail(str(error))
        if as_json:
            dump(tables.as_json(cells))
            return
        if shown is Shown.table:
            if out is not None:
                fail("a table goes to standard output; give --as for a file")
            _grid(cells)
            return
        text = {"markdown": tables.as_markdown, "csv": tables.as_csv, "svg": tables.as_svg}[shown.value](cells)
        if out is None:
            print(text, end="" if text.endswith("\n") else "\n")
        else:
            save(out, text)


STYLES = {"=": "green", "+": "blue", "c": "cyan", "!": "bold red", "?": "yellow", ".": "dim"}


def _grid(cells: list[tables.Cell]) -> None:
    rows, columns, signs = tables.grid(cells)
    screen = console()
    left = max(map(len, rows)) + 4
    most = max(1, (screen.width - left) // 2)
    for first in range(0, len(columns), most):
        part = range(first, min(first + most, len(columns)))
        # The number of a column, a digit above the other.
        for unit in (10, 1) if len(columns) > 10 else (1,):
            digits = (str(at // unit % 10) if at >= unit or unit == 1 else " " for at in part)
            screen.print(Text(" " * left + "".join(f" {digit}" for digit in digits), style="dim"), soft_wrap=True)
        for at, (row, line) in enumerate(zip(rows, signs, strict=True)):
            shown = Text(f"{row:{left - 4}} {at:2} ")
            for column in part:
                shown.append(f" {line[column]}", style=STYLES.get(line[column], ""))
            screen.print(shown, soft_wrap=True)
        say("")
    if columns != rows:
        say("decode: " + ", ".join(f"{at} {name}" for at, name in enumerate(columns)))
    else:
        say("Rows are prefill engines; columns are decode engines, numbered as the rows are.")
    for entry in tables.LEGEND.split("   "):
        say("  " + entry.strip())
    wrong = sum(cell.stock == "wrong" for cell in cells)
    say("", f"{len(cells)} pairs; stock vLLM 0.33 accepts {wrong} of them and scrambles the cache.")
