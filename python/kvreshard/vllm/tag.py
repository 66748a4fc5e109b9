"""The tag: what this connector adds to vLLM's agent metadata, and how two hashes are compared.

A stock peer's decoder skips the field that it does not know; a stock peer's metadata decodes here with the field empty.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import Any

import msgspec
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import metadata as stock

import kvreshard as kvr

_VERSION = 1
_MOST_BYTES = 8 << 20


@dataclass(eq=False)
class TaggedAgentMetadata(stock.NixlAgentMetadata):
    """vLLM's agent metadata with the tag, which a stock peer lacks.

    Equal to metadata without a tag that says the same otherwise.
    """

    kvreshard: bytes | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, stock.NixlAgentMetadata):
            return NotImplemented
        return all(getattr(self, item.name) == getattr(other, item.name) for item in fields(stock.NixlAgentMetadata))

    __hash__ = None  # type: ignore[assignment]


class Tag(msgspec.Struct, frozen=True):
    """What a rank says of itself beyond vLLM's metadata.

    Attributes:
        version: Version of this message; a reader refuses a newer one.
        factors: vLLM's compatibility hash with the backend's name left out.
        standard: Whether all its pages are packed, or MLA rows, of 16-bit elements.
        layout: The rank's layout, by :meth:`kvreshard.RankLayout.to_bytes`; `None` when it is not known.
        unknown: Why it is not known.
    """

    version: int
    factors: str
    standard: bool = False
    layout: bytes | None = None
    unknown: str = ""


def encode(factors: str, layout: kvr.RankLayout | None, *, standard: bool, unknown: str) -> bytes:
    """The tag of a rank, as the field's bytes."""
    tag = Tag(_VERSION, factors, standard, None if layout is None else layout.to_bytes(), unknown)
    return msgspec.msgpack.encode(tag)


def decode(data: bytes) -> Tag:
    """A peer's tag.

    Raises:
        kvreshard.WireError: It is too long, does not decode, or is of a newer version.
    """
    if len(data) > _MOST_BYTES:
        raise _wire(f"the peer's tag has {len(data)} bytes, and at most {_MOST_BYTES} are read", "bytes")
    try:
        tag = msgspec.msgpack.decode(data, type=Tag)
    except msgspec.MsgspecError as problem:
        raise _wire(f"the peer's tag does not decode: {problem}", "tag") from problem
    if tag.version > _VERSION:
        raise _wire(f"the peer's tag is of version {tag.version}, and {_VERSION} is understood", "version")
    return tag


def _wire(text: str, field: str) -> kvr.WireError:
    problem = kvr.WireError(text)
    problem.field = field
    return problem


def attach(metadata: stock.NixlAgentMetadata, tag: bytes) -> TaggedAgentMetadata:
    """`metadata` with the tag."""
    values = {item.name: getattr(metadata, item.name) for item in fields(stock.NixlAgentMetadata)}
    return TaggedAgentMetadata(**values, kvreshard=tag)


@dataclass(frozen=True)
class Hashes:
    """The hashes that this rank accepts from a peer.

    Attributes:
        stock: What a stock peer of the same configuration publishes.
        own: What this connector publishes when its pages are not all standard, so that no stock peer reads them.
        factors: vLLM's factors but for the backend's name.
    """

    stock: str
    own: str
    factors: str

    @classmethod
    def of(cls, config: Any, stock_hash: str, mode: str) -> Hashes:
        """The hashes of a rank whose stock hash is `stock_hash`, in transfer mode `mode`."""
        raised = f"nixl connector {stock.NIXL_CONNECTOR_VERSION + 1}, kvreshard {_VERSION}: {stock_hash}"
        neutral = base_worker.compute_nixl_compatibility_hash(config, "", transfer_mode=mode)
        return cls(stock_hash, hashlib.sha256(raised.encode()).hexdigest(), neutral)

    def accept(self, published: str, tag: Tag | None) -> bool:
        """Whether a peer that published this hash and this tag may be talked to."""
        return published in (self.stock, self.own) or (tag is not None and tag.factors == self.factors)
