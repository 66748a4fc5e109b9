"""The bindings of the packed protocol: a whole transfer between two machines, over bytes."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Literal

import numpy as np
import pytest

import kvreshard as kvr

SLOT = 64


class Host:
    """Both machines, with bytes in the slots and pages, and a network that loses the first messages."""

    def __init__(self, flow: Literal["push", "pull"], slots: int = 3, lose: int = 0) -> None:
        self.receiver = kvr.RingReceiver(slots=slots, slot_bytes=SLOT, epoch=100, resend=1)
        self.sender = kvr.RingSender(slots=slots, slot_bytes=SLOT, epoch=200, resend=1)
        self.ring, self.staging = (np.zeros((slots, SLOT), np.uint8) for _ in range(2))
        self.source: dict[str, np.ndarray[Any, np.dtype[np.uint8]]] = {}
        self.pages: dict[str, np.ndarray[Any, np.dtype[np.uint8]]] = {}
        self.reports: list[tuple[str, str, str | None]] = []
        self.lose = lose
        self.flow = flow
        self.goes: dict[int, int | None] = {}
        session = (self.receiver.epoch, self.sender.epoch)
        self.receiver.peer_up(1, session, flow, slots)
        self.sender.peer_up(2, session, flow, slots)

    def add(self, request: str, count: int) -> None:
        self.source[request] = np.random.default_rng(count).integers(0, 256, count, np.uint8)
        self.pages[request] = np.zeros(count, np.uint8)

    def run(self, actions: list[kvr.RingAction]) -> None:
        todo = deque(actions)
        while todo:
            todo.extend(self.do(todo.popleft()))

    def do(self, action: kvr.RingAction) -> list[kvr.RingAction]:
        slot, remote, start, count = (
            number or 0 for number in (action.slot, action.remote_slot, action.offset, action.bytes)
        )
        request = action.request or ""
        match action.kind:
            case "send":
                assert action.frame is not None
                if self.lose > 0:
                    self.lose -= 1
                    return []
                if kvr.ring_frame_to(action.frame) == "receiver":
                    return self.receiver.message(1, action.frame)
                return self.sender.message(2, action.frame)
            case "gather":
                self.staging[slot, :count] = self.source[request][start : start + count]
                self.goes[slot] = action.remote_slot
                assert (action.remote_slot is None) == (self.flow == "pull")
                return self.sender.gathered(slot, True)
            case "write":
                assert remote == self.goes[slot]
                self.ring[remote, :count] = self.staging[slot, :count]
                return self.sender.write_ended(slot, True)
            case "read":
                self.ring[slot, :count] = self.staging[remote, :count]
                return self.receiver.read_ended(slot, True)
            case "scatter":
                assert action.remote_slot is None
                self.pages[request][start : start + count] = self.ring[slot, :count]
                return self.receiver.scattered(slot, True)
            case _:
                self.reports.append((action.kind, request, action.reason))
                return []


@pytest.mark.parametrize("flow", ["push", "pull"])
@pytest.mark.parametrize("lose", [0, 1, 3])
def test_every_byte_arrives(flow: Literal["push", "pull"], lose: int) -> None:
    host = Host(flow, lose=lose)
    for request, count in [("long", 50 * SLOT + 3), ("short", 5)]:
        host.add(request, count)
        host.run(host.receiver.want(1, request, count, SLOT))
        host.run(host.sender.offer(2, request, count, SLOT))
    for _ in range(10):
        host.run(host.receiver.tick())
        host.run(host.sender.tick())
    for request, source in host.source.items():
        np.testing.assert_array_equal(host.pages[request], source)
        assert host.reports.count(("finished", request, None)) == 2
    assert host.receiver.free == host.sender.free == 3


def test_progress_and_reports() -> None:
    host = Host("push")
    actions = host.receiver.want(1, "r", 3 * SLOT, SLOT, deadline=5)
    assert host.receiver.progress(1, "r") == (0, 3, False)
    host.run(actions)
    assert host.sender.is_asked(2, "r")
    assert host.reports == [("asked", "r", None)]
    host.run(host.sender.withdraw(2, "r"))
    assert host.reports[1:] == [("failed", "r", "cancelled")]
    assert host.receiver.progress(1, "r") is None


def test_what_was_asked_for_tells_its_size() -> None:
    host = Host("pull")
    (want,) = host.receiver.want(1, "r", 3 * SLOT, SLOT)
    assert (want.kind, want.peer, want.slot, want.request) == ("send", 1, None, None)
    assert want.frame is not None
    (asked,) = host.sender.message(2, want.frame)
    assert (asked.kind, asked.peer, asked.request) == ("asked", 2, "r")
    assert (asked.bytes, asked.chunk_bytes) == (3 * SLOT, SLOT)


def test_a_lost_writer_leaves_quarantine() -> None:
    host = Host("push")
    host.receiver.want(1, "r", 3 * SLOT, SLOT)
    (_, failed) = host.receiver.peer_down(1)
    assert (failed.kind, failed.reason, failed.held, failed.by_peer) == ("failed", "peer lost", False, False)
    assert host.receiver.quarantined == 1
    assert host.receiver.slot(0) == ("quarantined", 1)
    assert host.receiver.epoch == 101
    host.receiver.peer_gone(1)
    assert (host.receiver.quarantined, host.receiver.free) == (0, 3)


def test_errors() -> None:
    host = Host("push")
    with pytest.raises(kvr.Error, match="slot 0 is free, not scattering") as caught:
        host.receiver.scattered(0, True)
    assert (caught.value.field, caught.value.found) == ("slot 0", "is free, not scattering")
    with pytest.raises(kvr.LimitExceeded):
        host.receiver.want(1, "r", SLOT, 2 * SLOT)
    with pytest.raises(kvr.Error, match="push or pull"):
        host.receiver.peer_up(3, (100, 1), "shove", 1)  # type: ignore[arg-type]
    with pytest.raises(kvr.WireError):
        host.sender.message(2, b"kvreshard-ring\x00\x92\x01\xc0")
    with pytest.raises(kvr.WireError):
        kvr.ring_frame_to(b"kvreshard-ring\x00")
    assert kvr.ring_frame_to(b"kvreshard\x00other") is None
    with pytest.raises(kvr.LimitExceeded):
        kvr.RingSender(slots=1, slot_bytes=1, epoch=0, minimum=2)


def test_machines_may_be_shared_by_threads() -> None:
    sender = kvr.RingSender(slots=4, slot_bytes=SLOT, epoch=0, requests=4000)
    sender.peer_up(2, (0, 0), "push", 4)

    def offer(at: int) -> None:
        for number in range(200):
            sender.offer(2, f"{at}-{number}", SLOT, SLOT)
            sender.tick()

    threads = [threading.Thread(target=offer, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(sender.progress(2, f"{at}-{number}") == (0, 1, False) for at in range(4) for number in range(200))
