"""The layout of a peer without a tag, on the assumption that it holds standard pages of the sizes that it states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import kvreshard as kvr
from kvreshard.formats import Settings, Unknown, from_vllm_spec
from kvreshard.vllm.describe import Description, total_heads


def assume(worker: Any, mine: Description, meta: Any, tp: tuple[int, int]) -> kvr.RankLayout | None:
    """What the peer of `meta` holds if its pages are standard; `None` when vLLM's metadata does not say enough.

    The peer's regions must be this rank's, layer by layer; or, where ours are not standard, one for each layer.
    """
    names = meta.region_names
    if mine.layout is None or names is None or meta.dcp_size != 1:
        return None
    layers = []
    own_layers = {layer.name: layer for layer in mine.layout.layers}
    if names == worker.region_names and mine.standard:
        members = _members(worker, mine.layout)
    elif len(names) == len(set(names)) and set(names) == set(own_layers):
        members = [[own_layers[name]] for name in names]
    else:
        return None
    for region, aliased in enumerate(members):
        for own in aliased:
            segment = _segment(worker, mine, own, meta, region, tp[1])
            if segment is None:
                return None
            layers.append(kvr.Layer(own.name, [segment], totals=own.totals or None, group=own.group))
    ratio = meta.physical_blocks_per_logical_kv_block
    groups = [
        kvr.Group(group.kind, pages_per_block=ratio, tokens_per_state=group.tokens_per_state, window=group.window)
        for group in mine.layout.groups
    ]
    return kvr.RankLayout(engine=meta.engine_id, layers=layers, groups=groups, tp=tp)


def _members(worker: Any, layout: kvr.RankLayout) -> list[list[kvr.Layer]]:
    """This rank's layers by vLLM region: layers that alias one another share one."""
    bases = worker.kv_caches_base_addr[worker.engine_id][worker.tp_rank]
    members: list[list[kvr.Layer]] = [[] for _ in bases]
    for layer in layout.layers:
        first = layer.segments[0]
        address = first.region.base + first.offset
        if len(layer.segments) == 1 and address in bases:
            members[bases.index(address)].append(layer)
    return members


def _segment(worker: Any, mine: Description, own: kvr.Layer, meta: Any, region: int, size: int) -> kvr.Segment | None:
    """The peer's pages of one of our layers."""
    spec = worker._layer_specs[own.name]
    states = own.segments[0].format.extents.get("n", 1) * meta.block_size // worker.block_size
    if mine.pages[own.name].shards:
        total = total_heads(worker, spec)
        if total % size and size % total:
            return None
        spec = replace(spec, num_kv_heads=max(1, total // size))
    if states * worker.block_size != own.segments[0].format.extents.get("n", 1) * meta.block_size:
        return None
    backend = mine.backends[own.name]
    if not mine.pages[own.name].standard:
        # Taken to be packed: without what our backend made of the spec.
        backend, spec = "FLASH_ATTN", replace(spec, num_head_slots=None, state_content_bytes=None)
    pages = from_vllm_spec(spec, backend, meta.kv_cache_layout, states=states, settings=Settings())
    if isinstance(pages, Unknown) or not pages.standard:
        return None
    form = pages.formats[0]
    count = (meta.region_num_blocks or [meta.num_blocks] * len(meta.block_lens))[region]
    stride, length = meta.block_strides[region], meta.block_lens[region]
    if length != form.page_bytes or count < 1 or stride < length:
        return None
    kinds = meta.region_mem_types or [worker.nixl_memory_type] * len(meta.block_lens)
    memory = kvr.Region(
        base=meta.kv_caches_base_addr[region],
        bytes=(count - 1) * stride + length,
        device=0 if kinds[region] == "DRAM" else meta.device_id,
        memory=kinds[region],
    )
    return kvr.Segment(memory, form, pages=count, page_stride=stride)
