"""What a file says of one side: TOML, or one of the messages that ranks send one another."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kvreshard as kvr
from kvreshard.cli.sides import BadSide, Side, read_toml


@dataclass(frozen=True)
class Given:
    """What a file says of one side: an engine described, one rank's layout, or a stock handshake."""

    side: Side | None = None
    rank: kvr.RankLayout | None = None
    stock: kvr.StockHandshake | None = None


def read(path: Path, engine: str, tp: tuple[int, int]) -> Given:
    """Whatever a file holds.

    Raises:
        BadSide: It holds nothing that is known.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadSide(f"{path}: {error.strerror}") from error
    if path.suffix == ".toml":
        return Given(side=read_toml(path, engine))
    try:
        return Given(rank=kvr.RankLayout.from_bytes(data))
    except kvr.WireError as problem:
        if (layout := tagged(data) or told(data)) is not None:
            return Given(rank=layout)
        try:
            return Given(stock=kvr.StockHandshake.from_bytes(data, tp=tp))
        except kvr.Error as other:
            text = f"neither a layout's message ({problem}) nor a stock handshake ({other}), and its name is no .toml"
            raise BadSide(f"{path}: {text}") from other


def tagged(data: bytes) -> kvr.RankLayout | None:
    """The layout in the tag that `kvreshard.vllm` adds to vLLM's handshake, whole or its agent metadata alone.

    Raises:
        Error: The tag is there, and the layout in it is refused.
    """
    import msgspec

    def fields(part: Any) -> dict[str, Any]:
        found = msgspec.msgpack.decode(part) if isinstance(part, bytes) else None
        return found if isinstance(found, dict) else {}

    try:
        outer = fields(data)
        layout = fields((fields(outer.get("agent_metadata_bytes")) or outer).get("kvreshard")).get("layout")
    except (msgspec.MsgspecError, TypeError):
        return None
    return kvr.RankLayout.from_bytes(layout) if isinstance(layout, bytes) else None


def told(data: bytes) -> kvr.RankLayout | None:
    """The layout in what `kvreshard.nixl.Connector.metadata` gives, where nixl is there to read it.

    Raises:
        Error: It is such metadata, and the layout in it is refused.
    """
    try:
        from kvreshard.nixl import MetadataError, wire
    except ImportError:
        return None
    try:
        return wire.decode(data).layout
    except MetadataError:
        return None
