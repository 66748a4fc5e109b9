"""A pytest plugin that puts this project's connectors in the place of vLLM's, for vLLM's own tests.

`python -m pytest -p substitute ...` in a folder with vLLM's tests, with this file's folder on the path. Nothing in the
tests changes: the classes are exchanged in the modules that the tests import them from, before any of them is imported.

Peers in these tests are made by hand and carry no tag, and their backend is CPU_ATTN, whose pages are not standard: the
option that serves such peers as vLLM does is switched on.

Some tests patch the class behind NixlPushConnectorWorker by its place in the order of bases. Ours has classes of its
own in between, which the substitute does not show: what is patched is the class that these tests mean.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
os.environ["KVRESHARD_ASSUME_UNTAGGED"] = "standard"

import vllm.distributed.kv_transfer.kv_connector.v1.nixl as package
import vllm.distributed.kv_transfer.kv_connector.v1.nixl.worker  # noqa: F401  (an alias module that tests import)
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

import kvreshard.vllm
import kvreshard.vllm.connector
from kvreshard.vllm.pull import PlannedPullWorker
from kvreshard.vllm.push import PlannedPushWorker


class _StockOrder(type):
    """Shows a class's bases as if it stood in the place of vLLM's push worker."""

    @property
    def __mro__(cls) -> tuple[type, ...]:
        (stock,) = (kind for kind in PlannedPushWorker.__mro__ if kind.__name__ == "NixlPushConnectorWorker")
        return (cls, *stock.__mro__[1:])


class _PushWorker(PlannedPushWorker, metaclass=_StockOrder):
    """Ours, shown in the place of vLLM's."""


def _exchange() -> None:
    ours = {
        "NixlConnector": kvreshard.vllm.NixlConnector,
        "NixlPullConnector": kvreshard.vllm.NixlPullConnector,
        "NixlPushConnector": kvreshard.vllm.NixlPushConnector,
        "NixlPullConnectorWorker": PlannedPullWorker,
        "NixlPushConnectorWorker": _PushWorker,
        "NixlConnectorWorker": PlannedPullWorker,
    }
    stock = {name: value for name, value in vars(package).items() if name in ours}
    for module in [found for name, found in sys.modules.items() if name.startswith(package.__name__)]:
        for name, replacement in ours.items():
            if name in vars(module):
                setattr(module, name, replacement)
    for name in ("NixlConnector", "NixlPullConnector", "NixlPushConnector"):
        if name in KVConnectorFactory._registry:
            KVConnectorFactory._registry[name] = lambda found=ours[name]: found
    for name, value in {"PlannedPushWorker": _PushWorker}.items():
        # What our own push connector builds.
        setattr(kvreshard.vllm.connector, name, value)
    assert stock, "vLLM's package no longer names its connectors"


_exchange()
