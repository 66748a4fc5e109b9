"""Runs scenarios: starts the ranks, brings them together, and gathers what they moved and found."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvreshard.demo.rank import TIMEOUT, Checked, Crash, Moved, Ready, Refusal, Spec, serve
from kvreshard.demo.scenarios import SIDES, Scenario, Strategy, Which


class RankFailed(Exception):
    """A rank's process ended, did not answer, or raised what it should not."""


@dataclass
class Outcome:
    """What came of a scenario.

    `posted` descriptors by NIXL's telemetry and `fewest` possible, `bytes` moved, `seconds` of the slowest rank from
    its call to the end of its transfers, `elements` read back, `problems` if anything is wrong, and the `refusal`. The
    `strategies` used, the seconds `expected` of them, and `digests` of the memory of each decode rank.
    """

    scenario: Scenario
    posted: int = 0
    fewest: int = 0
    bytes: int = 0
    seconds: float = 0.0
    elements: int = 0
    strategies: frozenset[str] = frozenset()
    expected: float = 0.0
    digests: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    refusal: Refusal | None = None

    @property
    def good(self) -> bool:
        """Whether it came out as it must."""
        return not self.problems


class Process:
    """The driver's hold on a rank."""

    def __init__(self, spec: Spec) -> None:
        # A fresh interpreter: a forked one would share the state of NIXL's and numpy's threads.
        context = multiprocessing.get_context("spawn")
        self.spec = spec
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, spec), name=spec.name, daemon=True)
        self._process.start()
        theirs.close()

    def tell(self, command: str, *arguments: Any) -> None:
        """Sends a command; `answer` has its result."""
        try:
            self._pipe.send((command, arguments))
        except OSError as error:
            raise RankFailed(f"{self.spec.name} is gone") from error

    def answer(self) -> Any:
        """The result of the command sent last; a `Refusal` is a result."""
        # A rank's own deadlines come first: they know more.
        if not self._pipe.poll(2 * TIMEOUT):
            raise RankFailed(f"{self.spec.name} does not answer")
        try:
            result = self._pipe.recv()
        except (EOFError, OSError) as error:
            self._process.join(1.0)
            raise RankFailed(f"{self.spec.name} ended with exit code {self._process.exitcode}") from error
        if isinstance(result, Crash):
            raise RankFailed(f"{self.spec.name}:\n{result.trace}")
        return result

    def end(self) -> None:
        """Makes sure that the process is gone."""
        self._pipe.close()
        self._process.join(0.1)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def run(scenario: Scenario, *, stage: Callable[[str], None], backwards: bool = False, devices: int = 0) -> Outcome:
    """Runs one scenario; `stage` hears what is going on. With `backwards` the writer does not do as its format says;
    with `devices` pages are on so many of them.
    """
    (outcome,) = turns(scenario, [scenario.strategy], stage=stage, backwards=backwards, devices=devices)
    return outcome


def turns(
    scenario: Scenario,
    strategies: Sequence[Strategy],
    *,
    stage: Callable[[str], None],
    backwards: bool = False,
    devices: int = 0,
) -> list[Outcome]:
    """Runs one scenario by one strategy after the other, in the same processes: an outcome each, in order.

    Before each the decode side's memory is what it was at first.
    """
    ranks: dict[Which, list[Process]] = {which: [] for which in SIDES}
    outcomes = [Outcome(replace(scenario, strategy=strategy)) for strategy in strategies]
    staging = scenario.staging or any(strategy != "direct" for strategy in strategies)
    scenario = replace(scenario, strategy=strategies[0], staging=staging)
    at = outcomes[0]
    try:
        stage("starting and filling")
        for which in SIDES:
            for rank in range(scenario.side(which).tp):
                ranks[which].append(Process(Spec(scenario, which, rank, backwards, devices)))
        ready: list[Ready] = [_right(rank.answer()) for rank in (*ranks["prefill"], *ranks["decode"])]
        if not _meet(at, ranks["prefill"], ranks["decode"], ready, stage):
            return outcomes[:1]
        for turn, at in enumerate(outcomes):
            if turn > 0:
                for answer in _ask((*ranks["decode"], *ranks["prefill"]), "again", at.scenario.strategy):
                    _right(answer)
            _move(at, ranks["prefill"], ranks["decode"], ready, stage)
        for problems in _ask((*ranks["prefill"], *ranks["decode"]), "quit"):
            at.problems += _right(problems)
    except RankFailed as failure:
        at.problems.append(str(failure))
    finally:
        for process in (*ranks["prefill"], *ranks["decode"]):
            process.end()
    return outcomes


def _meet(
    outcome: Outcome,
    prefill: list[Process],
    decode: list[Process],
    ready: list[Ready],
    stage: Callable[[str], None],
) -> bool:
    """Has the ranks connect and plan; false when they refused."""
    everyone = [*prefill, *decode]
    ours, theirs = ready[: len(prefill)], ready[len(prefill) :]
    stage("planning")
    for rank in prefill:
        rank.tell("join", ours, theirs)
    for rank in decode:
        rank.tell("join", theirs, ours)
    if _refused(outcome, [(rank, rank.answer()) for rank in everyone]):
        _ask(everyone, "quit")
        return False
    return True


def _move(
    outcome: Outcome,
    prefill: list[Process],
    decode: list[Process],
    ready: list[Ready],
    stage: Callable[[str], None],
) -> None:
    """Moves the request, and looks at every byte."""
    stage("moving")
    issuers, others = (prefill, decode) if outcome.scenario.push else (decode, prefill)
    moves: list[Moved] = [_right(answer) for answer in _ask(issuers, "move")]
    outcome.posted = sum(one.posted for one in moves)
    outcome.bytes = sum(one.bytes for one in moves)
    outcome.seconds = max(one.seconds for one in moves)
    outcome.expected = max(one.expected for one in moves)
    outcome.strategies = frozenset(name for one in moves for name in one.strategies)
    for problems in _ask(others, "told_of_the_end"):
        outcome.problems += _right(problems)

    stage("checking")
    for rank in decode:
        rank.tell("check", [one.places for one in ready[: len(prefill)]])
    for rank in prefill:
        rank.tell("unchanged")
    for rank in decode:
        checked: Checked = _right(rank.answer())
        outcome.elements += checked.elements
        outcome.fewest += checked.fewest
        outcome.digests.append(checked.digest)
        outcome.problems += [f"{rank.spec.name}: {problem}" for problem in checked.problems]
    for rank in prefill:
        outcome.problems += [f"{rank.spec.name}: {problem}" for problem in _right(rank.answer())]


def _ask(ranks: Iterable[Process], command: str, *arguments: Any) -> list[Any]:
    """Sends a command to all, then waits for all."""
    asked = list(ranks)
    for rank in asked:
        rank.tell(command, *arguments)
    return [rank.answer() for rank in asked]


def _right(answer: Any) -> Any:
    """An answer that must not be a refusal."""
    if isinstance(answer, Refusal):
        raise RankFailed(f"{answer.kind}: {answer.text}")
    return answer


def _refused(outcome: Outcome, answers: list[tuple[Process, Any]]) -> bool:
    """Whether the pair was refused; a problem unless it was to be, and by every rank that would issue transfers."""
    refusals = [answer for _, answer in answers if isinstance(answer, Refusal)]
    outcome.refusal = refusals[0] if refusals else None
    wanted = outcome.scenario.refused
    if wanted is None:
        outcome.problems += sorted({f"refused, {one.kind}: {one.text}" for one in refusals})
        return bool(refusals)
    for rank, answer in answers:
        if rank.spec.issues and not (isinstance(answer, Refusal) and answer.kind == wanted):
            found = answer.kind if isinstance(answer, Refusal) else "nothing"
            outcome.problems.append(f"{rank.spec.name} was to raise {wanted}, and raised {found}")
    return True
