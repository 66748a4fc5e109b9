"""What the demonstration prints: progress while it runs, a row a scenario, the texts of refusals and of failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import IO, Any

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from kvreshard.demo.run import Outcome
from kvreshard.demo.scenarios import Scenario

PLAIN_WIDTH = 120
"""Columns where the output is no terminal."""

COLUMNS = ("page format", "TP", "page", "posted", "fewest", "MiB", "bytes each", "ms", "verdict")
LEGEND = (
    "TP and tokens in a page: prefill -> decode. posted: descriptors by NIXL's telemetry; fewest: as few as can be if "
    "no kernel helps, by looking at every element. ms: of the slowest rank, from its call to the end, first contact "
    "included."
)


class Report:
    """Shows outcomes as they come: live on a terminal, a line each anywhere else.

    A `terse` one shows that it runs, on a terminal, and leaves the answer to others.
    """

    def __init__(self, scenarios: Sequence[Scenario], file: IO[str] | None = None, *, terse: bool = False) -> None:
        self._scenarios = scenarios
        self._terse = terse
        self._outcomes: list[Outcome] = []
        self._console = Console(file=file, highlight=False)
        if not self._console.is_terminal:
            self._console = Console(file=file, highlight=False, width=PLAIN_WIDTH, no_color=True)
        self._live = Live(console=self._console, auto_refresh=True, refresh_per_second=8, transient=True)

    def run(self, one: Callable[[Scenario, Callable[[str], None]], Outcome]) -> list[Outcome]:
        """Runs every scenario by `one`, which says what it is at; prints all there is to see; returns the outcomes."""
        if self._console.is_terminal:
            with self._live:
                self._each(one, self._refresh)
        else:
            self._each(one, lambda scenario, stage: None)
        if self._terse:
            return self._outcomes
        self._console.print(_table(self._outcomes))
        self._console.print(Text(LEGEND, style="dim"))
        self._console.print()
        for outcome in self._outcomes:
            for title, text in _texts(outcome):
                self._console.print(Text(title, style="bold"))
                self._console.print(Text(text), soft_wrap=True)
                self._console.print()
        return self._outcomes

    def say(self, text: str) -> None:
        """Prints a line."""
        self._console.print(Text(text))

    def _each(
        self, one: Callable[[Scenario, Callable[[str], None]], Outcome], show: Callable[[Scenario, str], None]
    ) -> None:
        for scenario in self._scenarios:
            outcome = one(scenario, lambda stage, scenario=scenario: show(scenario, stage))  # type: ignore[misc]
            self._outcomes.append(outcome)
            if not self._console.is_terminal and not self._terse:
                self.say(f"{len(self._outcomes):2} of {len(self._scenarios)}  {scenario.name}: {verdict(outcome)}")

    def _refresh(self, scenario: Scenario, stage: str) -> None:
        at = f" {len(self._outcomes) + 1} of {len(self._scenarios)}  {scenario.name}: {stage}"
        self._live.update(Group(_table(self._outcomes), Spinner("dots", Text(at))))


def verdict(outcome: Outcome) -> str:
    """In a word or two, how it came out."""
    if not outcome.good:
        return "WRONG"
    return "refused" if outcome.refusal else "right"


def _table(outcomes: Sequence[Outcome]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for at, name in enumerate(COLUMNS):
        table.add_column(name, justify="right" if 1 <= at <= 7 else "left", no_wrap=at > 0)
    for outcome in outcomes:
        table.add_row(*_row(outcome), style=None if outcome.good else "red")
    return table


def _row(outcome: Outcome) -> list[str]:
    one, other = outcome.scenario.prefill, outcome.scenario.decode
    posted = outcome.posted
    note = outcome.scenario.note
    what = [outcome.scenario.formats + (f", {note}" if note else ""), f"{one.tp} -> {other.tp}"]
    what.append(str(one.tokens) if one.tokens == other.tokens else f"{one.tokens} -> {other.tokens}")
    if not posted:
        return [*what, *[""] * 5, verdict(outcome)]
    numbers = [f"{posted:,}", f"{outcome.fewest:,}", f"{outcome.bytes / 2**20:.1f}", f"{outcome.bytes // posted:,}"]
    return [*what, *numbers, f"{outcome.seconds * 1e3:.0f}", verdict(outcome)]


def _texts(outcome: Outcome) -> list[tuple[str, str]]:
    """Titles and texts to print below the table."""
    found = [(f"{outcome.scenario.name} is wrong:", problem) for problem in outcome.problems]
    if outcome.good and outcome.refusal:
        found.append((f"{outcome.scenario.name} was refused, {outcome.refusal.kind}:", outcome.refusal.text))
    return found


def as_json(outcomes: Sequence[Outcome], seconds: float) -> dict[str, Any]:
    """Everything that is known of the outcomes, for `--json`."""
    return {
        "right": all(outcome.good for outcome in outcomes),
        "seconds": seconds,
        "scenarios": [
            {
                "name": one.scenario.name,
                "formats": one.scenario.formats,
                "tp": [one.scenario.prefill.tp, one.scenario.decode.tp],
                "page": [one.scenario.prefill.tokens, one.scenario.decode.tokens],
                "verdict": verdict(one),
                "posted": one.posted,
                "fewest": one.fewest,
                "bytes": one.bytes,
                "elements": one.elements,
                "seconds": one.seconds,
                "strategies": sorted(one.strategies),
                "problems": one.problems,
                "refusal": None if one.refusal is None else {"kind": one.refusal.kind, "text": one.refusal.text},
            }
            for one in outcomes
        ],
    }


def summary(outcomes: Sequence[Outcome], seconds: float) -> str:
    """All of it in a sentence."""
    moved = [one for one in outcomes if one.scenario.refused is None]
    refusals = [one for one in outcomes if one.scenario.refused is not None]
    wrong = [one for one in outcomes if not one.good]
    text = (
        f"{len(moved)} transfers, {sum(one.bytes for one in moved) / 2**20:.0f} MiB, "
        f"{sum(one.elements for one in moved):,} elements read back; "
        f"refusals wanted: {len(refusals)}; {seconds:.0f} s"
    )
    return f"{text}: {len(wrong)} WRONG" if wrong else f"{text}: all as it must be"
