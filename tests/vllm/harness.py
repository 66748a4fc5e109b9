"""Pairs of engines of real vLLM, on host memory: schedulers, workers, handshake, NIXL; no model runs.

One process plays all ranks of a prefill and a decode engine. What is not vLLM's: the rank that each worker is told it
has, a layer that only names its backend, and the bytes of the pages, which closed formulas write and read
(`kvreshard.demo.formulas`) in the place of attention kernels.

`python -m tests.vllm.harness CASES` runs a JSON list of cases and prints a JSON line for each; tests run it as a
process of its own, since vLLM wants its environment set before it is imported, and pins its process to one core.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import random
import socket
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

SEED = 11
UNTOUCHED = 0xA5


@dataclass
class Side:
    """One engine of a case.

    `format` names the interior; `page` is tokens a block; `connector` is `stock` or `ours`; `options` are ours.
    """

    tp: int = 1
    format: str = "packed"
    page: int = 16
    layout: str = "LBHNC"
    connector: str = "ours"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Case:
    """A transfer to try.

    `tokens` are prefilled; of these, `hit` are in the decoder's prefix cache already. `rounds` requests follow one
    another, the first with the handshake.
    """

    prefill: Side
    decode: Side
    mode: str = "pull"
    heads: int = 4
    head_size: int = 64
    dtype: str = "float16"
    layers: int = 2
    tokens: int = 64
    hit: int = 0
    rounds: int = 1
    blocks: int = 0
    enforce_hash: bool = True
    trace: bool = False

    @classmethod
    def read(cls, values: dict[str, Any]) -> Case:
        """A case from JSON."""
        known = {item.name for item in fields(cls)}
        given = {name: value for name, value in values.items() if name in known}
        return cls(**{**given, "prefill": Side(**values["prefill"]), "decode": Side(**values["decode"])})


def set_environment() -> None:
    """What vLLM reads when it is imported."""
    for name, value in {
        "VLLM_TARGET_DEVICE": "cpu",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "UCX_LOG_LEVEL": "error",
        "NIXL_LOG_LEVEL": "ERROR",
    }.items():
        os.environ.setdefault(name, value)


def interior(name: str, heads: int, side: Side, case: Case) -> Any:
    """The formulas of a rank's pages, and the dtype that they are for."""
    from kvreshard.demo import formulas

    size = {"float16": 2, "bfloat16": 2, "float32": 4}[case.dtype]
    geometry = formulas.Geometry(heads=heads, tokens=side.page, head_size=case.head_size, element_bytes=size)
    writers = {
        # Written through the tensor's strides, so the layout decides where heads and tokens lie.
        "packed": formulas.packed_hnd,
        "nhd": formulas.packed_hnd,
        "rocm_attn": formulas.rocm_attn,
        "aiter_shuffle": formulas.aiter_shuffle,
        "b12x": formulas.two_slot_nhd,
        "cpu_vec": formulas.cpu_vec,
        "cpu_amx": formulas.cpu_amx,
        "nvfp4": formulas.nvfp4_flashinfer,
        "page16": formulas.page16,
    }
    return writers[name](geometry)


def backend_of(name: str) -> Any:
    """The class of the backend that builds such pages."""
    if name == "rocm_attn":
        from vllm.v1.attention.backends.rocm_attn import RocmAttentionBackend as Backend
    elif name in ("packed", "aiter_shuffle"):
        from vllm.v1.attention.backends.rocm_aiter_fa import AiterFlashAttentionBackend as Backend
    elif name == "b12x":
        from vllm.v1.attention.backends.b12x import B12xPagedAttentionBackend as Backend
    elif name in ("cpu_vec", "cpu_amx"):
        from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend as Backend
    elif name in ("nvfp4", "page16", "nhd"):
        return _stand_in(name)
    else:
        raise ValueError(f"no backend for {name}")
    return Backend


def _stand_in(name: str) -> Any:
    """A backend that publishes the spec of one that does not import without a GPU."""
    from dataclasses import replace

    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
    from vllm.v1.kv_cache_interface import KVCacheLayout

    class StandIn(CPUAttentionBackend):
        @staticmethod
        def get_name() -> str:
            return {"nvfp4": "FLASHINFER", "page16": "MINIMAX_M3_SPARSE", "nhd": "TRITON_ATTN"}[name]

        @staticmethod
        def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> Any:
            from vllm.v1.attention.backend import MultipleOf

            return [MultipleOf(16)]

        @classmethod
        def supported_kv_cache_layouts(cls) -> Any:
            return tuple(KVCacheLayout)

        @classmethod
        def customize_spec(cls, spec: Any) -> Any:
            if name == "nvfp4":
                content = spec.head_size // 2 + spec.head_size // 16
                return replace(spec, num_head_slots=2 * spec.num_kv_heads, state_content_bytes=content)
            if name == "page16":
                content = spec.num_kv_heads * spec.head_size * spec.dtype.itemsize
                return replace(spec, num_head_slots=2, state_content_bytes=content)
            return spec

    return StandIn


def _isa(name: str) -> dict[str, Any]:
    """Settings that the machine at hand would answer by itself, fixed for the test."""
    return {
        "cpu_vec": {"cpu_isa": "vec"},
        "cpu_amx": {"cpu_isa": "amx"},
        "nvfp4": {"nvfp4_scales": "linear"},
    }.get(name, {})


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
            for rank in range(side.tp):
                self._build(rank, role, model)
        finally:
            os.sched_setaffinity(0, cores)

    def held(self, rank: int) -> tuple[int, int]:
        """The global heads of a rank."""
        total, size = self.case.heads, self.side.tp
        first = rank * total // size
        return first, max(first + 1, (rank + 1) * total // size)

    def _build(self, rank: int, role: str, model: str) -> None:
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
        names = [f"model.layers.{index}.self_attn.attn" for index in range(case.layers)]
        for name in names:
            config.compilation_config.static_forward_context[name] = _layer(backend, spec)
        with set_current_vllm_config(config):
            specs = dict.fromkeys(names, spec)
            groups = get_global_kv_cache_groups(config, [specs])
            (cache_config,) = get_kv_cache_configs(config, [specs], [1 << 34], groups)
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
            with patch.object(base_worker, "nixl_agent_config", quiet):
                connector = KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, cache_config)
            connector.register_kv_caches(caches)
        self.connectors.append(connector)
        self.caches.append(caches)
        self.configs.append((config, cache_config))
        self.kernel = kernel

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
            options["settings"] = {**_isa(side.format), **options.get("settings", {})}
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
            parallel_config=ParallelConfig(tensor_parallel_size=side.tp, distributed_executor_backend="mp"),
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
        payloads = {(0, rank): item.get_handshake_metadata() for rank, item in enumerate(self.connectors)}
        self.scheduler.set_xfer_handshake_metadata_pp_aware(payloads)

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

        for rank, caches in enumerate(self.caches):
            low, high = self.held(rank)
            page = interior(self.side.format, high - low, self.side, self.case)
            for index, cache in enumerate(caches.values()):
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
        self.scheduler.shutdown()


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


def _model(case: Case) -> str:
    """A folder with the configuration of a small Llama; both engines must name the same."""
    queries = case.heads
    while any(queries % part for part in (case.heads, case.prefill.tp, case.decode.tp)):
        queries += 1
    folder = tempfile.mkdtemp(prefix="kvreshard-model-")
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
    with open(os.path.join(folder, "config.json"), "w") as out:
        json.dump(config, out)
    return folder


class _Blocks:
    """What a scheduler was allocated, as far as a connector looks: `hit` blocks are in the prefix cache."""

    def __init__(self, ids: list[int], hit: int) -> None:
        hashed = [SimpleNamespace(block_id=0, block_hash=index, is_null=False) for index in range(hit)]
        free = [SimpleNamespace(block_id=number, block_hash=None, is_null=False) for number in ids]
        self.blocks = ([*hashed, *free],)
        self._ids = ids

    def get_unhashed_block_ids_all_groups(self) -> list[list[int]]:
        return [list(self._ids)]


class _Errors(logging.Handler):
    """Keeps what vLLM logs as errors: a refused handshake fails a request, and says why only there."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            problem = record.exc_info[1]
            self.texts.append(f"{type(problem).__name__}: {problem}")
        else:
            self.texts.append(record.getMessage().splitlines()[0])


@contextlib.contextmanager
def _errors() -> Iterator[_Errors]:
    handler = _Errors()
    logger = logging.getLogger("vllm")
    logger.addHandler(handler)
    quiet = [(other, other.level) for other in logger.handlers if other is not handler]
    for other, _ in quiet:
        other.setLevel(logging.CRITICAL + 1)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        for other, level in quiet:
            other.setLevel(level)


def run(case: Case) -> dict[str, Any]:
    """Runs one case: `verdict` is `right`, `wrong` or `refused`, and what was counted and timed."""
    model = _model(case)
    result: dict[str, Any] = {"verdict": "refused", "errors": []}
    engines: list[Engine] = []
    with _errors() as errors:
        try:
            for name, side, role in (
                ("prefill", case.prefill, "kv_producer"),
                ("decode", case.decode, "kv_consumer"),
            ):
                engine = Engine(name, side, case, role, model)
                engine.serve()
                engines.append(engine)
            _transfer(case, engines[0], engines[1], result)
        except Exception as problem:
            result["errors"].append(f"{type(problem).__name__}: {problem}")
            if case.trace:
                traceback.print_exc()
        finally:
            for engine in engines:
                with contextlib.suppress(Exception):
                    engine.close()
    result["errors"] += list(dict.fromkeys(errors.texts))
    return result


def _scattered(count: int, offset: int, limit: int) -> list[int]:
    """Block ids in an order that no two neighbours keep, within `limit`."""
    step = next(step for step in (7, 5, 3, 11, 13, 1) if limit % step)
    ids = [(offset + index * step) % limit for index in range(limit)]
    return ids[:count]


def _transfer(case: Case, prefill: Engine, decode: Engine, result: dict[str, Any]) -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlConnectorMetadata

    used: list[int] = []
    sources = _scattered(-(-case.tokens // prefill.side.page) * case.rounds, 2, prefill.blocks - 1)
    targets = _scattered(-(-case.tokens // decode.side.page) * case.rounds, 1, decode.blocks - 1)
    timings = _Timings(prefill if case.mode == "push" else decode)
    wrong: list[str] = []
    for turn in range(case.rounds):
        count = -(-case.tokens // prefill.side.page)
        here = sources[turn * count : (turn + 1) * count]
        hit = case.hit // decode.side.page
        count = -(-case.tokens // decode.side.page)
        there = targets[turn * count : (turn + 1) * count][hit:]
        prefill.write(here, case.tokens)
        started = time.perf_counter()
        done = _request(case, prefill, decode, f"r{turn}", here, there, hit, NixlConnectorMetadata)
        result.setdefault("seconds", []).append(time.perf_counter() - started)
        if done is not True:
            result["errors"].append(done)
            return
        used += there
        wrong += decode.wrong(there, hit * decode.side.page, case.tokens)
        filled = case.tokens % decode.side.page
        if decode.side.format == "packed" and filled:
            result["tail"] = sorted(decode.tail(there[-1], filled))
    result |= timings.result() | (prefill if case.mode == "push" else decode).stats()
    result["touched"] = decode.touched(used)
    result["wrong"] = wrong
    result["verdict"] = "wrong" if wrong or result["touched"] else "right"


def _request(
    case: Case, prefill: Engine, decode: Engine, name: str, here: list[int], there: list[int], hit: int, empty: Any
) -> Any:
    """One request from prefill to decode through both schedulers; true, or what went wrong."""
    from vllm.v1.request import RequestStatus

    prompt = list(range(case.tokens))
    origin = SimpleNamespace(
        request_id=f"p-{name}" if case.mode == "pull" else name,
        kv_transfer_params={"do_remote_decode": True, "do_remote_prefill": False},
        prompt_token_ids=prompt,
        num_prompt_tokens=case.tokens,
        num_computed_tokens=case.tokens,
        status=RequestStatus.FINISHED_LENGTH_CAPPED,
    )
    prefill.scheduler.on_new_request(origin)
    prefill.scheduler.update_state_after_alloc(origin, _Blocks(here, 0), 0)
    held, params = prefill.scheduler.request_finished_all_groups(origin, (list(here),))
    assert held
    prefill.step(prefill.scheduler.build_connector_meta(None))
    target = SimpleNamespace(
        request_id=f"d-{name}" if case.mode == "pull" else name,
        kv_transfer_params=dict(params),
        prompt_token_ids=prompt,
        num_prompt_tokens=case.tokens,
        num_computed_tokens=0,
        status=RequestStatus.WAITING,
    )
    decode.scheduler.on_new_request(target)
    computed = hit * decode.side.page
    wanted, _ = decode.scheduler.get_num_new_matched_tokens(target, computed)
    decode.scheduler.update_state_after_alloc(target, _Blocks(there, hit), wanted)
    metadata = decode.scheduler.build_connector_meta(None)
    waiting, sending = set(range(decode.side.tp)), set(range(prefill.side.tp))
    deadline = time.monotonic() + (8 if case.mode == "push" else 20)
    while (waiting or sending) and time.monotonic() < deadline:
        for rank, results in enumerate(decode.step(metadata)):
            if target.request_id in results.failed_recving:
                return f"decode rank {rank}: the request failed"
            if target.request_id in results.finished_recving:
                waiting.discard(rank)
        metadata = empty()
        for rank, results in enumerate(prefill.step(empty())):
            if origin.request_id in results.finished_sending:
                sending.discard(rank)
        time.sleep(0.001)
    if waiting:
        return f"decode ranks {sorted(waiting)}: nothing came in time"
    return True if not sending else f"prefill ranks {sorted(sending)}: not told that the request is done"


class _Timings:
    """Seconds that the planning side spends on first contact and on each request, NIXL's own not counted."""

    def __init__(self, engine: Engine) -> None:
        self.contact: list[float] = []
        self.planning: list[float] = []
        self._nixl = 0.0
        for connector in engine.connectors:
            worker = connector.connector_worker
            for name in ("make_prepped_xfer", "transfer", "send_notif", "initialize_xfer"):
                self._count(worker.nixl_wrapper, name)
            method = "_xfer_blocks_for_req" if hasattr(worker, "_xfer_blocks_for_req") else "_read_blocks_for_req"
            self._time(worker, method, self.planning)
            self._time(worker, "_nixl_handshake", self.contact)

    def _count(self, wrapper: Any, name: str) -> None:
        inner = getattr(wrapper, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                self._nixl += time.perf_counter() - started

        setattr(wrapper, name, counted)

    def _time(self, worker: Any, name: str, into: list[float]) -> None:
        inner = getattr(worker, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            started, before = time.perf_counter(), self._nixl
            try:
                return inner(*args, **kwargs)
            finally:
                into.append(time.perf_counter() - started - (self._nixl - before))

        setattr(worker, name, timed)

    def result(self) -> dict[str, Any]:
        """The times, in seconds."""
        return {"contact": self.contact, "planning": self.planning}


def main() -> None:
    """Runs the cases given as JSON, one line of JSON each."""
    set_environment()
    text = sys.argv[1]
    cases = json.loads(text if text.lstrip().startswith("[") else open(text).read())
    for values in cases:
        print("RESULT " + json.dumps(run(Case.read(values))), flush=True)
    # Threads of NIXL and of the side channels must not hold the process.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
