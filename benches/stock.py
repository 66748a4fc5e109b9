"""vLLM's own code for the same work: methods of its NIXL worker, called on a worker that was never connected.

Nothing is copied: the installed vLLM's `NixlBaseConnectorWorker` builds its strided rows and descriptor ids from the
attributes that its constructor and handshake would have set.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.uint64]


def installed() -> bool:
    """Whether there is a vLLM to compare with."""
    return importlib.util.find_spec("vllm") is not None


class StockWorker:
    """A worker with one region a layer, pages of `page_bytes` bytes, and one peer built alike."""

    def __init__(self, here: Sequence[int], there: Sequence[int], page_bytes: int, pages: int) -> None:
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker import NixlBaseConnectorWorker
        from vllm.v1.kv_cache_interface import FullAttentionSpec

        count = len(here)
        # vLLM ships types that mypy does not read here.
        worker: Any = object.__new__(NixlBaseConnectorWorker)
        worker.transfer_topo = SimpleNamespace()
        worker.device_id = 0
        worker.num_regions = count
        worker.block_len_per_layer = [page_bytes] * count
        worker.block_stride_per_layer = [page_bytes] * count
        worker.region_num_blocks = [pages] * count
        worker.region_group_ids = [0] * count
        worker.draft_tp_mappings = {}
        worker._group_spec_types = [FullAttentionSpec]
        worker._head_sharded_draft_regions = set()
        worker._transfer_layer_region_indices = []
        worker._transfer_layer_group_ids = []
        worker._uses_region_group_mapping = False
        worker._has_mamba = False
        worker._is_region_replicated = lambda region: False
        self._worker = worker
        self._pages = pages
        self._here = list(here)
        self._metadata = SimpleNamespace(
            engine_id="peer",
            kv_caches_base_addr=list(there),
            region_num_blocks=[pages] * count,
            num_blocks=pages,
            device_id=0,
            block_strides=[page_bytes] * count,
        )
        self._mapping = SimpleNamespace(source_ranks_per_group=[[0]], rank_offset_factor=0)

    def rows(self) -> tuple[Rows, Rows]:
        """Both sides' Nx5 rows, as the handshake builds them."""
        local = self._worker._build_fa_local(self._here, 1)
        return local, self._worker._build_fa_remote(self._mapping, self._metadata, 1)

    def ids(self, local: Any, remote: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Both sides' descriptor ids for block lists, as a read computes them."""
        compute: Callable[..., npt.NDArray[np.int64]] = self._worker._compute_desc_ids
        count = self._worker.region_num_blocks
        groups = self._worker.region_group_ids
        theirs = compute([remote], self._pages, None, 1, count, groups, False)
        return compute([local], self._pages, 1, 1, count, groups, False), theirs
