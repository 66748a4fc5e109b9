"""A fork's own worker behind ours, as docs/vllm.md says: ours asks it where vLLM's would be asked."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.vllm.conftest import NEEDS_VLLM
from tests.vllm.harness import set_environment

if not os.environ.get("KVRESHARD_TEST_VLLM"):
    pytest.skip(f"KVRESHARD_TEST_VLLM is not {NEEDS_VLLM}", allow_module_level=True)
set_environment()

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import (  # noqa: E402  (see above)
    NixlPullConnectorWorker,
)
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_worker import NixlPushConnectorWorker  # noqa: E402

from kvreshard.vllm.pull import PlannedPullWorker  # noqa: E402
from kvreshard.vllm.push import PlannedPushWorker  # noqa: E402


@pytest.mark.parametrize(
    ("ours", "stock", "method"),
    [
        (PlannedPullWorker, NixlPullConnectorWorker, "_read_blocks_for_req"),
        (PlannedPushWorker, NixlPushConnectorWorker, "_xfer_blocks_for_req"),
    ],
)
def test_a_forks_worker_is_asked(ours: Any, stock: Any, method: str) -> None:
    """What is not planned for goes to the fork's own method, which goes on to vLLM's."""
    asked: list[str] = []

    def own(self: Any, req_id: str, meta: Any) -> None:
        asked.append(req_id)

    fork = type("Fork", (stock,), {method: own})
    worker: Any = object.__new__(type("Worker", (ours, fork), {}))
    unknown = type("Remote", (), {"engine_id": "unknown"})()
    getattr(worker, method)("request", type("Meta", (), {"remote": unknown})())
    assert asked == ["request"]
