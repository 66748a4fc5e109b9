"""What this rank must tell a peer: the layout of its registered caches, from vLLM's own objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import AttentionSpec, CircularBufferSpec, MambaSpec, iter_layer_specs

import kvreshard as kvr
from kvreshard.formats import Pages, Settings, Unknown, from_vllm_spec
from kvreshard.vllm.options import Options
from kvreshard.vllm.requests import Outline

logger = init_logger(f"vllm.{__name__}")  # Below vLLM's own, whose handler and level it takes.


@dataclass
class Description:
    """The caches of one rank.

    Attributes:
        layout: The layout; `None` when something in it is not known.
        standard: Whether all pages are such as an untagged peer may be believed to hold.
        unknown: For every layer that is not known, the reason.
        pages: How the pages of every known layer are built.
        backends: The backend of every known layer, by name.
    """

    layout: kvr.RankLayout | None = None
    standard: bool = False
    unknown: dict[str, str] = field(default_factory=dict)
    pages: dict[str, Pages] = field(default_factory=dict)
    backends: dict[str, str] = field(default_factory=dict)

    @cached_property
    def outline(self) -> Outline | None:
        """What is worked out from the layout once, for all peers.

        Raises:
            kvreshard.Error: As :meth:`Outline.of`.
        """
        return None if self.layout is None else Outline.of(self.layout)

    @property
    def why_unknown(self) -> str:
        """The reasons, each once."""
        return "; ".join(dict.fromkeys(self.unknown.values())) or "nothing was registered"


class Cache:
    """One layer's registered cache, as its strides say."""

    def __init__(self, tensor: torch.Tensor, memory: str, *, whole_storage: bool) -> None:
        self.tensor = tensor
        storage = tensor.untyped_storage()
        base, size = (storage.data_ptr(), storage.nbytes()) if whole_storage else (tensor.data_ptr(), tensor.nbytes)
        device = 0 if tensor.device.type == "cpu" else max(tensor.get_device(), 0)
        memory = "DRAM" if tensor.device.type == "cpu" else memory
        self.region = kvr.Region(base=base, bytes=size, device=device, memory="VRAM" if memory == "VRAM" else "DRAM")
        self.offset = tensor.data_ptr() - base

    def stride(self, axis: int) -> int:
        """Bytes from one index of an axis to the next."""
        return int(self.tensor.stride(axis) * self.tensor.element_size())


def describe(worker: Any, caches: dict[str, torch.Tensor], options: Options, generation: int) -> Description:
    """The layout of `caches`, registered by `worker`, a NIXL connector worker of vLLM.

    What is not known is logged, once a reason, and leaves `layout` out: a peer must not plan for half a rank.
    """
    found = Description()
    layers: list[kvr.Layer] = []
    grouping = worker.kv_cache_config.transfer_group_index_by_layer
    ratios: dict[int, set[int]] = {}
    settings = options.override(_settings(worker.vllm_config))
    for name, spec in worker._layer_specs.items():
        if name not in caches:
            continue
        group = worker.kv_cache_config.transfer_groups[grouping[name]]
        cache = Cache(caches[name], worker.nixl_memory_type, whole_storage=not group.host_resident)
        backend = _backend(worker.vllm_config, name, spec)
        if backend is None:
            found.unknown[name] = "the model has no layer of that name to ask for its backend"
            continue
        known = _pages(worker, name, spec, backend, cache, settings)
        if isinstance(known, Unknown):
            found.unknown[name] = known.reason
            continue
        found.pages[name] = known
        found.backends[name] = backend
        try:
            segments = _segments(worker, spec, known, cache)
            totals = _totals(worker, spec, known)
        except _Unfit as problem:
            found.unknown[name] = f"backend {backend}: {problem}"
            continue
        layers.append(kvr.Layer(name, segments, totals=totals, group=grouping[name]))
        ratio = 1 if isinstance(spec, MambaSpec) else segments[0].pages // _blocks(worker, group)
        ratios.setdefault(grouping[name], set()).add(ratio)
    for group_index, several in ratios.items():
        if len(several) > 1:
            found.unknown[f"group {group_index}"] = f"its layers have {sorted(several)} kernel pages in a block"
    for reason in dict.fromkeys(found.unknown.values()):
        logger.warning_once("kvreshard: pages whose interior is not known: %s", reason)
    if found.unknown or not layers:
        return found
    found.standard = all(pages.standard for pages in found.pages.values())
    found.layout = kvr.RankLayout(
        engine=worker.engine_id,
        layers=layers,
        groups=[
            _group(group, ratios.get(index, {1}).pop())
            for index, group in enumerate(worker.kv_cache_config.transfer_groups)
        ],
        generation=generation,
        tp=(worker.transfer_tp_rank, worker.transfer_tp_size),
        cp=(worker.dcp_rank, worker.dcp_size),
        cp_interleave=_interleave(worker),
    )
    return found


class _Unfit(Exception):
    """A tensor or a spec contradicts the format found for it."""


def _backend(config: Any, layer: str, spec: Any) -> str | None:
    registered = config.compilation_config.static_forward_context.get(layer)
    if registered is None:
        return None
    try:
        return str(registered.get_attn_backend().get_name())
    except (AttributeError, NotImplementedError):
        return str(spec.mamba_type.name) if isinstance(spec, MambaSpec) else None


def _pages(worker: Any, name: str, spec: Any, backend: str, cache: Cache, settings: Settings) -> Pages | Unknown:
    """The pages of one layer, by the settings that only the layer itself can tell."""
    layout = worker.kv_cache_layout
    if worker.use_host_buffer and cache.tensor.device.type == "cpu":
        layout = worker.host_buffer_kv_cache_layout
    states = None
    if not isinstance(spec, MambaSpec):
        if cache.tensor.ndim != 4:
            return Unknown(f"backend {backend}: a cache of {cache.tensor.ndim} axes")
        states = int(cache.tensor.shape[2])
    found = settings
    if backend == "CPU_ATTN" and found.cpu_isa is None:
        found = _set(found, cpu_isa=_cpu_isa(spec, states or 0, found))
    if backend == "ROCM_ATTN" and found.interleaved_v is None:
        found = _set(found, interleaved_v=_interleaved_v(worker.vllm_config, name))
    if isinstance(spec, MambaSpec):
        split = worker._conv_decomp
        if split is not None:
            found = _set(found, conv_channels=tuple(split.local_proj_dims), conv_first=True)
    return from_vllm_spec(spec, backend, layout, states=states, settings=found)


def _set(settings: Settings, **values: Any) -> Settings:
    from dataclasses import replace

    return replace(settings, **values)


def _settings(config: Any) -> Settings:
    """What this process can tell of itself."""
    cache_dtype = str(config.cache_config.cache_dtype)
    known: dict[str, Any] = {
        "cache_dtype": cache_dtype,
        "fp8": "f8e4m3fnuz" if current_platform.is_fp8_fnuz() else "f8e4m3fn",
    }
    if current_platform.is_cuda():
        blackwell = current_platform.is_device_capability_family(100)
        fa2 = any(current_platform.is_device_capability_family(family) for family in (80, 90, 120))
        if blackwell or fa2:
            known["nvfp4_scales"] = "swizzled" if blackwell else "linear"
        known["indexer_scales"] = "ue8m0" if blackwell else "f32"
        known["indexer_tiled"] = False
        known["turboquant_soa"] = False
        known["turboquant_keys"] = "f8e4m3fn" if current_platform.has_device_capability(89) else "f8e4m3b15"
    elif current_platform.is_rocm():
        known["indexer_scales"] = "f32"
        known["turboquant_soa"] = _flydsl()
        known["turboquant_keys"] = "f8e4m3fn"
    return Settings(**known)


def _flydsl() -> bool | None:
    try:
        from vllm.v1.attention.backends import turboquant_attn
    except ImportError:
        return None
    available = getattr(turboquant_attn, "is_flydsl_available", None)
    return None if available is None else bool(available())


def _cpu_isa(spec: Any, states: int, settings: Settings) -> str | None:
    """What CPU_ATTN's kernels pick for this layer; they are asked, for the choice hangs on the machine."""
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    try:
        return str(_get_attn_isa(spec.dtype, states, spec.head_size, settings.cache_dtype))
    except (NotImplementedError, RuntimeError):
        return None


def _interleaved_v(config: Any, layer: str) -> bool | None:
    """Whether the layer's kernels read V interleaved; without kernels, whether the pass that would do it is off."""
    kernels = getattr(config.compilation_config.static_forward_context.get(layer), "impl", None)
    if kernels is not None:
        return getattr(kernels, "_use_interleaved_v_cache", None)
    passes = config.compilation_config.pass_config
    return None if getattr(passes, "fuse_qk_norm_rope_kvcache", False) else False


def _segments(worker: Any, spec: Any, pages: Pages, cache: Cache) -> list[kvr.Segment]:
    tensor = cache.tensor
    if isinstance(spec, MambaSpec):
        stride = int(spec.page_size_bytes) if tensor.ndim == 1 or not worker._is_csa_linear else cache.stride(0)
        blocks = worker.kv_cache_config.num_blocks
        return [kvr.Segment(cache.region, pages.formats[0], pages=blocks, page_stride=stride, offset=cache.offset)]
    count, slots = int(tensor.shape[0]), int(tensor.shape[1])
    stride = cache.stride(0)
    if not pages.planes:
        form = pages.formats[0]
        _check_page(cache, slots)
        return [kvr.Segment(cache.region, form, pages=count, page_stride=stride, offset=cache.offset)]
    if len(pages.formats) != slots:
        raise _Unfit(f"{slots} planes for {len(pages.formats)} formats")
    segments = []
    first, _ = _share(worker, spec)
    for slot, form in enumerate(pages.formats):
        at = cache.offset + slot * cache.stride(1)
        holds = None if "h" in form.extents else {"h": (first + slot, first + slot + 1)}
        segments.append(kvr.Segment(cache.region, form, pages=count, page_stride=stride, offset=at, holds=holds))
    return segments


def _check_page(cache: Cache, slots: int) -> None:
    """A page of whole slots must be one piece: its format says nothing of holes."""
    tensor = cache.tensor
    content = int(tensor.shape[3]) * tensor.element_size()
    if int(tensor.stride(3)) != 1:
        raise _Unfit(f"content with a stride of {tensor.stride(3)} elements")
    spans = sorted((cache.stride(axis), int(tensor.shape[axis])) for axis in (1, 2) if int(tensor.shape[axis]) > 1)
    expected = content
    for stride, extent in spans:
        if stride != expected:
            raise _Unfit(f"{slots} slots with strides {tuple(tensor.stride())} are no dense page")
        expected *= extent


def _share(worker: Any, spec: Any) -> tuple[int, int]:
    """First head that this rank holds, and the heads in all."""
    total = total_heads(worker, spec)
    rank, size = worker.tp_rank, worker.world_size
    return rank * total // size, total


def total_heads(worker: Any, spec: Any) -> int:
    """KV heads of a layer over all ranks.

    vLLM's spec has only this rank's heads; where ranks outnumber heads, one head here may be any number in all, so the
    model's and the draft model's own numbers decide.
    """
    local, size = int(spec.num_kv_heads), int(worker.world_size)
    candidates = [int(worker.model_config.get_total_num_kv_heads())]
    speculative = worker.vllm_config.speculative_config
    draft = getattr(speculative, "draft_model_config", None)
    if draft is not None:
        candidates.append(int(draft.get_total_num_kv_heads()))
    for total in candidates:
        if max(1, total // size) == local and (total % size == 0 or size % total == 0):
            return total
    if local > 1 or size == 1:
        return local * size
    raise _Unfit(f"{local} KV head a rank at TP {size}, but the model has {candidates[0]}")


def _totals(worker: Any, spec: Any, pages: Pages) -> dict[str, int] | None:
    if not pages.shards:
        return None
    totals = {}
    for axis in pages.shards:
        if axis == "h" and isinstance(spec, AttentionSpec):
            totals[axis] = total_heads(worker, spec)
        else:
            totals[axis] = pages.formats[0].extents[axis] * int(worker.world_size)
    return totals


def _blocks(worker: Any, group: Any) -> int:
    if group.host_resident:
        return int(worker.kv_cache_config.hisparse_host_num_blocks)
    return int(worker.kv_cache_config.num_blocks)


def _group(group: Any, ratio: int) -> kvr.Group:
    spec = next(iter(iter_layer_specs(group.kv_cache_spec)))
    if isinstance(spec, MambaSpec):
        return kvr.Group("state")
    return kvr.Group("tokens", pages_per_block=ratio, tokens_per_state=spec.tokens_per_state, window=window_of(spec))


def window_of(spec: Any) -> int | None:
    """How many last tokens a group keeps; `None` keeps all."""
    kinds = {kind.__name__ for kind in type(spec).__mro__}
    if isinstance(spec, CircularBufferSpec) or "FullAttentionSpec" in kinds:
        return None
    kept = getattr(spec, "sliding_window", None) or getattr(spec, "attention_chunk_size", None)
    return None if kept is None else int(kept)


def _interleave(worker: Any) -> int:
    if worker.dcp_size == 1:
        return 1
    return int(worker.vllm_config.parallel_config.cp_kv_cache_interleave_size)
