"""Page formats read from an engine's own objects.

:func:`from_vllm_spec` turns vLLM's description of a layer's cache into page formats. What it does not know is
:class:`Unknown`, with the reason; nothing is guessed.
"""

from kvreshard.formats.case import Case, Pages, Settings, Unknown
from kvreshard.formats.vllm import from_vllm_spec, known_backends, register_backend

__all__ = ["Case", "Pages", "Settings", "Unknown", "from_vllm_spec", "known_backends", "register_backend"]
