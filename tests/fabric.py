"""Agents of one process that copy memory themselves: what real NIXL does between ranks, in the order that a test says.

Each agent holds what it is given against NIXL's rules: descriptors lie in registered memory of their side, ids are
int32, handles are released once and never under way, and nothing is left when an agent ends.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kvreshard.nixl import rank
from kvreshard.nixl.agent import Agent
from tests.scripted import LOST, MISSING

Rows = npt.NDArray[np.uint64]


@dataclass(eq=False)
class Prepared:
    """Rows `address, bytes, device, stride, count` of one side."""

    owner: str
    rows: Rows
    memory: str

    def numbered(self, ids: npt.NDArray[np.int32]) -> Rows:
        """The descriptors of those numbers, `address, bytes, device`."""
        assert ids.dtype == np.int32
        every = [
            (address + number * stride, size, device)
            for address, size, device, stride, count in self.rows.tolist()
            for number in range(count)
        ]
        return np.array(every, np.uint64).reshape(-1, 3)[ids]


@dataclass(eq=False)
class Handle:
    """A transfer between descriptors of two agents."""

    operation: str
    ours: Rows
    theirs: Rows
    peer: str
    notice: bytes
    state: str = "made"


@dataclass
class Fabric:
    """What connects the agents. A transfer ends when it is looked at, unless `held` says that it is not to yet."""

    agents: dict[str, Fake] = field(default_factory=dict)
    held: Callable[[Handle], bool] = field(default=lambda handle: False)
    made: list[Handle] = field(default_factory=list)
    told: list[tuple[str, str, bytes]] = field(default_factory=list)
    """Every message that was sent: sender, receiver, bytes."""
    lost: Callable[[str, str, bytes], bool] = field(default=lambda sender, receiver, message: False)
    """Which messages do not arrive."""
    refused: Callable[[Handle], Exception | None] = field(default=lambda handle: None)
    """What is raised where a transfer is posted; but for `LOST` and `MISSING` it begins all the same."""
    ending: bool = False
    """Whether an agent is about to end, so that handles may be released under way."""

    def deliver(self, sender: str, receiver: str, message: bytes) -> None:
        assert isinstance(message, bytes)
        self.told.append((sender, receiver, message))
        if not self.lost(sender, receiver, message):
            self.agents[receiver].heard.setdefault(sender, []).append(message)


class Fake:
    """One agent, as far as `Agent` uses it."""

    def __init__(self, name: str, fabric: Fabric) -> None:
        assert name not in fabric.agents
        self.name, self.fabric = name, fabric
        fabric.agents[name] = self
        self.regions: list[tuple[int, int, int, str]] = []
        self.peers: set[str] = set()
        self.prepared: list[Prepared] = []
        self.alive: list[Handle] = []
        self.heard: dict[str, list[bytes]] = {}

    # Memory

    def register_memory(self, reg_list: Sequence[tuple[int, int, int, str]], mem_type: str) -> object:
        ((address, size, device, _),) = reg_list
        region = (address, size, device, mem_type)
        assert region not in self.regions
        self.regions.append(region)
        return region

    def deregister_memory(self, dereg_list: Any) -> None:
        self.regions.remove(dereg_list)

    def _holds(self, rows: Rows, memory: str) -> None:
        for address, size, device in rows.tolist():
            assert any(
                base <= address and address + size <= base + length and (device, memory) == (at, kind)
                for base, length, at, kind in self.regions
            ), f"{size} bytes of {memory} at {address:#x} are not registered with {self.name}"

    # Peers

    def get_agent_metadata(self) -> bytes:
        return self.name.encode()

    def add_remote_agent(self, metadata: bytes) -> bytes:
        if metadata.decode() not in self.fabric.agents:
            raise MISSING
        self.peers.add(metadata.decode())
        return metadata

    def remove_remote_agent(self, agent: str) -> None:
        assert not any(handle.peer == agent for handle in self.alive), "removed under a transfer"
        self.peers.remove(agent)

    def check_remote_metadata(self, agent: str) -> bool:
        return agent in self.peers

    # Transfers

    def get_xfer_descs(self, descs: Rows, mem_type: str) -> tuple[Rows, str]:
        assert descs.dtype == np.uint64
        assert descs.shape[1] == 3
        return descs, mem_type

    def prep_xfer_dlist(self, agent_name: str, xfer_list: Rows, mem_type: str) -> Prepared:
        owner = self.name if agent_name == "NIXL_INIT_AGENT" else agent_name
        assert owner == self.name or owner in self.peers
        made = Prepared(owner, xfer_list, mem_type)
        self.prepared.append(made)
        return made

    def release_dlist_handle(self, handle: Prepared) -> None:
        self.prepared.remove(handle)

    def make_prepped_xfer(
        self, operation: str, local: Prepared, local_ids: Any, remote: Prepared, remote_ids: Any, notif_msg: bytes
    ) -> Handle:
        assert (local.owner, local in self.prepared, remote in self.prepared) == (self.name, True, True)
        ours, theirs = (local.numbered(local_ids), local.memory), (remote.numbered(remote_ids), remote.memory)
        return self.initialize_xfer(operation, ours, theirs, remote.owner, notif_msg)

    def initialize_xfer(
        self, operation: str, local: tuple[Rows, str], remote: tuple[Rows, str], remote_agent: str, notif_msg: bytes
    ) -> Handle:
        assert operation in ("READ", "WRITE")
        assert isinstance(notif_msg, bytes)
        if remote_agent not in self.peers:
            raise MISSING
        self._holds(*local)
        self.fabric.agents[remote_agent]._holds(*remote)
        assert local[0][:, 1].tolist() == remote[0][:, 1].tolist()
        handle = Handle(operation, local[0], remote[0], remote_agent, notif_msg)
        self.alive.append(handle)
        self.fabric.made.append(handle)
        return handle

    def transfer(self, handle: Handle) -> str:
        assert handle.state == "made"
        refused = self.fabric.refused(handle)
        handle.state = "lost" if refused in (LOST, MISSING) else "PROC"
        if refused is not None:
            raise refused
        return self.check_xfer_state(handle)

    def check_xfer_state(self, handle: Handle) -> str:
        assert handle in self.alive
        if handle.peer not in self.fabric.agents:
            handle.state = "lost"
            raise LOST
        if handle.state == "PROC" and not self.fabric.held(handle):
            for (ours, size, _), (theirs, _, _) in zip(handle.ours.tolist(), handle.theirs.tolist(), strict=True):
                ctypes.memmove(*((ours, theirs) if handle.operation == "READ" else (theirs, ours)), size)
            handle.state = "DONE"
            if handle.notice:
                self.fabric.deliver(self.name, handle.peer, handle.notice)
        return handle.state

    def get_xfer_telemetry(self, handle: Handle) -> Any:
        raise type("nixlNoTelemetryError", (Exception,), {"__module__": "nixl_cu13._bindings"})

    def release_xfer_handle(self, handle: Handle) -> None:
        assert handle.state != "PROC" or self.fabric.ending, "released under way"
        self.alive.remove(handle)

    # Messages

    def get_new_notifs(self) -> Mapping[str, Sequence[bytes]]:
        found, self.heard = self.heard, {}
        return found

    def send_notif(self, remote_agent_name: str, notif_msg: bytes) -> None:
        if remote_agent_name not in self.fabric.agents:
            raise LOST
        assert remote_agent_name in self.peers
        self.fabric.deliver(self.name, remote_agent_name, notif_msg)

    def end(self) -> None:
        """The process has ended."""
        del self.fabric.agents[self.name]


@contextmanager
def connected() -> Iterator[Fabric]:
    """Connectors that open an agent get one of these; at the end nothing may be left of any."""
    fabric = Fabric()

    def opened(name: str, **_: Any) -> Agent:
        return Agent(Fake(name, fabric), owned=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank, "open_agent", opened)
        yield fabric
    for name, agent in fabric.agents.items():
        assert (agent.regions, agent.prepared, agent.alive) == ([], [], []), name
