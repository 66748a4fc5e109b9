"""What every command prints with: tables and JSON on standard output, complaints on standard error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

import kvreshard as kvr

REFUSED = 1
"""Exit code: refused, or found wrong."""
WRONG_USE = 2
"""Exit code: the command was given something that makes no sense, or lacks what it needs."""

PLAIN_WIDTH = 140
"""Columns where the output is no terminal."""


def console(*, stderr: bool = False) -> Console:
    """Colours and the terminal's width on a terminal only."""
    found = Console(stderr=stderr, highlight=False)
    if found.is_terminal:
        return found
    return Console(stderr=stderr, highlight=False, width=PLAIN_WIDTH, no_color=True)


def say(*things: Any) -> None:
    """Prints texts and tables. A text is printed as it is, markup in it included."""
    screen = console()
    for thing in things:
        screen.print(Text(thing) if isinstance(thing, str) else thing, soft_wrap=isinstance(thing, (str, Text)))


def table(*columns: str, title: str | None = None, numbers: tuple[int, ...] = ()) -> Table:
    """An empty table; the columns at `numbers` are flush right."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for at, column in enumerate(columns):
        made.add_column(column, justify="right" if at in numbers else "left", overflow="fold")
    return made


def dump(value: Any) -> None:
    """Prints a value as JSON and nothing else."""
    print(json.dumps(value, indent=2, default=str))


def fail(text: str, code: int = WRONG_USE) -> NoReturn:
    """Complains and exits."""
    console(stderr=True).print(Text(f"kvreshard: {text}"), soft_wrap=True)
    raise typer.Exit(code)


def save(path: Path, data: str | bytes) -> None:
    """Writes a file, or complains and exits."""
    try:
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    except OSError as error:
        fail(f"{path}: {error.strerror}")


def fields(error: kvr.Error) -> dict[str, Any]:
    """An error as JSON: its kind, its text and the attributes that apply."""
    names = ("layer", "field", "local", "remote", "found", "expected", "remedy", "at", "side", "limit", "group")
    found = {name: getattr(error, name, None) for name in names}
    kept = {name: value for name, value in found.items() if value is not None}
    return {"error": type(error).__name__, "text": str(error), **kept}


@contextmanager
def refusals(as_json: bool = False) -> Iterator[None]:
    """Turns errors into messages and exit codes: 1 where a pair is refused, 2 where an input is wrong."""
    try:
        yield
    except kvr.Error as error:
        refused = isinstance(error, (kvr.IncompatibleLayout, kvr.MissingLayer, kvr.VerificationError))
        code = REFUSED if refused else WRONG_USE
        if as_json:
            dump({"accepted": False, **fields(error)})
            raise typer.Exit(code) from error
        fail(f"{'refused: ' if refused else ''}{error}", code)


@contextmanager
def working(what: str, *, quiet: bool) -> Iterator[None]:
    """Shows on a terminal's standard error that something is under way whose steps nobody counts."""
    screen = console(stderr=True)
    if quiet or not screen.is_terminal:
        yield
        return
    with screen.status(what):
        yield


@contextmanager
def progress(what: str, total: int, *, quiet: bool) -> Iterator[Any]:
    """A bar on a terminal's standard error; yields what to call after each of `total` steps."""
    screen = console(stderr=True)
    if quiet or not screen.is_terminal:
        yield lambda: None
        return
    from rich.progress import Progress

    with Progress(console=screen, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)
