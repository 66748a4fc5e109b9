"""What is said of a path that bytes take: by how fast long runs move, and only where it is certain."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kvreshard.cli.devices import described, transports
from tests.connector_rank import Spec, publish, running

pytest.importorskip("nixl")

from kvreshard.nixl import Connector, Peer, Telemetry, time_path
from kvreshard.nixl.path import judge, watch

MIB = 1 << 20


def peer(memory: str = "VRAM") -> Peer:
    """As much of a peer as is looked at."""
    return cast(Peer, SimpleNamespace(name="prefill-0", memory=frozenset({memory}), slow={}))


def moved(bytes: int, seconds: float, posted: int = 1) -> Telemetry:
    return Telemetry("prefill-0", posted, bytes, 0.0, seconds, False)


def test_half_a_gigabyte_a_second_is_slow_for_device_memory_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UCX_CUDA_IPC_ENABLE_GET_ZCOPY", raising=False)
    found = judge(peer(), "read", 0.5e9)
    assert found.slow
    assert found.said.startswith("reads from prefill-0 move 0.5 GB/s: device memory goes a long way round")
    assert "Set UCX_CUDA_IPC_ENABLE_GET_ZCOPY=y before the NIXL agent is made" in found.said
    written = judge(peer(), "write", 0.5e9).said
    assert written == (
        "writes to prefill-0 move 0.5 GB/s: device memory goes a long way round, most likely through TCP. See that "
        "UCX_TLS leaves cuda_ipc or an RDMA transport in, and what `kvreshard doctor` says"
    )
    monkeypatch.setenv("UCX_CUDA_IPC_ENABLE_GET_ZCOPY", "y")
    assert judge(peer(), "read", 0.5e9).said == written.replace("writes to", "reads from")
    assert [judge(peer(), "read", rate).slow for rate in (1.99e9, 2e9)] == [True, False]
    assert not judge(peer("DRAM"), "read", 0.5e9).slow
    assert judge(peer(), "read", 300e9).said == "reads from prefill-0 move 300 GB/s"


def test_a_slow_path_is_logged_once_it_is_certain(caplog: pytest.LogCaptureFixture) -> None:
    """Not for the first transfer, which also connects; nor for short runs, which tell what a descriptor costs."""
    one = peer()
    with caplog.at_level(logging.WARNING):
        watch(one, "read", [moved(4 * MIB, 0.01)])
        watch(one, "read", [moved(64 * MIB, 0.0001)])
        watch(one, "read", [moved(4 * MIB, 0.01)])
        watch(one, "read", [moved(4 * MIB, 1.0, posted=1024), moved(4 * MIB, 0.0)])
        watch(one, "write", [moved(4 * MIB, 0.01)])
        assert not caplog.records
        watch(one, "read", [moved(4 * MIB, 0.01)])
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        watch(one, "read", [moved(4 * MIB, 0.01)] * 5)
        assert len(caplog.records) == 1
        watch(peer("DRAM"), "read", [moved(4 * MIB, 1.0)] * 5)
        assert len(caplog.records) == 1


def test_a_transfer_of_a_mebibyte_a_descriptor_tells_of_the_path(caplog: pytest.LogCaptureFixture) -> None:
    """One without descriptors or bytes does not, and does not keep others from being looked at."""
    one = peer()
    with caplog.at_level(logging.WARNING):
        watch(
            one,
            "write",
            [moved(2 * MIB - 1, 1.0, posted=2), moved(MIB, 1.0), moved(MIB, 0.0), moved(2 * MIB, 1.0, posted=2)],
        )
    [record] = caplog.records
    assert record.getMessage() == judge(one, "write", 2 * MIB).said
    assert "writes to prefill-0 move 0.0021 GB/s" in record.getMessage()
    assert one.slow == {"write": 2}
    with caplog.at_level(logging.WARNING):
        watch(one, "write", [moved(4 * MIB, 0.0001), *[moved(2 * MIB, 1.0)] * 3])
        assert len(caplog.records) == 1, "said once, whatever comes between"
        watch(one, "read", [moved(2 * MIB, 1.0)] * 2)
    assert caplog.records[1].getMessage().startswith("reads from prefill-0 move ")


def test_a_path_is_timed_and_nothing_is_changed() -> None:
    spec = Spec("here", engine="decode")
    mine = spec.arrays(1)
    with Connector("here") as here, running(Spec("there")) as (there,):
        publish(here, spec, mine)
        theirs = there.call("pages")
        one = here.connect(there.call("metadata"))
        for direction in ("read", "write"):
            found = time_path(here, one, cast(Any, direction))
            assert found.bytes_per_second > 0
            assert not found.slow
        for now, before in zip(there.call("pages", during=here), theirs, strict=True):
            assert (now == before).all()


LOG = """\
[1.1] [vm:1:0]   | active message by ucp_am_send* from host memory |
[1.1] [vm:1:0]   |   0..626 | short              | tcp/lo       |
[1.2] [vm:1:0]   | remote memory read by ucp_get*(multi) into cuda/GPU0 from cuda/dev[1] |
[1.2] [vm:1:0]   | Range  | Description |                     Config                     |
[1.2] [vm:1:0]   | 0..inf | zero-copy   | cuda_ipc/cuda                                  |
[1.3] [vm:1:0]   | remote memory write by ucp_put* from host memory to cuda/dev[1] |
[1.3] [vm:1:0]   | 0..inf | copy-in     | rc_mlx5/mlx5_0:1                               |
"""


def test_the_transport_is_read_from_what_ucx_logs() -> None:
    assert transports(LOG) == ["cuda_ipc"]
    assert transports("") == []


def test_devices_are_described_for_a_person() -> None:
    path = {"here": 0, "there": 1, "right": True, "said": "reads move 300 GB/s", "transports": ["cuda_ipc"]}
    found = {
        "names": ["NVIDIA H200"] * 2,
        "cuda": "13.0",
        "driver": "580.1",
        "peer_access": [[True, False], [True, True]],
        "paths": [path],
    }
    assert described(found) == [
        "2 devices: NVIDIA H200; CUDA or ROCm 13.0, driver 580.1",
        "peer access: none from 0 to 1",
        "device 0 with 1 by cuda_ipc: reads move 300 GB/s",
    ]
