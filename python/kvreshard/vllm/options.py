"""What a user can choose, from `kv_connector_extra_config["kvreshard"]`."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from typing import Any

import kvreshard as kvr
from kvreshard.formats import Settings

BUFFERS = 2
"""Staging buffers: one is rearranged while the other is on its way."""

_UNTAGGED = ("standard", "refuse")
_CONVERSION = ("auto", "staged", "direct", "off")


@dataclass(frozen=True)
class Options:
    """The connector's options.

    Attributes:
        untagged: Peers without a tag: `standard` accepts them where all pages here are standard; `refuse` never does.
        assume_untagged: `standard` takes an untagged peer's pages to be standard whatever the pages here are, and where
            ours are not known leaves both to vLLM's own geometry; `None` does not. `KVRESHARD_ASSUME_UNTAGGED` gives
            the default.
        conversion: Pages that share only short runs: `auto` rearranges them in staging memory where the planner's cost
            model finds that cheaper, `staged` and `direct` force one way, `off` refuses pages of another interior
            where `auto` would rearrange.
        transport: The measured transport whose constants that model takes, of :meth:`kvreshard.Transport.names`; by
            the kind of memory where not given.
        staging_bytes: Memory for pages that are rearranged; a push takes half as much again.
        settings: Settings that this process cannot tell by itself; they win over what is found.
    """

    untagged: str = "standard"
    assume_untagged: str | None = None
    conversion: str = "auto"
    transport: str | None = None
    staging_bytes: int = 256 << 20
    settings: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def read(cls, extra: dict[str, Any] | None) -> Options:
        """The options in vLLM's extra config.

        Raises:
            ValueError: An option, or its value, is not known.
        """
        given = dict((extra or {}).get("kvreshard") or {})
        given.setdefault("assume_untagged", os.environ.get("KVRESHARD_ASSUME_UNTAGGED") or None)
        known = {field.name for field in fields(cls)}
        for name in given:
            if name not in known:
                raise ValueError(f"kv_connector_extra_config: kvreshard has no option {name!r}; it has {sorted(known)}")
        settings = given.pop("settings", {})
        names = {field.name for field in fields(Settings)}
        for name in settings:
            if name not in names:
                raise ValueError(f"kvreshard settings: no setting {name!r}; there are {sorted(names)}")
        options = cls(settings=tuple(sorted(settings.items())), **given)
        for name, value, allowed in (
            ("untagged", options.untagged, _UNTAGGED),
            ("assume_untagged", options.assume_untagged, ("standard", None)),
            ("conversion", options.conversion, _CONVERSION),
            ("transport", options.transport, (*kvr.Transport.names(), None)),
        ):
            if value not in allowed:
                raise ValueError(f"kvreshard option {name} is {value!r}, but takes {allowed}")
        return options

    @property
    def buffer_bytes(self) -> int:
        """Bytes of one staging buffer."""
        return max(1, self.staging_bytes // BUFFERS)

    def override(self, settings: Settings) -> Settings:
        """`settings` with the user's own in their place."""
        return replace(settings, **dict(self.settings))
