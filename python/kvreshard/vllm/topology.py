"""vLLM's transfer topology where its own arithmetic does not reach: sizes that do not divide."""

from __future__ import annotations

from dataclasses import fields

from vllm.distributed.kv_transfer.kv_connector.utils import EngineTransferInfo, TransferTopology


class PlannedTopology(TransferTopology):
    """A topology that leaves the pairing of ranks and pages to the planner for the engines that it plans for.

    vLLM asks for ratios of TP and page sizes in several places, and asserts that they are whole numbers. For planned
    engines nothing is derived from these ratios, so they answer instead of asserting.
    """

    @classmethod
    def adopt(cls, topology: TransferTopology) -> PlannedTopology:
        """The same topology, as one of this class."""
        adopted = cls(**{item.name: getattr(topology, item.name) for item in fields(TransferTopology)})
        adopted._engines = topology._engines
        return adopted

    def __post_init__(self) -> None:
        super().__post_init__()
        self._planned: dict[str, list[int]] = {}

    def plan_for(self, engine_id: str, info: EngineTransferInfo, ranks: list[int]) -> None:
        """Registers an engine whose ranks `ranks` this rank exchanges requests with, by plan."""
        self._planned[engine_id] = ranks
        self.register_remote_engine(engine_id, info)

    def unregister_remote_engine(self, remote_engine_id: str) -> None:
        self._planned.pop(remote_engine_id, None)
        super().unregister_remote_engine(remote_engine_id)

    def target_remote_ranks(self, remote_engine_id: str, remote_pp_rank: int = 0) -> list[int]:
        planned = self._planned.get(remote_engine_id)
        return planned if planned is not None else super().target_remote_ranks(remote_engine_id, remote_pp_rank)

    def describe(self, remote_engine_id: str, remote_pp_rank: int = 0) -> str:
        planned = self._planned.get(remote_engine_id)
        if planned is None:
            return str(super().describe(remote_engine_id, remote_pp_rank))
        info = self.get_engine_info(remote_engine_id, remote_pp_rank)
        return f"planned: TP {self.tp_size} with {info.remote_tp_size}, rank {self.tp_rank} with {planned}"
