"""What becomes of a request in the states that real NIXL rarely shows, through an agent that follows a script.

The scripted agent also watches a rule of its own: no handle is released while its transfer is under way.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kvreshard as kvr
from tests.connector_rank import Spec, publish, request

pytest.importorskip("msgspec")

from kvreshard.nixl import (
    Connector,
    DeadlinePassed,
    Failed,
    Finished,
    Freed,
    NotRegistered,
    PeerBusy,
    PeerDown,
    PeerLost,
    TransferError,
    Untracked,
    wire,
)

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
        return self._look(handle, self.state.get(handle.peer, "PROC"))

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


@pytest.fixture
def agent() -> Scripted:
    return Scripted()


@pytest.fixture
def here(agent: Scripted) -> Iterator[Connector]:
    connector = Connector(agent=agent)
    publish(connector, SPEC, SPEC.arrays(1))
    yield connector
    for peer in ("a", "b", "c"):
        agent.state[peer] = LOST
    connector.close(timeout=1)
    assert (agent.registered, agent.prepared, agent.alive, agent.peers) == (0, 0, [], set())


def metadata(name: str, generation: int = 1) -> bytes:
    memory = np.zeros(SPEC.pages * SPEC.format.page_bytes, np.uint8)
    region = kvr.Region(memory.ctypes.data, memory.nbytes)
    layers = [
        kvr.Layer(f"layers.{number}", [kvr.Segment(region, SPEC.format, pages=4)], totals={"h": 8}) for number in (0, 1)
    ]
    layout = kvr.RankLayout(engine="prefill", layers=layers, generation=generation)
    return wire.encode(wire.Metadata(name, name.encode(), layout, generation, 1))


PAGE = request((0, 16), [1], [2])


def test_a_failure_that_is_no_disconnect_holds_the_pages_until_the_connection_ends(
    here: Connector, agent: Scripted
) -> None:
    """NIXL reports the first bad descriptor; the others may still be under way."""
    peer = here.connect(metadata("a"))
    here.read(peer, PAGE, id="r")
    agent.state["a"] = BROKEN
    (failed,) = here.poll()
    assert isinstance(failed, Failed)
    assert isinstance(failed.reason, TransferError)
    assert (failed.pages, failed.reason.code, failed.reason.request) == ("held", "NIXL_ERR_BACKEND", "r")
    assert here.poll() == []
    with pytest.raises(PeerBusy):
        here.disconnect(peer)
    here.read(peer, PAGE, id="next")
    agent.state["a"] = LOST
    events = here.poll()
    assert [type(event) for event in events] == [Freed, Failed, PeerDown]
    assert Freed("r", "read") in events
    assert here.in_flight == ()


def test_a_peer_removed_by_the_host_under_a_transfer_holds_the_pages_for_good(agent: Scripted) -> None:
    here = Connector(agent=agent)
    publish(here, SPEC, SPEC.arrays(1))
    peer = here.connect(metadata("a"))
    here.read(peer, PAGE, id="r")
    agent.state["a"] = MISSING
    (failed,) = here.poll()
    assert isinstance(failed, Failed)
    assert isinstance(failed.reason, Untracked)
    assert failed.pages == "held"
    assert here.poll() == []
    assert here.close(timeout=0.01) == ("r",)
    assert here.poll() == []


def test_a_source_that_refuses_leaves_the_others_to_end(here: Connector, agent: Scripted) -> None:
    """The second of three is dead at the post: the first is under way, the third is not even posted."""
    peers = [here.connect(metadata(name)) for name in "abc"]
    agent.post["b"] = LOST
    here.read_all([(peer, PAGE) for peer in peers], id="r")
    assert agent.posted == ["a", "b"]
    failed, down = here.poll()
    assert isinstance(failed, Failed)
    assert isinstance(failed.reason, PeerLost)
    assert (failed.pages, failed.peers) == ("held", ("a", "b"))
    assert isinstance(down, PeerDown)
    assert (down.peer, down.requests) == ("b", ("r",))
    assert not peers[1].connected
    agent.state["a"] = "DONE"
    assert here.poll() == [Freed("r", "read")]
    assert agent.alive == []


def test_what_cannot_be_made_is_refused_before_anything_moves(here: Connector, agent: Scripted) -> None:
    peers = [here.connect(metadata(name)) for name in "ab"]
    agent.make["b"] = MISSING
    with pytest.raises(NotRegistered) as caught:
        here.read_all([(peer, request((3, 9), [1], [2])) for peer in peers], id="r")
    assert (caught.value.peer, caught.value.request) == ("b", "r")
    assert (agent.posted, agent.alive, here.in_flight) == ([], [], ())


def test_a_late_end_after_the_deadline_is_no_success(here: Connector, agent: Scripted) -> None:
    peer = here.connect(metadata("a"))
    here.read(peer, PAGE, id="r", deadline=0.0)
    (failed,) = here.poll()
    assert isinstance(failed, Failed)
    assert isinstance(failed.reason, DeadlinePassed)
    agent.state["a"] = "DONE"
    assert here.poll() == [Freed("r", "read")]
    here.read(peer, PAGE, id="r")
    (finished,) = here.poll()
    assert isinstance(finished, Finished)
    assert (finished.posted, finished.bytes, finished.transfers[0].seconds) == (3, 5, 11e-6)


def test_without_telemetry_the_plan_tells(here: Connector, agent: Scripted) -> None:
    agent.telemetry = False
    agent.post["a"] = "DONE"
    peer = here.connect(metadata("a"))
    here.read(peer, PAGE, id="r")
    (finished,) = here.poll()
    assert isinstance(finished, Finished)
    assert (finished.posted, finished.bytes) == (2, 2 * SPEC.format.page_bytes)


def test_rows_are_prepared_once_a_peer_and_direction(here: Connector, agent: Scripted) -> None:
    agent.post["a"] = "DONE"
    peer = here.connect(metadata("a"))
    for number in range(3):
        here.read(peer, PAGE, id=str(number))
    assert agent.prepared == 2
    here.write(peer, PAGE, id="w")
    assert agent.prepared == 4
    here.connect(metadata("a", generation=2))
    assert agent.prepared == 0


def test_a_host_that_closes_in_the_middle_keeps_the_memory_alive(agent: Scripted) -> None:
    connector = Connector(agent=agent)
    publish(connector, SPEC, SPEC.arrays(1))
    peer = connector.connect(metadata("a"))
    connector.read(peer, PAGE, id="r")
    assert connector.close(timeout=0.01) == ("r",)
    (failed,) = connector.poll()
    assert isinstance(failed, Failed)
    assert failed.pages == "held"
    assert connector.poll() == []
    # The handle lives on, and so does the peer: NIXL lands the bytes whatever is done here.
    assert [handle.peer for handle in agent.alive] == ["a"]
    assert agent.peers == {"a"}
    assert agent.registered == 0
