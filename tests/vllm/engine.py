"""One engine of real vLLM on host memory: a scheduler connector, and worker connectors with caches for all ranks."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import socket
import tempfile
import threading
import uuid
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from tests.vllm.setting import Case, Side, backend_of, interior, settings_of

SEED = 11
UNTOUCHED = 0xA5


class Engine:
    """One engine: a scheduler connector, and a worker connector and caches for every rank."""

    def __init__(self, name: str, side: Side, case: Case, role: str, model: str) -> None:
        self.side, self.case = side, case
        self.engine_id = f"{name}-{uuid.uuid4().hex[:8]}"
        self.port = _free_port()
        self.blocks = case.blocks or 2 * -(-case.tokens // side.page) * case.rounds + 3
        self.connectors: list[Any] = []
        self.caches: list[dict[str, Any]] = []
        self.configs: list[Any] = []
        cores = os.sched_getaffinity(0)
        try:
            for stage in range(side.pp):
                for rank in range(side.tp):
                    self._build(stage, rank, role, model)
        finally:
            os.sched_setaffinity(0, cores)

    def held(self, rank: int) -> tuple[int, int]:
        """The global heads of a rank."""
        total, size = self.case.heads, self.side.tp
        first = rank * total // size
        return first, max(first + 1, (rank + 1) * total // size)

    def _names(self, stage: int) -> list[str]:
        """The layers of a pipeline stage."""
        count = self.case.layers // self.side.pp
        return [f"model.layers.{index}.self_attn.attn" for index in range(stage * count, (stage + 1) * count)]

    def _build(self, stage: int, rank: int, role: str, model: str) -> None:
        import torch
        from vllm._aiter_ops import rocm_aiter_ops
        from vllm.config import set_current_vllm_config
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
        from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker
        from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
        from vllm.v1.core.kv_cache_planning import get_global_kv_cache_groups, get_kv_cache_configs
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVQuantMode
        from vllm.v1.worker.utils import allocate_kv_cache, select_common_block_size

        side, case = self.side, self.case
        config = self._config(role, model)
        config.parallel_config.rank = stage * side.tp + rank
        backend = backend_of(side.format)
        low, high = self.held(rank)
        spec = FullAttentionSpec(
            block_size=side.page,
            num_kv_heads=high - low,
            head_size=case.head_size,
            dtype=torch.uint8 if side.format == "nvfp4" else config.model_config.dtype,
            kv_quant_mode=KVQuantMode.NVFP4 if side.format == "nvfp4" else KVQuantMode.NONE,
        )
        shuffled = side.format == "aiter_shuffle"
        with patch.object(rocm_aiter_ops, "is_shuffle_kv_cache_enabled", staticmethod(lambda: shuffled)):
            spec = backend.customize_spec(spec)
            config.cache_config.kv_cache_layout = side.layout
            layouts = [layout.name for layout in backend.supported_kv_cache_layouts()]
            with set_current_vllm_config(config):
                layout = resolve_kv_cache_layout(config, [layouts], [spec])
        config.cache_config.kv_cache_layout = layout.name
        names = self._names(stage)
        for name in names:
            config.compilation_config.static_forward_context[name] = _layer(backend, spec)
        with set_current_vllm_config(config):
            stages = [dict.fromkeys(self._names(other), spec) for other in range(side.pp)]
            groups = get_global_kv_cache_groups(config, stages)
            cache_config = get_kv_cache_configs(config, stages, [1 << 34] * side.pp, groups)[stage]
        kernel = select_common_block_size(side.page, [backend], [spec])
        caches = allocate_kv_cache(cache_config, torch.device("cpu"), layout, [kernel])
        for cache in caches.values():
            cache.untyped_storage().fill_(UNTOUCHED)
        with (
            set_current_vllm_config(config),
            patch.object(base_worker, "get_tensor_model_parallel_rank", lambda: rank),
            patch.object(base_worker, "get_tensor_model_parallel_world_size", lambda: side.tp),
        ):
            # A thread that spins for every rank would leave two cores no time for the transfers; all ranks poll.
            quiet = functools.partial(base_worker.nixl_agent_config, enable_prog_thread=False)
            with patch.object(base_worker, "nixl_agent_config", quiet), self._locked():
                connector = KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, cache_config)
            connector.register_kv_caches(caches)
        self.connectors.append(connector)
        self.caches.append(caches)
        self.configs.append((config, cache_config))
        self.kernel = kernel

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        """NIXL's lock for agents of stock connectors; ours see to it themselves.

        Without NIXL's progress thread an agent stands no use by several threads: see `tests.vllm.threads`.
        """
        from kvreshard.vllm.agents import locked_agents

        return locked_agents() if self.side.connector == "stock" else contextlib.nullcontext()

    def _config(self, role: str, model: str) -> Any:
        from vllm.config import (
            CacheConfig,
            DeviceConfig,
            KVTransferConfig,
            ModelConfig,
            ParallelConfig,
            SchedulerConfig,
            VllmConfig,
        )

        side, case = self.side, self.case
        length = max(64, (self.blocks - 2) * side.page)
        name = "NixlConnector" if case.mode == "pull" else "NixlPushConnector"
        extra: dict[str, Any] = {"enforce_handshake_compat": case.enforce_hash, "num_threads": 0}
        if side.connector == "ours":
            options = dict(side.options)
            options["settings"] = {**settings_of(side.format), **options.get("settings", {})}
            extra["kvreshard"] = options
        transfer = KVTransferConfig(
            kv_connector=name,
            kv_connector_module_path="kvreshard.vllm" if side.connector == "ours" else None,
            kv_role=role,
            kv_buffer_device="cpu",
            engine_id=self.engine_id,
            kv_connector_extra_config=extra,
        )
        config = VllmConfig(
            model_config=ModelConfig(
                model=model, dtype=case.dtype, seed=0, skip_tokenizer_init=True, max_model_len=length
            ),
            scheduler_config=SchedulerConfig(
                max_num_seqs=4, max_num_batched_tokens=length, max_model_len=length, is_encoder_decoder=False
            ),
            cache_config=CacheConfig(block_size=side.page, num_gpu_blocks_override=self.blocks),
            parallel_config=ParallelConfig(
                tensor_parallel_size=side.tp, pipeline_parallel_size=side.pp, distributed_executor_backend="mp"
            ),
            kv_transfer_config=transfer,
            device_config=DeviceConfig("cpu"),
        )
        # vLLM's CPU platform has its own wishes for these.
        config.cache_config.block_size = side.page
        config.cache_config.num_gpu_blocks_override = self.blocks
        return config

    def serve(self) -> None:
        """Starts the side channel."""
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

        config, cache_config = self.configs[0]
        place = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.port)}
        with patch.dict(os.environ, place):
            self.scheduler = KVConnectorFactory.create_connector(config, KVConnectorRole.SCHEDULER, cache_config)
        self.publish()

    def publish(self) -> None:
        """Tells the side channel what the workers registered."""
        payloads = {
            divmod(index, self.side.tp): item.get_handshake_metadata() for index, item in enumerate(self.connectors)
        }
        self.scheduler.set_xfer_handshake_metadata_pp_aware(payloads)

    def sleep_and_wake(self) -> None:
        """Gives up the registration of the caches, and registers them anew."""
        for connector in self.connectors:
            connector.unregister_kv_caches()
            connector.restore_kv_caches()
        self.publish()

    def step(self, metadata: Any) -> list[Any]:
        """One engine step of every worker; their results."""
        results = []
        for connector in self.connectors:
            connector.bind_connector_metadata(metadata)
            connector.start_load_kv(None)
            results.append(connector.get_transfer_results(set()))
        return results

    def write(self, ids: list[int], tokens: int) -> None:
        """Fills the pages `ids` as the prefill kernels would."""
        self._pages(ids, tokens, lambda page, pages, **where: page.fill(pages, ids, **where))

    def wrong(self, ids: list[int], first: int, tokens: int) -> list[str]:
        """What the decode kernels would read wrongly of the pages `ids`, which begin at token `first`."""
        found: list[str] = []

        def check(page: Any, pages: Any, **where: Any) -> None:
            verdict = page.check(pages, ids, first_token=first, **where)
            if not verdict.ok:
                found.append(f"{verdict.wrong} of {verdict.elements} elements; first: {verdict.first}")

        self._pages(ids, tokens, check, store=False)
        return found

    def _pages(self, ids: list[int], tokens: int, act: Any, *, store: bool = True) -> None:
        import numpy as np
        import torch

        for worker, caches in enumerate(self.caches):
            stage, rank = divmod(worker, self.side.tp)
            low, high = self.held(rank)
            page = interior(self.side.format, high - low, self.side, self.case)
            for index, cache in enumerate(caches.values(), stage * self.case.layers // self.side.pp):
                plain = cache.contiguous().view(torch.uint8).reshape(cache.shape[0], -1).numpy()
                plain = np.array(plain)
                act(page, plain, layer=index, seed=SEED, held=(low, high), tokens=(0, tokens))
                if store:
                    content = torch.from_numpy(plain).view(cache.dtype).reshape(cache.shape)
                    cache.copy_(content)

    def touched(self, ids: list[int]) -> bool:
        """Whether any page outside `ids` has changed."""
        import torch

        for caches in self.caches:
            for cache in caches.values():
                for block in set(range(cache.shape[0])) - set(ids):
                    if not bool((cache[block].contiguous().view(torch.uint8) == UNTOUCHED).all()):
                        return True
        return False

    def tail(self, block: int, filled: int) -> set[int]:
        """The byte values, of every rank and layer, of the last page's states from `filled` on, in packed pages."""
        import torch

        return {
            int(value)
            for caches in self.caches
            for cache in caches.values()
            for value in cache[block, :, filled:].contiguous().view(torch.uint8).unique()
        }

    def stats(self) -> dict[str, int]:
        """Descriptors and bytes moved by all workers since last asked."""
        counted = {"descriptors": 0, "bytes": 0, "transfers": 0}
        for connector in self.connectors:
            found = connector.get_kv_connector_stats()
            if found is not None:
                counted["descriptors"] += int(sum(found.data["num_descriptors"]))
                counted["bytes"] += int(sum(found.data["bytes_transferred"]))
                counted["transfers"] += len(found.data["num_descriptors"])
        return counted

    def close(self) -> None:
        """Shuts down workers and side channel."""
        for connector in self.connectors:
            connector.shutdown()
        # The side channel looks once a second whether it is to end: the next case need not wait for that.
        threading.Thread(target=self.scheduler.shutdown, daemon=True).start()


def _layer(backend: Any, spec: Any) -> Any:
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    class Layer(AttentionLayerBase):
        def get_attn_backend(self) -> Any:
            return backend

        def get_kv_cache_spec(self, vllm_config: Any) -> Any:
            return spec

    return Layer()


def _free_port() -> int:
    # Below the range that the system hands out by itself: connections that NIXL makes meanwhile must not take it.
    while True:
        port = random.randrange(15000, 31000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def model_folder(case: Case) -> Iterator[str]:
    """A folder, while the body runs, with the configuration of a small Llama; both engines must name the same."""
    queries = case.heads
    while any(queries % part for part in (case.heads, case.prefill.tp, case.decode.tp)):
        queries += 1
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": queries * case.head_size,
        "intermediate_size": 64,
        "num_attention_heads": queries,
        "num_key_value_heads": case.heads,
        "head_dim": case.head_size,
        "num_hidden_layers": case.layers,
        "vocab_size": 128,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "max_position_embeddings": 65536,
        "torch_dtype": case.dtype,
    }
    with tempfile.TemporaryDirectory(prefix="kvreshard-model-") as folder:
        with open(os.path.join(folder, "config.json"), "w") as out:
            json.dump(config, out)
        yield folder
