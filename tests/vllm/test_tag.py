"""The tag in the agent metadata: who reads it, what is refused, and which hashes are accepted."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import pytest

from tests.vllm.conftest import NEEDS_VLLM
from tests.vllm.harness import set_environment

if not os.environ.get("KVRESHARD_TEST_VLLM"):
    pytest.skip(f"KVRESHARD_TEST_VLLM is not {NEEDS_VLLM}", allow_module_level=True)
set_environment()

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlAgentMetadata  # noqa: E402

import kvreshard as kvr  # noqa: E402  (vLLM reads the environment when it is imported)
from kvreshard.vllm import tag as tags  # noqa: E402


def _metadata(**values: Any) -> NixlAgentMetadata:
    given = {
        "engine_id": "prefill",
        "agent_metadata": b"agent",
        "kv_caches_base_addr": [4096],
        "device_id": 0,
        "num_blocks": 4,
        "block_lens": [512],
        "block_strides": [512],
        "kv_cache_layout": "LBHNC",
        "block_size": 16,
        "ssm_sizes": (0, 0),
        "attn_backend_name": "FLASH_ATTN",
        "physical_blocks_per_logical_kv_block": 1,
    }
    return NixlAgentMetadata(**{**given, **values})


def _layout() -> kvr.RankLayout:
    form = kvr.PageFormat("h n k[d] v[d]", h=1, n=16, d=8, dtype="bf16")
    region = kvr.Region(base=4096, bytes=4 * form.page_bytes)
    return kvr.RankLayout(engine="prefill", layers=[kvr.Layer("0", [kvr.Segment(region, form, pages=4)])])


def test_stock_reads_tagged_metadata() -> None:
    """A stock peer skips the field that it does not know."""
    tag = tags.encode("factors", _layout(), standard=True, unknown="")
    data = msgspec.msgpack.encode(tags.attach(_metadata(), tag))
    assert msgspec.msgpack.decode(data, type=NixlAgentMetadata) == _metadata()


def test_stock_metadata_has_no_tag() -> None:
    """A stock peer's metadata decodes with the field empty."""
    data = msgspec.msgpack.encode(_metadata())
    assert msgspec.msgpack.decode(data, type=tags.TaggedAgentMetadata).kvreshard is None


def test_round_trip() -> None:
    """The layout arrives as it was."""
    tag = tags.decode(tags.encode("factors", _layout(), standard=True, unknown=""))
    assert tag.layout is not None
    assert kvr.RankLayout.from_bytes(tag.layout) == _layout()
    assert tag.standard


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x00" * 64,
        msgspec.msgpack.encode({"version": "one", "factors": ""}),
        msgspec.msgpack.encode({"version": 99, "factors": ""}),
        msgspec.msgpack.encode({"version": 1}),
        b"\x00" * ((8 << 20) + 1),
    ],
    ids=["empty", "reserved", "zeros", "type", "newer", "short", "long"],
)
def test_hostile_tags(data: bytes) -> None:
    """A tag that does not decode is a typed error."""
    with pytest.raises(kvr.WireError):
        tags.decode(data)


def test_hostile_layout() -> None:
    """A layout within a good tag is validated like any message from the wire."""
    tag = tags.decode(msgspec.msgpack.encode(tags.Tag(1, "factors", True, b"\x93\x01\x02", "")))
    assert tag.layout is not None
    with pytest.raises(kvr.Error):
        kvr.RankLayout.from_bytes(tag.layout)


def test_hashes() -> None:
    """Stock's hash, ours, or, of a tagged peer, equal factors but for the backend's name."""
    hashes = tags.Hashes("stock", "own", "factors")
    tagged = tags.Tag(1, "factors")
    assert hashes.accept("stock", None)
    assert hashes.accept("own", None)
    assert not hashes.accept("other", None)
    assert hashes.accept("other", tagged)
    assert not hashes.accept("other", tags.Tag(1, "other factors"))
