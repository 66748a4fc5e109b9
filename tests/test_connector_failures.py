"""Peers that die, stop, register anew or leave in the middle, with real processes and real signals."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.connector_rank import Bytes, Rank, Spec, publish, request, running, wait

pytest.importorskip("nixl")

from kvreshard.nixl import (
    Closed,
    Connector,
    DeadlinePassed,
    Failed,
    Finished,
    Freed,
    NotConnected,
    PeerBusy,
    PeerDown,
    PeerLost,
    TransferError,
)

# Over TCP a transfer needs its peer's process, so stopping that holds the transfer; shared memory would not notice.
# NIXL makes no agent beside an NVIDIA device without the copy transport.
TCP = {"UCX_TLS": "tcp,cuda_copy" if Path("/dev/nvidiactl").exists() else "tcp"}

HERE = Spec("here", engine="decode", pages=64)
THERE = Spec("there", pages=64, environment=TCP)
ALL = list(range(64))


@pytest.fixture
def tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", TCP["UCX_TLS"])


@pytest.fixture
def here(tcp: None) -> Iterator[Connector]:
    with Connector("here") as connector:
        yield connector


def read_one(here: Connector, rank: Rank, data: bytes, mine: list[Bytes], id: str) -> None:
    """Connects and checks one page."""
    peer = here.connect(data)
    here.read(peer, request((0, 16), [1], [2]), id=id)
    assert isinstance(wait(here, "Finished")[-1], Finished)
    np.testing.assert_array_equal(mine[0][1], rank.call("pages", during=here)[0][2])


def landed(mine: list[Bytes], before: list[Bytes]) -> int:
    """Pages that changed."""
    return sum(int((a != b).any(axis=1).sum()) for a, b in zip(mine, before, strict=True))


def test_a_killed_peer_is_lost_its_requests_fail_and_it_can_be_connected_anew(here: Connector) -> None:
    mine = HERE.arrays(1)
    publish(here, HERE, mine)
    with running(THERE) as (there,):
        data = there.call("metadata")
        read_one(here, there, data, mine, "before")
        peer = here.connect(data)
        there.signal(signal.SIGSTOP)
        for id in ("one", "two"):
            here.read(peer, request((0, 1024), ALL, ALL), id=id)
        assert here.poll() == []
        there.kill()
        seen = wait(here, "PeerDown")
        until = time.monotonic() + 10
        while here.in_flight and time.monotonic() < until:
            seen += here.poll(timeout=0.05)
        (down,) = [event for event in seen if isinstance(event, PeerDown)]
        assert down.peer == "there"
        assert set(down.requests) == {"one", "two"}
        failed = [event for event in seen if isinstance(event, Failed)]
        assert {event.id for event in failed} == {"one", "two"}
        for event in failed:
            assert isinstance(event.reason, PeerLost)
            assert event.reason.request == event.id
            assert event.peers == ("there",)
            assert event.pages == "free" or Freed(event.id, "read") in seen
        assert here.in_flight == ()
        assert not peer.connected
        with pytest.raises(NotConnected):
            here.read(peer, request((0, 16), [1], [2]), id="three")
    with running(dataclasses.replace(THERE, pages=32)) as (again,):
        read_one(here, again, again.call("metadata"), mine, "after")


def test_a_peer_that_died_idle_is_lost_at_the_next_request(here: Connector) -> None:
    mine = HERE.arrays(1)
    publish(here, HERE, mine)
    with running(THERE) as (there,):
        peer = here.connect(there.call("metadata"))
        there.kill()
        here.read(peer, request((0, 16), [1], [2]), id="r")
        seen = wait(here, "PeerDown", "Failed")
        (failed,) = [event for event in seen if isinstance(event, Failed)]
        assert isinstance(failed.reason, PeerLost)
        assert failed.pages == "free"


def test_past_the_deadline_pages_are_held_until_the_transfer_ends(here: Connector) -> None:
    mine = HERE.arrays(1)
    before = [array.copy() for array in mine]
    publish(here, HERE, mine)
    with running(THERE) as (there,):
        data = there.call("metadata")
        theirs = there.call("pages")
        peer = here.connect(data)
        there.call("expect", "r", {"readers": 1})
        there.signal(signal.SIGSTOP)
        here.read(peer, request((0, 1024), ALL, ALL), id="r", deadline=0.2)
        (failed,) = wait(here, "Failed")
        assert (failed.id, failed.pages, failed.peers) == ("r", "held", ("there",))
        assert isinstance(failed.reason, DeadlinePassed)
        for _ in range(50):
            assert here.poll(timeout=0.005) == []
        assert list(here.in_flight) == ["r"]
        # Nothing that would lose sight of the transfer, or start a second one into the same pages under its name.
        for forbidden in (
            lambda: here.disconnect(peer),
            lambda: here.deregister(),
            lambda: here.publish(engine="other"),
        ):
            with pytest.raises(PeerBusy):
                forbidden()
        with pytest.raises(TransferError):
            here.read(peer, request((0, 16), [0], [0]), id="r")
        held = landed(mine, before)
        there.signal(signal.SIGCONT)
        assert wait(here, "Freed") == [Freed("r", "read")]
        # The bytes did come late, into pages that had been reported as failed: why they had to be held.
        assert held < landed(mine, before) == 2 * 64
        np.testing.assert_array_equal(mine[1], theirs[1])
        assert not here.in_flight
        read_one(here, there, data, mine, "after")


def test_one_slow_source_of_two_holds_the_pages(here: Connector) -> None:
    spec = dataclasses.replace(HERE)
    publish(here, spec, spec.arrays(1))
    specs = [dataclasses.replace(THERE, name=f"there-{rank}", heads=4, tp=(rank, 2)) for rank in (0, 1)]
    with running(*specs) as ranks:
        peers = [here.connect(rank.call("metadata", during=here)) for rank in ranks]
        ranks[1].signal(signal.SIGSTOP)
        here.read_all([(peer, request((0, 1024), ALL, ALL)) for peer in peers], id="r", deadline=0.3)
        (failed,) = wait(here, "Failed")
        assert failed.pages == "held"
        assert failed.peers == ("there-1",)
        ranks[1].signal(signal.SIGCONT)
        assert wait(here, "Freed") == [Freed("r", "read")]


def test_a_peer_that_registered_anew_is_connected_anew(here: Connector) -> None:
    mine = HERE.arrays(1)
    publish(here, HERE, mine)
    with running(THERE) as (there,):
        old = here.connect(there.call("metadata"))
        here.read(old, request((0, 16), [1], [2]), id="old")
        wait(here, "Finished")
        data = there.call("republish", 7, during=here)
        new = here.connect(data)
        assert new is not old
        assert new.generation > old.generation
        with pytest.raises(NotConnected):
            here.read(old, request((0, 16), [1], [2]), id="stale")
        read_one(here, there, data, mine, "new")


def test_closing_in_the_middle_names_what_did_not_end_and_nothing_lands_later(tcp: None) -> None:
    """With the progress thread, which would go on landing bytes if the agent were still there."""
    here = Connector("here", progress_thread=True)
    mine = HERE.arrays(1)
    publish(here, HERE, mine)
    with running(THERE) as (there,):
        peer = here.connect(there.call("metadata"))
        there.signal(signal.SIGSTOP)
        here.read(peer, request((0, 1024), ALL, ALL), id="r")
        started = time.monotonic()
        assert here.close(timeout=0.2) == ("r",)
        assert time.monotonic() - started < 5
        assert here.close() == ("r",)
        failed, freed = here.poll()
        assert isinstance(failed, Failed)
        assert (failed.id, failed.pages) == ("r", "held")
        assert freed == Freed("r", "read")
        at_close = [array.copy() for array in mine]
        there.signal(signal.SIGCONT)
        time.sleep(0.5)
        assert landed(mine, at_close) == 0
        with pytest.raises(Closed):
            here.read(peer, request((0, 16), [1], [2]), id="late")
        assert here.regions == ()


def test_closing_waits_for_what_ends_in_time(tcp: None) -> None:
    here = Connector("here")
    mine = HERE.arrays(1)
    publish(here, HERE, mine)
    with running(THERE) as (there,):
        theirs = there.call("pages")
        peer = here.connect(there.call("metadata"))
        here.read(peer, request((0, 1024), ALL, ALL), id="r")
        assert here.close(timeout=20) == ()
        assert [type(event) for event in here.poll()] == [Finished]
        np.testing.assert_array_equal(mine[1], theirs[1])
