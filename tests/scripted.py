"""An agent that follows a script, for states that real NIXL rarely shows.

It also watches a rule of its own: no handle is released while its transfer is under way.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

import kvreshard as kvr
from kvreshard.nixl import wire
from tests.connector_rank import Spec

SPEC = Spec("here", engine="decode", pages=4)


def failure(name: str) -> type[Exception]:
    """An exception as the binding of NIXL has them."""
    return type(name, (Exception,), {"__module__": "nixl_cu13._bindings"})


LOST = failure("nixlRemoteDisconnectError")("NIXL_ERR_REMOTE_DISCONNECT")
BROKEN = failure("nixlBackendError")("NIXL_ERR_BACKEND")
MISSING = failure("nixlNotFoundError")("NIXL_ERR_NOT_FOUND")


class Scripted:
    """An agent whose transfers are in the state that the test says, by peer."""

    name = "here"

    def __init__(self) -> None:
        self.state: dict[str, str | Exception] = {}
        self.post: dict[str, str | Exception] = {}
        self.make: dict[str, Exception] = {}
        self.posted: list[str] = []
        self.alive: list[SimpleNamespace] = []
        self.told: list[tuple[str, bytes]] = []
        self.registered = 0
        self.prepared = 0
        self.peers: set[str] = set()
        self.telemetry = True
        self.endings: int | None = None
        """How many more transfers may be seen to end; `None`: all that the script lets."""

    def register_memory(self, reg_list: Any, mem_type: str) -> object:
        self.registered += 1
        return object()

    def deregister_memory(self, dereg_list: Any) -> None:
        self.registered -= 1

    def get_agent_metadata(self) -> bytes:
        return b"here"

    def add_remote_agent(self, metadata: bytes) -> bytes:
        self.peers.add(metadata.decode())
        return metadata

    def remove_remote_agent(self, agent: str) -> None:
        assert all(handle.peer != agent or self._over(handle) for handle in self.alive), "removed under a transfer"
        self.peers.remove(agent)

    def check_remote_metadata(self, agent: str) -> bool:
        return agent in self.peers

    def get_xfer_descs(self, descs: Any, mem_type: str) -> Any:
        return descs

    def prep_xfer_dlist(self, agent_name: str, xfer_list: Any, mem_type: str) -> Any:
        self.prepared += 1
        return agent_name

    def release_dlist_handle(self, handle: Any) -> None:
        self.prepared -= 1

    def make_prepped_xfer(
        self, operation: str, local: Any, local_ids: Any, remote: Any, remote_ids: Any, notif_msg: bytes
    ) -> Any:
        return self._made(remote)

    def initialize_xfer(self, operation: str, local: Any, remote: Any, remote_agent: str, notif_msg: bytes) -> Any:
        return self._made(remote_agent)

    def _made(self, peer: str) -> SimpleNamespace:
        if peer in self.make:
            raise self.make[peer]
        handle = SimpleNamespace(peer=peer, over=True)
        self.alive.append(handle)
        return handle

    def transfer(self, handle: Any) -> str:
        self.posted.append(handle.peer)
        return self._look(handle, self.post.get(handle.peer, "PROC"))

    def check_xfer_state(self, handle: Any) -> str:
        state = self.state.get(handle.peer, "PROC")
        if state == "DONE" and self.endings is not None:
            if self.endings == 0:
                return self._look(handle, "PROC")
            self.endings -= 1
        return self._look(handle, state)

    def _look(self, handle: Any, state: str | Exception) -> str:
        handle.over = state == "DONE" or state is LOST
        if isinstance(state, Exception):
            raise state
        return state

    def _over(self, handle: Any) -> bool:
        return bool(handle.over) or self.state.get(handle.peer) is LOST

    def get_xfer_telemetry(self, handle: Any) -> Any:
        if not self.telemetry:
            raise failure("nixlNoTelemetryError")("NIXL_ERR_NO_TELEMETRY")
        assert self._over(handle), "telemetry read before DONE"
        return SimpleNamespace(descCount=3, totalBytes=5, postDuration=7, xferDuration=11)

    def release_xfer_handle(self, handle: Any) -> None:
        assert self._over(handle), "released under way"
        self.alive.remove(handle)

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        raise AssertionError("a host's notices were taken")

    def send_notif(self, remote_agent_name: str, notif_msg: bytes) -> None:
        self.told.append((remote_agent_name, notif_msg))


def metadata(name: str, generation: int = 1, spec: Spec = SPEC, notices: int = 1) -> bytes:
    """What a peer of that name tells: two layers of pages that are nowhere."""
    layer_bytes = spec.pages * spec.format.page_bytes
    memory = np.zeros(spec.layers * layer_bytes, np.uint8)
    region = kvr.Region(memory.ctypes.data, memory.nbytes)
    layers = [
        kvr.Layer(
            f"layers.{number}",
            [kvr.Segment(region, spec.format, pages=spec.pages, offset=number * layer_bytes)],
            totals={"h": 8},
        )
        for number in range(spec.layers)
    ]
    layout = kvr.RankLayout(engine="prefill", layers=layers, generation=generation)
    return wire.encode(wire.Metadata(name, name.encode(), layout, generation, notices))
