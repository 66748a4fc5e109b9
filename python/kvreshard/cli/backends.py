"""vLLM's attention backends as the command names them, and the cache specs that they publish.

`rocm_aiter_fa:shuffle,layout=LBHNC` is a backend and its settings. Page formats come from
:func:`kvreshard.formats.from_vllm_spec`, given a stand-in for vLLM's spec; vLLM is not imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from kvreshard.cli.vllm import BACKENDS, BYTES, TORCH, Backend, Shape
from kvreshard.formats import Pages, Settings, Unknown, from_vllm_spec


@dataclass(frozen=True)
class Choice:
    """A backend and a layout, as picked by a text."""

    key: str
    backend: Backend
    layout: str


@lru_cache(maxsize=1024)
def choose(text: str) -> Choice:
    """The backend that a text picks: `flash_attn`, `rocm_aiter_fa:shuffle,layout=LHBNC`.

    Raises:
        ValueError: There is none, or it does not take the layout.
    """
    name, _, rest = text.partition(":")
    settings = [part for part in rest.split(",") if part]
    layouts = [part.removeprefix("layout=") for part in settings if part.startswith("layout=")]
    others = sorted(part for part in settings if not part.startswith("layout="))
    for key, backend in BACKENDS.items():
        known, _, fixed = key.partition(":")
        if known == name and sorted(part for part in fixed.split(",") if part) == others:
            layout = layouts[-1] if layouts else backend.layouts[0]
            if layout not in backend.layouts:
                raise ValueError(f"{key} does not take layout {layout}; it takes {', '.join(backend.layouts)}")
            return Choice(key, backend, layout)
    close = [key for key in BACKENDS if key.partition(":")[0] == name]
    raise ValueError(f"no backend {text!r}; {'there are' if close else 'known are'} {', '.join(close or BACKENDS)}")


def pages_of(choice: Choice, shape: Shape) -> Pages:
    """How a rank's pages are built.

    Raises:
        ValueError: That is not known.
    """
    found = from_vllm_spec(
        _spec(choice.backend, shape), choice.backend.name, choice.layout, settings=Settings(**choice.backend.settings)
    )
    if isinstance(found, Unknown):
        raise ValueError(found.reason)
    return found


def _spec(backend: Backend, shape: Shape) -> Any:
    """A stand-in for vLLM's spec: the attributes that :mod:`kvreshard.formats` looks at."""
    content = None if backend.content is None else backend.content(shape)
    head_size = backend.row or shape.head_size
    slots = None if backend.slots is None or backend.content is None else backend.slots(shape.heads)
    heads = 1 if backend.mla else shape.heads
    sides = 1 if backend.mla else 2
    width = content if content is not None else sides * head_size * BYTES[shape.dtype]
    return SimpleNamespace(
        block_size=shape.page,
        tokens_per_state=1,
        dtype=TORCH[shape.dtype],
        num_kv_heads=heads,
        head_size=head_size,
        head_size_v=0 if backend.mla else head_size,
        num_head_slots=slots,
        num_heads=slots if slots is not None else heads,
        state_content_bytes=content,
        state_content_size_bytes=width,
        kv_quant_mode=SimpleNamespace(name=backend.mode),
        **backend.spec,
    )
