"""Transfers between device memory of two processes, where there is a CUDA or ROCm device."""

from __future__ import annotations

import os
from typing import Literal

import numpy as np
import pytest

from tests.connector_rank import Spec, await_events, host, placed, publish, request, running, wait

pytest.importorskip("nixl")
pytest.importorskip("torch")

import torch

from kvreshard.nixl import Connector, NotRegistered, clearing

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or ROCm device")
BOTH = pytest.mark.parametrize("there_on", ["cuda", "cpu"])


@BOTH
@pytest.mark.parametrize("direction", ["read", "write"])
def test_pages_move_between_devices_and_the_rest_is_cleared(there_on: str, direction: Literal["read", "write"]) -> None:
    spec = Spec("here", engine="decode", heads=4, tp=(1, 2), device="cuda")
    mine = placed(spec, spec.arrays(1))
    with running(Spec("there", notation="n h k[d] v[d]", device=there_on)) as (there,), Connector("here") as here:
        publish(here, spec, mine)
        assert here.regions[0].memory == "VRAM"
        theirs = there.call("pages")
        peer = here.connect(there.call("metadata"), direction=direction)
        wanted = request((0, 21), [7, 2], [0, 15])
        (here.read if direction == "read" else here.write)(peer, wanted, id="r")
        wait(here, "Finished")
        after = there.call("pages", during=here)
        for layer, before in enumerate(spec.arrays(1)):
            ours = host(mine[layer]).view(np.uint16).reshape(16, 4, 16, 64)
            unchanged = before.view(np.uint16).reshape(16, 4, 16, 64)
            source = theirs[layer].view(np.uint16).reshape(16, 16, 8, 64)[:, :, 4:8].transpose(0, 2, 1, 3)
            target = after[layer].view(np.uint16).reshape(16, 16, 8, 64)[:, :, 4:8].transpose(0, 2, 1, 3)
            if direction == "read":
                expected = unchanged.copy()
                expected[[7, 2]] = source[[0, 15]]
                expected[2, :, 5:] = 0
                np.testing.assert_array_equal(ours, expected)
            else:
                expected = source.copy()
                expected[[0, 15]] = unchanged[[7, 2]]
                expected[15, :, 5:] = 0
                np.testing.assert_array_equal(target, expected)


def test_layers_in_both_kinds_of_memory_are_one_request() -> None:
    spec = Spec("here", engine="decode", device="cuda")
    arrays = spec.arrays(1)
    mine = [placed(spec, arrays)[0], arrays[1]]
    with running(Spec("there", device="cuda")) as (there,), Connector("here") as here:
        publish(here, spec, mine)
        there.call("expect", "r", {"readers": 1})
        peer = here.connect(there.call("metadata"))
        here.read(peer, request((0, 21), [7, 2], [0, 15]), id="r")
        (finished,) = wait(here, "Finished")
        assert len(finished.transfers) == 2
        await_events(there, here, ("Released", "r"))
        for layer, source in enumerate(there.call("pages", during=here)):
            expected = source[[0, 15]].view(np.uint16).reshape(2, 8, 16, 64)
            expected[1, :, 5:] = 0
            np.testing.assert_array_equal(host(mine[layer])[[7, 2]].view(np.uint16).reshape(2, 8, 16, 64), expected)


def test_reads_do_not_fall_back_to_tcp() -> None:
    """Unless told so before its agent is made, UCX reads device memory of the same host through TCP."""
    with Connector():
        assert os.environ["UCX_CUDA_IPC_ENABLE_GET_ZCOPY"] == "y"


def test_clearing_device_memory() -> None:
    with Connector() as connector:
        cache = torch.full((64,), 7, dtype=torch.uint8, device="cuda")
        connector.register(cache)
        rows = np.array([[cache.data_ptr() + 3, 30, cache.get_device()]], np.uint64)
        clearing.clear(rows, "VRAM", connector._memory)
        assert cache.tolist() == [7] * 3 + [0] * 30 + [7] * 31
        with pytest.raises(NotRegistered):
            clearing.clear(rows + np.array([[1 << 30, 0, 0]], np.uint64), "VRAM", connector._memory)
