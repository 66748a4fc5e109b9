"""What a rank tells its peers: its agent, its registrations and its layout, in one message.

The bytes come over whatever channel the host has. Everything in them is hostile until checked: sizes are bounded before
anything is decoded, and every refusal is a `MetadataError` that says where.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

import kvreshard as kvr

from .errors import MetadataError

VERSION = 1
"""Version of the message; a newer one is refused."""

MAX_MESSAGE = 64 << 20
MAX_NAME = 256
MAX_NIXL = 32 << 20
MAX_LAYOUT = 32 << 20

_MAGIC = "kvreshard"


class _Ring(msgspec.Struct, frozen=True, array_like=True):
    address: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    slots: Annotated[int, msgspec.Meta(ge=1, le=2**16)]
    slot_bytes: Annotated[int, msgspec.Meta(ge=1, le=2**40)]
    device: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    memory: Literal["DRAM", "VRAM"]


class _Rings(msgspec.Struct, frozen=True, array_like=True):
    version: Annotated[int, msgspec.Meta(ge=1, le=2**31)]
    receive: _Ring
    send: _Ring


class _Message(msgspec.Struct, frozen=True, omit_defaults=True):
    magic: Annotated[str, msgspec.Meta(max_length=16)]
    version: Annotated[int, msgspec.Meta(ge=1, le=2**31)]
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)] = ""
    nixl: Annotated[bytes, msgspec.Meta(max_length=MAX_NIXL)] = b""
    layout: Annotated[bytes, msgspec.Meta(max_length=MAX_LAYOUT)] = b""
    generation: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    notices: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0
    digest: Annotated[bytes, msgspec.Meta(max_length=64)] = b""
    rings: _Rings | None = None


class _Head(msgspec.Struct, frozen=True):
    """What is read of a message before its version is known to be ours."""

    magic: Annotated[str, msgspec.Meta(max_length=16)]
    version: int


_encoder = msgspec.msgpack.Encoder()
_head = msgspec.msgpack.Decoder(_Head)
_decoder = msgspec.msgpack.Decoder(_Message)


@dataclass(frozen=True)
class Ring:
    """A peer's staging memory for packed transfers: `slots` of `slot_bytes` from `address` on."""

    address: int
    slots: int
    slot_bytes: int
    device: int
    memory: Literal["DRAM", "VRAM"]


@dataclass(frozen=True)
class Rings:
    """That a rank runs the packed protocol, up to `version`: where it receives, and where it gathers."""

    version: int
    receive: Ring
    send: Ring


@dataclass(frozen=True)
class Metadata:
    """One rank, as told to its peers.

    `name` is its NIXL agent, `nixl` that agent's metadata, `generation` counts its registrations, `notices` is the
    newest version of notices that it understands (0: none are to be sent). `rings` announces the packed protocol: a
    peer without them gets none of its messages. `digest` identifies the message.
    """

    name: str
    nixl: bytes
    layout: kvr.RankLayout
    generation: int
    notices: int
    digest: str = ""
    rings: Rings | None = None


def encode(metadata: Metadata) -> bytes:
    """The message."""
    message = _Message(
        magic=_MAGIC,
        version=VERSION,
        name=metadata.name,
        nixl=metadata.nixl,
        layout=metadata.layout.to_bytes(),
        generation=metadata.generation,
        notices=metadata.notices,
        rings=_told(metadata.rings),
    )
    return _encoder.encode(msgspec.structs.replace(message, digest=_digest(message)))


def _told(rings: Rings | None) -> _Rings | None:
    if rings is None:
        return None
    receive, send = (
        _Ring(one.address, one.slots, one.slot_bytes, one.device, one.memory) for one in (rings.receive, rings.send)
    )
    return _Rings(rings.version, receive, send)


def _heard(rings: _Rings | None) -> Rings | None:
    if rings is None:
        return None
    receive, send = (
        Ring(one.address, one.slots, one.slot_bytes, one.device, one.memory) for one in (rings.receive, rings.send)
    )
    return Rings(rings.version, receive, send)


def _digest(message: _Message) -> bytes:
    """SHA-256 of all fields but this one, in the order of their declaration; lengths are part of msgpack. Rings count
    where there are some.

    NIXL's metadata has no check of its own, and after a damaged load an agent can never load that peer: damage must be
    seen before NIXL is asked.
    """
    fields = msgspec.structs.astuple(msgspec.structs.replace(message, digest=b""))
    if message.rings is None:
        fields = fields[:-1]
    return hashlib.sha256(_encoder.encode(fields)).digest()


def decode(data: bytes) -> Metadata:
    """Reads a message.

    Raises `MetadataError` for what is too long, does not decode or contradicts itself; `kvreshard.WireError` or another
    `kvreshard.Error` when the layout inside it is refused.
    """
    if len(data) > MAX_MESSAGE:
        raise MetadataError(
            f"peer metadata has {len(data)} bytes, over the limit of {MAX_MESSAGE}",
            field="message",
            found=len(data),
            limit=MAX_MESSAGE,
        )
    try:
        head = _head.decode(data)
    except msgspec.MsgspecError as error:
        raise MetadataError(f"peer metadata: {error}", field="message", found=str(error)) from error
    if head.magic != _MAGIC:
        raise MetadataError(
            "peer metadata is not a kvreshard message", field="magic", found=head.magic, expected=_MAGIC
        )
    if head.version > VERSION:
        raise MetadataError(
            f"peer metadata has version {head.version}, this build reads up to {VERSION}",
            field="version",
            found=head.version,
            limit=VERSION,
            remedy="upgrade this side",
        )
    try:
        message = _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise MetadataError(f"peer metadata: {error}", field="message", found=str(error)) from error
    for field, value in (("name", message.name), ("nixl", message.nixl), ("layout", message.layout)):
        if not value:
            raise MetadataError(f"peer metadata has no {field}", field=field)
    if not message.name.isprintable():
        # It stands in errors and logs, which a peer could otherwise forge lines of.
        raise MetadataError(
            "peer metadata: the name has characters that do not print", field="name", found=ascii(message.name)
        )
    if message.digest != _digest(message):
        raise MetadataError("peer metadata was damaged on the way: its digest does not match", field="digest")
    layout = kvr.RankLayout.from_bytes(message.layout)
    if layout.generation != message.generation:
        raise MetadataError(
            f"peer metadata names generation {message.generation}, its layout {layout.generation}",
            field="generation",
            found=message.generation,
            expected=layout.generation,
        )
    return Metadata(
        name=message.name,
        nixl=message.nixl,
        layout=layout,
        generation=message.generation,
        notices=message.notices,
        digest=message.digest.hex(),
        rings=_heard(message.rings),
    )
