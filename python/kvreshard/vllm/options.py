"""What a user can choose, from `kv_connector_extra_config["kvreshard"]`."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from typing import Any

from kvreshard.formats import Settings

_UNTAGGED = ("standard", "refuse")
_CONVERSION = ("auto", "landed", "direct", "off")


@dataclass(frozen=True)
class Options:
    """The connector's options.

    Attributes:
        untagged: Peers without a tag: `standard` accepts them where all pages here are standard; `refuse` never does.
        assume_untagged: `standard` takes an untagged peer's pages to be standard whatever the pages here are, and where
            ours are not known leaves both to vLLM's own geometry; `None` does not. `KVRESHARD_ASSUME_UNTAGGED` gives
            the default.
        conversion: Pages of another interior: `auto` lands them where direct runs would be shorter than `shortest_run`
            bytes on average, `landed` and `direct` force one way, `off` refuses what `auto` would land.
        shortest_run: That bound, in bytes.
        staging_bytes: Most memory for pages that are landed.
        settings: Settings that this process cannot tell by itself; they win over what is found.
    """

    untagged: str = "standard"
    assume_untagged: str | None = None
    conversion: str = "auto"
    shortest_run: int = 256
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
        ):
            if value not in allowed:
                raise ValueError(f"kvreshard option {name} is {value!r}, but takes {allowed}")
        return options

    def override(self, settings: Settings) -> Settings:
        """`settings` with the user's own in their place."""
        return replace(settings, **dict(self.settings))
