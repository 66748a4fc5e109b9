"""`check` and `verify`: whether two sides fit, and whether a plan or a list of descriptors is right."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from rich.text import Text

import kvreshard as kvr
from kvreshard.cli.output import REFUSED, console, dump, fail, fields, refusals, say, working
from kvreshard.cli.reading import Given, read
from kvreshard.cli.sides import BadSide

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}


def check(
    prefill: Annotated[Path, typer.Argument(help="TOML, a layout's message, or a captured handshake.")],
    decode: Annotated[Path, typer.Argument(help="The same of the decode engine.")],
    direction: Annotated[
        Literal["read", "write"], typer.Option(help="read: decode pulls; write: prefill pushes.")
    ] = "read",
    prefill_tp: Annotated[str, typer.Option(help="RANK/SIZE of a stock handshake, which does not say.")] = "0/1",
    decode_tp: Annotated[str, typer.Option(help="RANK/SIZE of a stock handshake, which does not say.")] = "0/1",
    assume_standard: Annotated[
        bool, typer.Option(help="Take the pages of a stock peer as standard, whatever this side's are.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compares two sides in everything that decides whether copied bytes mean the same. Exit code 1 where refused."""
    with refusals(as_json):
        try:
            one = read(prefill, "prefill", _place(prefill_tp))
            other = read(decode, "decode", _place(decode_tp))
            report = _report(one, other, direction, assume_standard)
        except BadSide as error:
            fail(str(error))
    if as_json:
        dump(report_json(report))
    else:
        say_report(report)
    if not report.accepted:
        raise typer.Exit(REFUSED)


def _place(text: str) -> tuple[int, int]:
    rank, slash, size = text.partition("/")
    if not slash or not rank.isdigit() or not size.isdigit() or int(rank) >= int(size):
        raise BadSide(f"{text!r} is no place: write RANK/SIZE, such as 0/2")
    return int(rank), int(size)


def _report(prefill: Given, decode: Given, direction: Literal["read", "write"], standard: bool) -> kvr.Report:
    local, remote = (decode, prefill) if direction == "read" else (prefill, decode)
    if local.stock and remote.stock:
        return kvr.audit(local.stock, remote.stock)
    if local.stock:
        # Only the side that issues is checked with its layout, and a stock peer issues by its own rules.
        raise BadSide("the side that issues sends no formats: turn --direction round, or describe it in TOML")
    assume: Literal["standard"] | None = "standard" if standard else None
    if remote.stock:
        here = local.rank or _one_rank(local)
        return kvr.check(here, remote.stock, direction=direction, assume_untagged=assume)
    if local.rank and remote.rank:
        return kvr.check(local.rank, remote.rank, direction=direction)
    return kvr.check(_engine(local), _engine(remote), direction=direction)


def _one_rank(given: Given) -> kvr.RankLayout:
    assert given.side is not None
    return given.side.rank(0)


def _engine(given: Given) -> kvr.Engine:
    if given.side is not None:
        return kvr.Engine(given.side.ranks())
    assert given.rank is not None
    return kvr.Engine.uniform(given.rank)


def finding_json(finding: kvr.Finding) -> dict[str, Any]:
    """A finding as JSON."""
    return {"severity": finding.severity, **({"row": finding.row} if finding.row else {}), **fields(finding.error)}


def report_json(report: kvr.Report) -> dict[str, Any]:
    """A report as JSON."""
    return {
        "accepted": report.accepted,
        "advice": report.advice,
        "strategies": report.strategies,
        "runs_per_page": report.runs_per_page,
        "bytes_per_run": report.bytes_per_run,
        "findings": [finding_json(finding) for finding in report.findings],
        "omitted": report.omitted,
    }


def say_report(report: kvr.Report) -> None:
    """Prints a report: its findings, then the verdict."""
    screen = console()
    for line in str(report).splitlines():
        severity = line.partition(":")[0]
        screen.print(Text(line, style=STYLES.get(severity, "")), soft_wrap=True)
    if not report.accepted:
        say("refused")
        return
    runs = (
        ""
        if report.runs_per_page is None
        else f", {report.runs_per_page:,} runs a page of {report.bytes_per_run:,} bytes"
    )
    say(f"accepted: {report.advice}{runs}")


def verify(
    prefill: Annotated[Path, typer.Argument(help="TOML or a layout's message.")],
    decode: Annotated[Path, typer.Argument(help="TOML or a layout's message.")],
    descriptors: Annotated[
        Path | None,
        typer.Argument(help=".npz with `local` and `remote`, uint64 (N, 3): prove these instead of the plan."),
    ] = None,
    direction: Annotated[
        Literal["read", "write"], typer.Option(help="read: decode pulls; write: prefill pushes.")
    ] = "read",
    as_json: Json = False,
) -> None:
    """Proves a plan element by element, or that a list of descriptors stays inside regions and writes no byte twice."""
    with refusals(as_json):
        try:
            one, other = read(prefill, "prefill", (0, 1)), read(decode, "decode", (0, 1))
            for given, path in ((one, prefill), (other, decode)):
                if given.stock:
                    raise BadSide(f"{path}: a stock handshake says nothing of the inside of a page")
            local, remote = (other, one) if direction == "read" else (one, other)
            if descriptors is None:
                with working("proving", quiet=as_json):
                    count = _verify_plans(local, remote, direction)
                said = f"{count} plans are right: every element from the right place, none missing, none twice"
            else:
                count = _verify_list(local, remote, direction, descriptors)
                said = f"{count:,} descriptors stay inside one region on each side and write no byte twice"
        except BadSide as error:
            fail(str(error))
        if as_json:
            dump({"accepted": True, "count": count})
        else:
            say(said)


def _verify_plans(local: Given, remote: Given, direction: Literal["read", "write"]) -> int:
    if local.rank and remote.rank:
        kvr.plan(local.rank, remote.rank, direction=direction).verify()
        return 1
    if local.side is None or remote.side is None:
        raise BadSide("a layout is one rank, and TOML an engine: give two of a kind")
    here, there = local.side.ranks(), remote.side.ranks()
    route = kvr.route(local=kvr.Engine(here), remote=kvr.Engine(there), direction=direction)
    into: dict[int, list[kvr.Plan]] = {}
    for edge in route.edges:
        one = kvr.plan(here[edge.local], there[edge.remote], edge=edge, direction=direction)
        into.setdefault(edge.local if direction == "read" else edge.remote, []).append(one)
    for plans in into.values():
        kvr.verify(plans)
    return len(route.edges)


def _verify_list(local: Given, remote: Given, direction: Literal["read", "write"], path: Path) -> int:
    if local.rank is None or remote.rank is None:
        raise BadSide("descriptors belong to two ranks: give two layouts' messages")
    try:
        with np.load(path, allow_pickle=False) as lists:
            rows = [np.ascontiguousarray(lists[name], dtype=np.uint64) for name in ("local", "remote")]
    except (OSError, KeyError, ValueError) as error:
        raise BadSide(f"{path}: {error}") from error
    if rows[0].ndim != 2 or rows[0].shape != rows[1].shape or rows[0].shape[1] != 3:
        raise BadSide(f"{path}: local and remote must be (N, 3) alike, not {rows[0].shape} and {rows[1].shape}")
    if not (rows[0][:, 1] == rows[1][:, 1]).all():
        raise BadSide(
            f"{path}: local and remote lengths differ in row {int((rows[0][:, 1] != rows[1][:, 1]).argmax())}"
        )
    kvr.verify_descriptors(local.rank, remote.rank, rows[0], rows[1], direction=direction)
    return len(rows[0])
