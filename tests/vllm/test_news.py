"""What is said to whom: stock peers hear nothing that is not vLLM's, and nobody's news is taken from vLLM."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.vllm.conftest import NEEDS_VLLM
from tests.vllm.harness import set_environment

if not os.environ.get("KVRESHARD_TEST_VLLM"):
    pytest.skip(f"KVRESHARD_TEST_VLLM is not {NEEDS_VLLM}", allow_module_level=True)
set_environment()

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import PUSH_REG_NOTIF_PREFIX  # noqa: E402  (see above)

import kvreshard.vllm  # noqa: E402
from kvreshard.vllm.push import PlannedPushWorker  # noqa: E402


class Wrapper:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send_notif(self, agent: str, notif_msg: bytes) -> None:
        self.sent.append(notif_msg)


@pytest.mark.parametrize("known", [True, False], ids=["ours", "stock"])
def test_a_registration_to_a_stock_peer_is_vllms(known: bool) -> None:
    """Which tokens it is for is said to a peer that announced that it understands us, and to no other."""
    worker: Any = object.__new__(PlannedPushWorker)
    worker.nixl_wrapper = Wrapper()
    worker._handshake_lock = threading.RLock()
    worker._remote_agents = {"source": {(0, 0): "agent"}}
    if known:
        worker._sources["source"] = {}
    plain = {"remote_engine_id": "source", "request_id": "request", "local_block_ids": [[1, 2]]}
    worker._do_send_reg_notif("request", {**plain, "kvreshard": {"tokens": 32, "first": 0}})
    (sent,) = worker.nixl_wrapper.sent
    assert sent.startswith(PUSH_REG_NOTIF_PREFIX)
    said = msgspec.msgpack.decode(sent[len(PUSH_REG_NOTIF_PREFIX) :])
    assert said == ({**plain, "kvreshard": {"tokens": 32, "first": 0}} if known else plain)


def test_the_queue_is_vllms() -> None:
    """An agent's news is taken by vLLM alone."""
    folder = Path(str(kvreshard.vllm.__file__)).parent
    sources = {path.name: path.read_text() for path in folder.glob("*.py")}
    assert "send_notif" in sources["push.py"]
    assert [name for name, text in sources.items() if "get_new_notifs" in text] == []
