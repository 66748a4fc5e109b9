"""Transfers between processes with pages in device memory, ranks spread over all visible GPUs.

Every scenario of the demonstration, byte for byte, the public bug among them; then what is a matter of devices:
streams, device ids, slow paths, calibration.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

import kvreshard as kvr
from tests.connector_rank import Spec, host, placed, publish, request, running, wait

pytest.importorskip("nixl")

from kvreshard.demo.rank import Spec as DemoSpec
from kvreshard.demo.run import turns
from kvreshard.demo.scenarios import SCENARIOS, Strategy
from kvreshard.nixl import Connector, calibrate, time_path
from kvreshard.nixl.control import Flow

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

DEVICES = torch.cuda.device_count()
LAST = f"cuda:{DEVICES - 1}"
TRANSFERS = [one.name for one in SCENARIOS if one.refused is None]
CONVERSIONS = {"convert-1-2", "convert-2-1"}


@pytest.mark.parametrize("name", TRANSFERS)
def test_every_scenario_moves_every_byte(name: str) -> None:
    """Direct where runs are not of single elements, landed where it is a pull, and packed."""
    (one,) = (one for one in SCENARIOS if one.name == name)
    strategies: list[Strategy] = ["packed"]
    if not one.push:
        strategies.append("landed")
    if name not in CONVERSIONS:
        strategies.append("direct")
    found = turns(replace(one, layers=3), strategies, stage=lambda stage: None, devices=DEVICES)
    assert [outcome.problems for outcome in found] == [[]] * len(strategies)
    assert all(outcome.elements > 0 and outcome.bytes > 0 for outcome in found)
    assert len({tuple(outcome.digests) for outcome in found}) == 1, "whoever moves them, the bytes are the same"


def test_the_demonstration_runs_on_devices() -> None:
    line = [sys.executable, "-m", "kvreshard.demo", "--memory", "vram", "--layers", "2", "b12x-1-2", "refuse-fp8"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(line, capture_output=True, text=True, env=environment, check=False, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "right" in done.stdout


def test_a_writer_that_lies_is_found_out() -> None:
    (one,) = (one for one in SCENARIOS if one.name == "convert-2-1")
    (found,) = turns(replace(one, layers=2), ["packed"], stage=lambda stage: None, devices=DEVICES, backwards=True)
    assert "elements wrong" in found.problems[0]


def test_ranks_are_spread_over_the_devices() -> None:
    one = SCENARIOS[0]
    prefill = [DemoSpec(one, "prefill", rank, devices=2).device for rank in range(3)]
    decode = [DemoSpec(one, "decode", rank, devices=2).device for rank in range(3)]
    assert prefill == ["cuda:0", "cuda:1", "cuda:0"]
    assert decode == ["cuda:1", "cuda:0", "cuda:1"]


@pytest.fixture
def here() -> Iterator[Connector]:
    with Connector("here", staging=48 << 20) as connector:
        yield connector


def test_device_ids_are_those_of_the_tensors(here: Connector) -> None:
    """Pages, staging and the descriptors that are posted, on this rank's device and on the peer's."""
    spec = Spec("here", engine="decode", heads=4, tp=(1, 2), device=LAST)
    mine = placed(spec, spec.arrays(1))
    publish(here, spec, mine)
    with running(Spec("there", device="cuda:0", options={"staging": 48 << 20})) as (there,):
        theirs = there.call("pages")
        peer = here.connect(there.call("metadata"))
        assert {region.device for region in here.regions} == {DEVICES - 1}
        assert {region.device for region in peer.layout.regions} == {0}
        assert peer.rings is not None
        assert {peer.rings.send.device, peer.rings.receive.device} == {0}
        assert {area.region.device for area in here._areas} == {DEVICES - 1}
        plan = peer.plan("read")
        assert set(plan.local_rows()[:, 2].tolist()) == {DEVICES - 1}
        assert set(plan.remote_rows()[:, 2].tolist()) == {0}
        every: list[Strategy] = ["direct", "landed", "packed"]
        for strategy in every:
            for cache in mine:
                cache.zero_()
            here.read(peer, request((0, 32), [7, 2], [0, 15]), id=strategy, strategy=strategy)
            wait(here, "Finished")
            for cache, source in zip(mine, theirs, strict=True):
                expected = source[[0, 15]].reshape(2, 2, -1)[:, 1]
                np.testing.assert_array_equal(host(cache)[[7, 2]], expected)


@pytest.mark.parametrize("strategy", ["direct", "packed"])
def test_what_the_stream_still_writes_is_sent_as_it_will_be(here: Connector, strategy: Strategy) -> None:
    """A write is issued while the kernels that fill its pages are queued behind slow ones."""
    spec = Spec("here", device="cuda:0")
    mine = placed(spec, spec.arrays(1))
    publish(here, spec, mine)
    there_spec = Spec("there", engine="decode", device=LAST, options={"staging": 48 << 20})
    with running(there_spec) as (there,), torch.cuda.stream(torch.cuda.Stream(0)):
        peer = here.connect(there.call("metadata"), direction="write")
        # What is compiled on first use must not hide what comes too early.
        here.write(peer, request((0, 16), [1], [2]), id="first", strategy=strategy, notify=False)
        wait(here, "Finished")
        before = [host(cache)[[7, 3]] for cache in mine]
        torch.cuda.synchronize()
        torch.cuda._sleep(400_000_000)
        for cache in mine:
            cache.bitwise_not_()
        here.write(peer, request((0, 32), [7, 3], [5, 6]), id="r", strategy=strategy, notify=False)
        assert here.in_flight == ("r",)
        wait(here, "Finished")
        for found, was in zip(there.call("pages", during=here), before, strict=True):
            np.testing.assert_array_equal(found[[5, 6]], ~was)


def test_pages_of_an_expected_request_are_gathered_when_they_are_complete(here: Connector) -> None:
    """The reader asks while the producer's stream is still at the pages that it was promised."""
    spec = Spec("here", device="cuda:0")
    mine = placed(spec, spec.arrays(1))
    publish(here, spec, mine)
    there_spec = Spec("there", engine="decode", device=LAST, options={"staging": 48 << 20})
    with running(there_spec) as (there,):
        name = there.call("connect", here.metadata(), {}, during=here)
        plain = ((0, 32), [5, 6], [7, 3], 0, 0)
        here.expect("first", readers=1)
        there.call("read", name, plain, "first", {"strategy": "packed"}, during=here)
        wait(here, "Released")
        before = [host(cache)[[7, 3]] for cache in mine]
        with torch.cuda.stream(torch.cuda.Stream(0)):
            torch.cuda._sleep(400_000_000)
            for cache in mine:
                cache.bitwise_not_()
            here.expect("r", readers=1)
        there.call("read", name, plain, "r", {"strategy": "packed"}, during=here)
        wait(here, "Released")
        for found, was in zip(there.call("pages", during=here), before, strict=True):
            np.testing.assert_array_equal(found[[5, 6]], ~was)


@pytest.mark.parametrize("flow", ["push", "pull"])
def test_what_is_said_to_have_arrived_is_in_the_pages(flow: Flow) -> None:
    """The stream that scatters is busy when the chunks come, and the host reads by another as soon as it is told."""
    spec = Spec("here", engine="decode", device="cuda:0")
    mine = placed(spec, spec.arrays(1))
    writer = Spec("there", device=LAST, options={"staging": 48 << 20})
    with Connector("here", staging=48 << 20, flow=flow) as here, running(writer) as (there,):
        publish(here, spec, mine)
        name = there.call("connect", here.metadata(), {"direction": "write"}, during=here)
        theirs = there.call("pages", during=here)
        # What is compiled on first use must not hide what comes too early.
        here.expect("first", writers=1)
        there.call("write", name, ((0, 16), [1], [2], 0, 0), "first", {"strategy": "packed"})
        wait(here, "Arrived")
        torch.cuda.synchronize()
        with torch.cuda.stream(here._areas[1].stream):
            torch.cuda._sleep(400_000_000)
        here.expect("r", writers=1)
        there.call("write", name, ((0, 32), [5, 6], [7, 3], 0, 0), "r", {"strategy": "packed"})
        wait(here, "Arrived")
        with torch.cuda.stream(torch.cuda.Stream(0)):
            found = [host(cache)[[7, 3]] for cache in mine]
        for pages, source in zip(found, theirs, strict=True):
            np.testing.assert_array_equal(pages, source[[5, 6]])


def test_a_pair_of_devices_is_calibrated(here: Connector) -> None:
    spec = Spec("here", engine="decode", device="cuda:0", pages=512)
    publish(here, spec, placed(spec, spec.arrays(1)))
    with running(Spec("there", device=LAST, pages=512)) as (there,):
        peer = here.connect(there.call("metadata"))
        found = calibrate(here, peer, repeats=3, idle=True)
        print(found)
        assert peer.transport == found
        # A descriptor is worth far more bytes than it is over host memory.
        assert found.hole > kvr.Transport.named("cma").hole
        path = time_path(here, peer)
        assert not path.slow, path.said
        assert path.bytes_per_second > 10e9


SLOW = """
from kvreshard.nixl.loopback import other_process
from kvreshard.nixl import time_path
if __name__ == "__main__":
    with other_process((0, 0)) as (here, peer):
        path = time_path(here, peer)
    print(path.slow, path.said)
"""


def test_a_slow_path_is_told_in_words(tmp_path: object) -> None:
    """Without GET zero-copy UCX reads memory of its own device through TCP, and no error says so. That was seen on a
    machine with one GPU; on one with two, linked by NVLink, reads took cuda_ipc all the same.
    """
    program = f"{tmp_path}/slow.py"
    with open(program, "w") as file:
        file.write(SLOW)
    environment = {**os.environ, "UCX_CUDA_IPC_ENABLE_GET_ZCOPY": "n", "PYTHONPATH": os.pathsep.join(sys.path)}
    line = [sys.executable, program]
    done = subprocess.run(line, capture_output=True, text=True, env=environment, check=False, timeout=150)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()[-1]
    if DEVICES > 1:
        assert said.startswith("False reads from calibrated-")
        return
    assert said.startswith("True reads from calibrated-")
    assert "Set UCX_CUDA_IPC_ENABLE_GET_ZCOPY=y before the NIXL agent is made" in said


def test_the_doctor_sees_the_devices() -> None:
    from kvreshard.cli.devices import described, devices

    found = devices(transfer=True)
    assert found is not None
    print("\n".join(described(found)))
    assert len(found["names"]) == DEVICES
    assert len(found["paths"]) == min(DEVICES, 4) ** 2
    assert all(one["right"] for one in found["paths"]), found["paths"]
    assert all("cuda_ipc" in one["transports"] for one in found["paths"]), found["paths"]
