"""The states that one peer's part of a request goes through, by the diagram of `kvreshard.nixl.leg`."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("msgspec")

from kvreshard.nixl.errors import NotRegistered, PeerLost, TransferError
from kvreshard.nixl.events import Predicted, Telemetry
from kvreshard.nixl.leg import DirectLeg
from tests.fabric import Handle
from tests.legs import NOTICE, Two
from tests.scripted import BROKEN, LOST, MISSING, failure
from tests.told import told


@pytest.fixture
def two() -> Two:
    return Two()


def test_stages_go_one_after_the_other(two: Two) -> None:
    leg = two.leg(3, Predicted(3, 48, 1.5))
    assert (leg.state, leg.moving, leg.strategy, leg.error) == ("ready", False, "direct", None)
    leg.advance()
    assert [handle.state for handle in two.fabric.made] == ["made"] * 3
    begun = time.monotonic()
    two.fabric.held = lambda handle: handle is not two.fabric.made[0]
    leg.start()
    assert (leg.state, leg.moving) == ("running", True)
    assert [handle.state for handle in two.fabric.made] == ["DONE", "PROC", "made"]
    leg.advance()
    assert (leg.state, len(two.agent.alive)) == ("running", 2)
    assert two.other.heard == {}
    time.sleep(0.002)
    two.fabric.held = lambda handle: False
    leg.advance()
    assert (leg.state, leg.moving, leg.error, two.agent.alive) == ("done", False, None, [])
    assert two.mine[:48].tolist() == two.theirs[:48].tolist()
    assert not two.mine[48:].any()
    # The last transfer carries the notice.
    assert two.other.heard == {"here": [NOTICE]}
    assert leg.measured == [Telemetry("there", 1, 16, 0.0, 0.0, False)] * 3
    share = leg.share
    assert (share.peer, share.strategy, share.posted, share.bytes, share.predicted) == (
        "there",
        "direct",
        3,
        48,
        Predicted(3, 48, 1.5),
    )
    assert 0.002 <= share.seconds <= time.monotonic() - begun
    leg.advance()
    assert leg.state == "done"


def test_what_nixl_measured_counts(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(descCount=2, totalBytes=15, postDuration=3, xferDuration=7)
    monkeypatch.setattr(two.agent, "get_xfer_telemetry", lambda handle: found)
    stage = two.stage(0)
    stage.prepared = True
    leg = DirectLeg(two.wrapped, two.peer, [stage], NOTICE)
    leg.start()
    assert leg.measured == [Telemetry("there", 2, 15, 3e-6, 7e-6, True)]
    assert (leg.share.posted, leg.share.bytes) == (2, 15)


def test_nothing_to_move_is_done_and_told(two: Two) -> None:
    leg = DirectLeg(two.wrapped, two.peer, [], NOTICE)
    leg.start()
    assert (leg.state, leg.measured) == ("done", [])
    assert two.other.heard == {"here": [NOTICE]}
    silent = DirectLeg(two.wrapped, two.peer, [], b"")
    silent.start()
    assert (silent.state, two.other.heard) == ("done", {"here": [NOTICE]})


def test_nothing_to_move_and_nobody_to_tell_has_failed(two: Two) -> None:
    leg = DirectLeg(two.wrapped, two.peer, [], NOTICE)
    two.other.end()
    leg.start()
    assert (leg.state, type(leg.error)) == ("ended", PeerLost)


@pytest.mark.parametrize(
    ("raised", "kind", "state"),
    [(LOST, PeerLost, "ended"), (MISSING, NotRegistered, "ended"), (BROKEN, TransferError, "stuck")],
)
def test_a_post_that_is_refused(two: Two, raised: Exception, kind: type, state: str) -> None:
    leg = two.leg()
    two.fabric.refused = lambda handle: raised
    two.fabric.held = lambda handle: True
    leg.start()
    assert (leg.state, type(leg.error), leg.moving) == (state, kind, state == "stuck")
    assert told(leg.error)[1]["peer"] == "there"
    assert len(two.agent.alive) == (2 if state == "stuck" else 0)
    leg.advance()
    assert leg.state == state
    two.fabric.held = lambda handle: False
    leg.advance()
    assert (leg.state, two.agent.alive, type(leg.error)) == ("ended", [], kind)
    # It has failed, whatever has arrived since: nobody is told, and the next is not posted.
    assert [handle.state for handle in two.fabric.made][1] == "made"


@pytest.mark.parametrize(("raised", "kind", "state"), [(LOST, PeerLost, "ended"), (BROKEN, TransferError, "stuck")])
def test_a_transfer_that_fails_under_way(
    two: Two, raised: Exception, kind: type, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leg = two.leg()
    two.fabric.held = lambda handle: True
    leg.start()

    def look(handle: Handle) -> str:
        handle.state = "lost" if raised is LOST else "PROC"
        raise raised

    with monkeypatch.context() as patch:
        patch.setattr(two.agent, "check_xfer_state", look)
        for _ in range(2):
            leg.advance()
            assert (leg.state, type(leg.error), leg.moving) == (state, kind, state == "stuck")
    assert told(leg.error)[1]["peer"] == "there"
    first = leg.error
    two.fabric.held = lambda handle: False
    leg.advance()
    assert (leg.state, leg.error, two.agent.alive) == ("ended", first, [])


def test_a_request_that_failed_elsewhere_goes_no_further(two: Two) -> None:
    leg = two.leg()
    leg.stop()
    assert (leg.state, two.agent.alive) == ("ended", [])
    leg = two.leg()
    two.fabric.held = lambda handle: True
    leg.start()
    leg.stop()
    leg.advance(go_on=False)
    assert (leg.state, len(two.agent.alive)) == ("running", 2)
    two.fabric.held = lambda handle: False
    leg.advance(go_on=False)
    assert (leg.state, two.agent.alive, leg.error) == ("ended", [], None)
    assert two.fabric.made[-1].state == "made"
    # The last stage was under way: all of it is here.
    leg = two.leg(1)
    two.fabric.held = lambda handle: True
    leg.start()
    two.fabric.held = lambda handle: False
    leg.advance(go_on=False)
    assert leg.state == "done"


def test_a_leg_is_abandoned_with_what_is_under_way(two: Two) -> None:
    leg = two.leg()
    two.fabric.held = lambda handle: True
    leg.start()
    stages = list(leg.stages)
    assert leg.abandon() == stages
    assert (leg.state, leg.stages, len(two.agent.alive)) == ("ended", [], 2)


def test_a_handle_that_is_not_released_is_no_failure(
    two: Two, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(handle: Handle) -> None:
        raise failure("nixlBackendError")("NIXL_ERR_BACKEND")

    leg = two.leg(1)
    monkeypatch.setattr(two.agent, "release_xfer_handle", refused)
    leg.start()
    assert leg.state == "done"
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == "peer there: NIXL could not release a transfer: NIXL_ERR_BACKEND"
