"""The connector classes that vLLM loads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import (
    NixlBaseConnector,
)
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPullConnector as StockPullConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPushConnector as StockPushConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_scheduler import NixlPushConnectorScheduler

from kvreshard.vllm.pull import PlannedPullWorker
from kvreshard.vllm.push import PlannedPushWorker, state_wanted

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request


class NixlPullConnector(StockPullConnector):
    """vLLM's pull connector with transfers planned by kvreshard."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        # Not the parent's own: it would build its own worker.
        NixlBaseConnector.__init__(self, vllm_config, role, kv_cache_config)
        made: tuple[Any, Any] = (None, None)
        if role == KVConnectorRole.SCHEDULER:
            made = (NixlPullConnectorScheduler(vllm_config, self.engine_id, kv_cache_config), None)
        elif role == KVConnectorRole.WORKER:
            made = (None, PlannedPullWorker(vllm_config, self.engine_id, kv_cache_config))
        self.connector_scheduler, self.connector_worker = made


class NixlPushConnector(StockPushConnector):
    """vLLM's push connector with transfers planned by kvreshard."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        NixlBaseConnector.__init__(self, vllm_config, role, kv_cache_config)
        if vllm_config.parallel_config.decode_context_parallel_size > 1:
            raise ValueError("NixlPushConnector does not support decode_context_parallel_size > 1.")
        made: tuple[Any, Any] = (None, None)
        if role == KVConnectorRole.SCHEDULER:
            made = (NixlPushConnectorScheduler(vllm_config, self.engine_id, kv_cache_config), None)
        elif role == KVConnectorRole.WORKER:
            made = (None, PlannedPushWorker(vllm_config, self.engine_id, kv_cache_config))
        else:
            raise ValueError(f"Unsupported KVConnectorRole: {role}")
        self.connector_scheduler: Any = made[0]
        self.connector_worker: Any = made[1]

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """As vLLM's, and says in a new registration which tokens it is for."""
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        state_wanted(self.connector_scheduler, request, num_external_tokens)


NixlConnector = NixlPullConnector
"""The connector that pulls, by the name that vLLM asks for in places."""
