"""An agent and a peer of its, between which one leg moves bytes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from kvreshard.nixl.agent import Agent
from kvreshard.nixl.events import Predicted
from kvreshard.nixl.leg import DirectLeg, Stage
from tests.fabric import Fabric, Fake

NOTICE = b"all of it is here"


class Two:
    """An agent with 64 bytes, and a peer's with as many."""

    def __init__(self) -> None:
        self.fabric = Fabric()
        self.agent, self.other = Fake("here", self.fabric), Fake("there", self.fabric)
        self.mine, self.theirs = np.zeros(64, np.uint8), np.arange(64, dtype=np.uint8)
        for fake, memory in ((self.agent, self.mine), (self.other, self.theirs)):
            fake.register_memory([(memory.ctypes.data, 64, 0, "")], "DRAM")
        self.agent.add_remote_agent(b"there")
        self.wrapped = Agent(self.agent, owned=True)
        self.peer: Any = SimpleNamespace(name="there")

    def stage(self, start: int, notice: bytes = b"") -> Stage:
        rows = [
            (np.array([[memory.ctypes.data + start, 16, 0]], np.uint64), "DRAM") for memory in (self.mine, self.theirs)
        ]
        return Stage(self.wrapped.make_exact("READ", "there", rows[0], rows[1], notice), False, 1, 16)

    def leg(self, count: int = 2, predicted: Predicted | None = None) -> DirectLeg:
        notices = [b""] * (count - 1) + [NOTICE]
        stages = [self.stage(16 * number, notices[number]) for number in range(count)]
        return DirectLeg(self.wrapped, self.peer, stages, NOTICE, predicted)
