"""When a connector did what, and how long its own work took: the profile behind `gpu_transfers.py --trace`.

Wraps methods of the connector from outside; while nothing is traced they run as they are.
"""

from __future__ import annotations

import cProfile
import functools
import io
import pstats
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from kvreshard.nixl import carrier, connector, landed, listener, packing

ENTRIES: list[tuple[Any, str]] = [
    (connector.Connector, "_issue"),
    (listener.Listener, "_hear"),
    (packing.Packing, "progress"),
    (landed.LandedLeg, "advance"),
]
"""What the connector is entered by: their time, where they found something to do, is the host's cost."""

STEPS: list[tuple[Any, str]] = [
    (carrier.Carrier, "_kernel"),
    (carrier.Carrier, "_kernel_ended"),
    (carrier.Carrier, "_move"),
    (carrier.Carrier, "_moved"),
    (carrier.Carrier, "_send"),
    (listener.Listener, "say"),
    (landed.LandedLeg, "_read_next"),
    (landed.LandedLeg, "_scatter"),
]


class Trace:
    """The steps of one process, while it is on."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []
        self._lines: list[tuple[float, float, str]] = []
        self._busy: defaultdict[str, float] = defaultdict(float)
        self._steps = 0
        self._depth = 0
        self._profile: cProfile.Profile | None = None

    def start(self, *, profiled: bool = False) -> None:
        """Begins anew; `profiled` runs Python's profiler instead, which slows everything down."""
        self.stop()
        if profiled:
            self._profile = cProfile.Profile()
            self._profile.enable()
            return
        self._lines.clear()
        self._busy.clear()
        for owner, name in ENTRIES + STEPS:
            method = getattr(owner, name)
            self._before.append((owner, name, method))
            setattr(owner, name, self._wrapped(method, name, entry=(owner, name) in ENTRIES))

    def stop(self) -> None:
        """Puts the methods back."""
        if self._profile is not None:
            self._profile.disable()
        while self._before:
            setattr(*self._before.pop())

    def profile(self) -> str:
        """What Python's profiler found."""
        if self._profile is None:
            return ""
        text = io.StringIO()
        pstats.Stats(self._profile, stream=text).sort_stats("cumtime").print_stats(70)
        self._profile = None
        return text.getvalue()

    @contextmanager
    def on(self, how: Literal["no", "traced", "profiled"]) -> Iterator[None]:
        """Traces the body, if wanted."""
        if how != "no":
            self.start(profiled=how == "profiled")
        try:
            yield
        finally:
            self.stop()

    def lines(self) -> list[tuple[float, float, str]]:
        """Begin, end and what, in the order of their ends."""
        return self._lines

    def summary(self) -> dict[str, float]:
        """Seconds by entry."""
        return dict(self._busy)

    def _wrapped(self, method: Callable[..., Any], name: str, *, entry: bool) -> Callable[..., Any]:
        @functools.wraps(method)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            self._depth += entry
            steps, begun = self._steps, time.perf_counter()
            try:
                return method(*arguments, **keywords)
            finally:
                ended = time.perf_counter()
                self._depth -= entry
                if not entry:
                    self._steps += 1
                    self._lines.append((begun, ended, f"{name} {_about(arguments)}"))
                elif self._depth == 0 and (self._steps > steps or name in ("_issue", "_hear")):
                    self._busy[name] += ended - begun
                    self._lines.append((begun, ended, f"[{name}]"))

        return timed


def _about(arguments: tuple[Any, ...]) -> str:
    """Role, action, slot, chunk of a step."""
    words = []
    for one in arguments[1:]:
        kind = getattr(one, "kind", None)
        if kind is not None:
            words.append(f"{kind} slot {one.slot} chunk {one.sequence}")
        elif isinstance(one, (str, int)):
            words.append(str(one))
    return " ".join(words)
