"""Packed: the sender gathers a request's bytes into chunks, each moves in one run, the receiver scatters it."""

from __future__ import annotations

import time
from typing import Protocol

from .agent import Agent
from .events import Predicted, Telemetry
from .leg import Leg, Stage
from .parcels import Parcel


class Carrier(Protocol):
    """What carries parcels: `Packing`."""

    def open(self, parcel: Parcel) -> None:
        """Takes a parcel of this side's."""

    def nudge(self, parcel: Parcel, now: float) -> None:
        """Sees to it that it gets on."""

    def drop(self, parcel: Parcel) -> None:
        """Gives it up."""


class PackedLeg(Leg):
    """One peer's part of a request, packed. Either side may have issued it; this one did."""

    strategy = "packed"

    def __init__(
        self, agent: Agent, packing: Carrier, parcel: Parcel, notice: bytes, predicted: Predicted | None = None
    ) -> None:
        super().__init__(agent, parcel.peer, notice, predicted)
        self._packing = packing
        self._parcel = parcel

    def _start(self) -> None:
        self.state = "running"
        self._packing.open(self._parcel)
        self.advance()

    def advance(self, *, go_on: bool = True) -> None:
        """Looks at what became of the parcel."""
        if not self.moving:
            return
        parcel = self._parcel
        if parcel.state == "open":
            if go_on:
                self._packing.nudge(parcel, time.monotonic())
            else:
                self.stop()
        elif parcel.state == "done":
            bytes = sum(chunk.bytes for chunk in parcel.chunks)
            self.measured.append(Telemetry(self.peer.name, len(parcel.chunks), bytes, 0.0, 0.0, False))
            self._conclude(told=False)
        else:
            self.error = self.error or parcel.error
            self.state = "stuck" if parcel.held else "ended"

    def cancel(self) -> None:
        """Ends a leg that has nothing in flight."""
        self.stop()

    def stop(self) -> None:
        """Gives the parcel up; its pages are held only while a kernel is at them."""
        if self.state == "done":
            return
        if self.state == "running":
            self._packing.drop(self._parcel)
        self.state = "stuck" if self._parcel.held else "ended"

    def abandon(self) -> list[Stage]:
        """Gives it up for good."""
        self.stop()
        self.state = "ended"
        return []
