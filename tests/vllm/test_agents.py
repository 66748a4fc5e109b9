"""Agents are made with NIXL's lock, which vLLM leaves out although it uses them from several threads."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from tests.vllm.conftest import NEEDS_VLLM
from tests.vllm.harness import set_environment

if not os.environ.get("KVRESHARD_TEST_VLLM"):
    pytest.skip(f"KVRESHARD_TEST_VLLM is not {NEEDS_VLLM}", allow_module_level=True)
set_environment()

from nixl import nixl_thread_sync_t  # noqa: E402  (vLLM reads the environment when it is imported)
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker  # noqa: E402

from kvreshard.vllm.agents import locked_agents  # noqa: E402
from kvreshard.vllm.pull import PlannedPullWorker  # noqa: E402
from kvreshard.vllm.push import PlannedPushWorker  # noqa: E402
from kvreshard.vllm.worker import PlannedWorker  # noqa: E402


class Agent:
    """Keeps how it was asked for."""

    def __init__(self, name: str, config: Any) -> None:
        self.config = config


@pytest.fixture(autouse=True)
def agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """No agent of NIXL is made."""
    monkeypatch.setattr(base_worker, "NixlWrapper", Agent)


def test_the_lock_is_added() -> None:
    """With vLLM's own configurations, and only meanwhile."""
    with locked_agents():
        made = [
            base_worker.NixlWrapper("name", base_worker.nixl_agent_config(num_threads=4, capture_telemetry=True)),
            base_worker.NixlWrapper("name", base_worker.nixl_agent_config(backends=[], capture_telemetry=True)),
        ]
    assert [agent.config.sync_mode for agent in made] == [nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT] * 2
    assert all(agent.config.enable_pthread for agent in made)
    assert base_worker.NixlWrapper is Agent


def test_another_lock_stays() -> None:
    """What vLLM asks for it gets, whatever the configuration is."""
    shared = nixl_thread_sync_t.NIXL_THREAD_SYNC_RW
    with locked_agents():
        assert (
            base_worker.NixlWrapper("name", base_worker.nixl_agent_config(sync_mode=shared)).config.sync_mode == shared
        )
        assert base_worker.NixlWrapper("name", None).config is None


def test_a_failure_leaves_vllms_class() -> None:
    """An error while an agent is made."""
    with pytest.raises(KeyError), locked_agents():
        raise KeyError
    assert base_worker.NixlWrapper is Agent


@pytest.mark.parametrize("kind", [PlannedPullWorker, PlannedPushWorker])
def test_workers_have_it(kind: type[PlannedWorker], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever vLLM's constructor makes is made so."""

    def constructor(self: Any, vllm_config: Any, engine_id: str, kv_cache_config: Any) -> None:
        self.nixl_wrapper = base_worker.NixlWrapper(engine_id, base_worker.nixl_agent_config())

    monkeypatch.setattr(base_worker.NixlBaseConnectorWorker, "__init__", constructor)
    monkeypatch.setattr(base_worker.NixlBaseConnectorWorker, "__del__", lambda self: None)
    config = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector_extra_config={}))
    worker = kind(config, "engine", None)
    assert worker.nixl_wrapper.config.sync_mode == nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
