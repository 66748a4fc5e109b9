"""Handshakes as a stock NixlConnector of vLLM 0.33 sends them, with made-up addresses."""

from __future__ import annotations

from typing import Any

import msgspec


def metadata(**changed: Any) -> dict[str, Any]:
    """`NixlAgentMetadata` of 4 layers of packed pages: 8 heads, 16 tokens, head size 128, 16-bit; 32 blocks."""
    page = 65536
    fields: dict[str, Any] = {
        "engine_id": "stock-7",
        "agent_metadata": b"what NIXL says",
        "kv_caches_base_addr": [1 << 20 | layer << 32 for layer in range(4)],
        "device_id": 0,
        "num_blocks": 32,
        "block_lens": [page] * 4,
        "block_strides": [page] * 4,
        "kv_cache_layout": "LBHNC",
        "block_size": 16,
        "ssm_sizes": (0, 0),
        "attn_backend_name": "FLASH_ATTN",
        "physical_blocks_per_logical_kv_block": 1,
        "region_num_blocks": [32] * 4,
        "region_group_ids": [0] * 4,
        "region_names": [f"model.layers.{layer}.attn" for layer in range(4)],
        "region_mem_types": ["VRAM"] * 4,
        "dcp_size": 1,
        "pcp_size": 1,
        "ple_block_len": None,
        "region_members": [[f"model.layers.{layer}.attn"] for layer in range(4)],
        "packed_member_layouts": {},
    }
    return fields | changed


def handshake(**changed: Any) -> bytes:
    """The metadata inside the payload that travels."""
    inner = msgspec.msgpack.encode(metadata(**changed))
    return msgspec.msgpack.encode({"compatibility_hash": "0123abcd", "agent_metadata_bytes": inner})
