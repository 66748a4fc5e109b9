"""vLLM's cache specs as far as formats look at them, so that they can be made without vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from kvreshard.demo.formulas import Geometry

HEADS, TOKENS, SIZE = 4, 32, 128
SHAPE = Geometry(heads=HEADS, tokens=TOKENS, head_size=SIZE)
BYTES = Geometry(heads=HEADS, tokens=TOKENS, head_size=SIZE, element_bytes=1)

ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "uint8": 1, "int8": 1}


class Dtype:
    """A torch dtype, as far as its name and size."""

    def __init__(self, name: str) -> None:
        self.name, self.itemsize = name, ITEM_BYTES[name]

    def __str__(self) -> str:
        return f"torch.{self.name}"


@dataclass
class FullAttentionSpec:
    """vLLM's spec, as far as formats look."""

    dtype: Any
    num_kv_heads: int = HEADS
    block_size: int = TOKENS
    head_size: int = SIZE
    head_size_v: int = SIZE
    mode: str = "NONE"
    num_head_slots: int | None = None
    state_content_bytes: int | None = None
    tokens_per_state: int = 1

    @property
    def kv_quant_mode(self) -> Any:
        return SimpleNamespace(name=self.mode)

    @property
    def num_heads(self) -> int:
        return self.num_kv_heads if self.num_head_slots is None else self.num_head_slots

    @property
    def state_content_size_bytes(self) -> int:
        if self.state_content_bytes is not None:
            return self.state_content_bytes
        return (self.head_size + self.head_size_v) * int(self.dtype.itemsize)


@dataclass
class MLAAttentionSpec(FullAttentionSpec):
    """vLLM's spec of latent rows."""

    num_kv_heads: int = 1
    head_size: int = 576
    head_size_v: int = 0
    cache_dtype_str: str | None = None
    alignment: int | None = None
    model_version: str | None = None


def attention(dtype: str = "bfloat16", **values: Any) -> FullAttentionSpec:
    """Attention with a page of K and V."""
    return FullAttentionSpec(dtype=Dtype(dtype), **values)


def rows(dtype: str = "bfloat16", **values: Any) -> MLAAttentionSpec:
    """Latent rows."""
    return MLAAttentionSpec(dtype=Dtype(dtype), **values)


def slots(dtype: str = "bfloat16") -> FullAttentionSpec:
    """Attention with a page of two slots."""
    return attention(dtype, num_head_slots=2, state_content_bytes=HEADS * SIZE * ITEM_BYTES[dtype])
