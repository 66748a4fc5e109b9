"""Control messages between connectors: introductions, leases, first contact, and the packed protocol's.

They go as NIXL notices, to peers only that announced that they understand them. A peer can be answered once it has
introduced itself: NIXL delivers a notice from an agent that it could not send one to.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from .wire import MAX_MESSAGE

PREFIX = b"kvreshard\x01"
"""What every control message begins with."""

MAX_ID = 1024
"""Bytes of a request's id."""

MAX_IDS = 16 << 20
"""Bytes of one list of block ids."""

VERSION = 2
"""The version of notices from which on a peer understands control messages."""

CONTACTS = 3
"""The version of notices from which on a peer answers the first contact of a push."""

Flow = Literal["push", "pull"]
Id = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """Who sends this: `Connector.metadata()` of it."""

    metadata: Annotated[bytes, msgspec.Meta(max_length=MAX_MESSAGE)]


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """A reader: hold the pages of request `id` for `milliseconds` more.

    Here, in `Done`, `Join` and `Parcel`, `generation` is the registration that the speaker takes the hearer to have; 0
    from one that does not say.
    """

    id: Id
    milliseconds: Count
    generation: Count = 0


class Held(msgspec.Struct, frozen=True, array_like=True, tag="held"):
    """A producer: they are held for `milliseconds` more, as `hold` (a number that no other promise has)."""

    id: Id
    hold: Count
    milliseconds: Count


class Gone(msgspec.Struct, frozen=True, array_like=True, tag="gone"):
    """A producer: they are not held any more."""

    id: Id


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    """A reader: all bytes of `id` have arrived; were the pages held until now, as `hold`? 0: it was never told.

    Counts as the notice of the end, of which there are `senders`. `token` is this read's alone, however often it asks.
    """

    id: Id
    hold: Count
    token: Count
    senders: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    generation: Count = 0


class Confirmed(msgspec.Struct, frozen=True, array_like=True, tag="confirmed"):
    """A producer: they were, and the reader is counted."""

    id: Id


class Void(msgspec.Struct, frozen=True, array_like=True, tag="void"):
    """The speaker's registration `generation` is gone: what was said of it is void, its addresses first of all."""

    generation: Count


class Join(msgspec.Struct, frozen=True, array_like=True, tag="join"):
    """The packed protocol begins between two registrations, each known by its epochs as receiver and as sender.

    `mine` are the speaker's, `yours` those that it has heard (zeros: none). `flow` is who issues the transfers where
    the speaker receives. `up`: the speaker takes it as begun.
    """

    mine: tuple[Count, Count]
    yours: tuple[Count, Count]
    flow: Flow
    up: bool
    generation: Count = 0


Takes = list[tuple[str, list[tuple[str, Count, Count]], bool]]
Blocks = list[tuple[Count, Annotated[bytes, msgspec.Meta(max_length=MAX_IDS)]]]


class Parcel(msgspec.Struct, frozen=True, array_like=True, tag="parcel"):
    """A request to be packed, which the ring protocol then calls `name`: the hearer gathers its pages (`gather`), or
    scatters into them.

    `local` are the receiver's blocks and `remote` the sender's: first token, and ids as int32. `takes` is the edge of
    a route. Pages are packed into chunks of at most `limit`; `bytes`, chunks of `chunk`, and the plan's `digest` are
    what the speaker makes of it.
    """

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    id: Id
    gather: bool
    zero: bool
    tokens: tuple[Count, Count]
    more: bool
    local: Blocks
    remote: Blocks
    layers: list[str] | None
    takes: Takes | None
    limit: Count
    bytes: Count
    chunk: Count
    digest: Annotated[str, msgspec.Meta(max_length=64)]
    generation: Count = 0


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """A parcel that the speaker cannot take part in; without a name, any. `gone`: it does not hold the pages."""

    name: Annotated[str, msgspec.Meta(max_length=64)]
    text: Annotated[str, msgspec.Meta(max_length=4096)]
    gone: bool = False


class Marked(msgspec.Struct, frozen=True, array_like=True, tag="marked"):
    """A writer: marks of `seed` have been written into the hearer's `blocks`, for `tokens`; does its reader find them?

    `takes` is the edge of a route.
    """

    id: Id
    seed: Count
    tokens: tuple[Count, Count]
    blocks: Blocks
    takes: Takes | None


class Found(msgspec.Struct, frozen=True, array_like=True, tag="found"):
    """A target: its reader looked at `pages` pages and `elements` elements; `text` is what is wrong, if anything.

    `wrong`: the reader found something else than marks. Otherwise it could not look.
    """

    id: Id
    pages: Count
    elements: Count
    wrong: bool
    text: Annotated[str, msgspec.Meta(max_length=4096)]


Message = Hello | Ask | Held | Gone | Done | Confirmed | Void | Join | Parcel | Refused | Marked | Found

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """The bytes of a control message."""
    if isinstance(message, (Ask, Done, Join, Parcel)) and message.generation == 0:
        # As it was before there were registrations to name.
        return PREFIX + _encoder.encode([message.__struct_config__.tag, *msgspec.structs.astuple(message)[:-1]])
    return PREFIX + _encoder.encode(message)


def is_control(message: bytes) -> bool:
    """Whether it is meant to be one."""
    return message.startswith(PREFIX)


def decode(message: bytes) -> Message | None:
    """The message; `None` for one that does not decode."""
    if len(message) > MAX_MESSAGE + MAX_ID:
        return None
    try:
        told = _decoder.decode(message[len(PREFIX) :])
    except (msgspec.MsgspecError, ValueError):
        return None
    # Their texts stand in errors and logs, which a peer could otherwise forge lines of.
    if isinstance(told, Refused | Found) and not told.text.isprintable():
        return msgspec.structs.replace(told, text=spelled(told.text))
    return told


def spelled(text: str) -> str:
    """The text with what does not print spelled out."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
