"""NIXL agents that several threads may use.

vLLM makes its agents with the lock that NIXL takes by default, which is none, and uses them from two threads when it
pulls (the engine's and the handshakes') and from three when it pushes (the writer's too). Staging memory, which this
connector registers beside running handshakes, would add to that. So its agents have NIXL's lock.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker


@contextlib.contextmanager
def locked_agents() -> Iterator[None]:
    """Agents that vLLM makes meanwhile serialise their calls, unless it asks for another lock.

    vLLM makes its agent inside a constructor and lets nobody say how, so the class that it names is exchanged.
    """
    stock = base_worker.NixlWrapper

    def locked(name: str, config: Any = None, *rest: Any, **more: Any) -> Any:
        # The package that the configuration is of: NIXL has one for each kind of device.
        modes = getattr(sys.modules.get(type(config).__module__), "nixl_thread_sync_t", None)
        if modes is not None and config.sync_mode is None:
            config.sync_mode = modes.NIXL_THREAD_SYNC_STRICT
        return stock(name, config, *rest, **more)

    base_worker.NixlWrapper = None if stock is None else locked
    try:
        yield
    finally:
        base_worker.NixlWrapper = stock
