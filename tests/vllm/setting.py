"""What is tried: engines, pages and requests; and the backends and page formulas behind their names."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any


@dataclass
class Side:
    """One engine of a case.

    `tp` and `pp` are its ranks and pipeline stages; `format` names the interior; `page` is tokens a block; `connector`
    is `stock` or `ours`; `options` are ours.
    """

    tp: int = 1
    pp: int = 1
    format: str = "packed"
    page: int = 16
    layout: str = "LBHNC"
    connector: str = "ours"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Case:
    """A transfer to try.

    `tokens` are prefilled; of these, `hit` are in the decoder's prefix cache already. `rounds` requests follow one
    another, the first with the handshake; `sleep` names the engine that registers its memory anew between them; with
    `timed`, only the last one's pages are written and checked.
    """

    prefill: Side
    decode: Side
    mode: str = "pull"
    heads: int = 4
    head_size: int = 64
    dtype: str = "float16"
    layers: int = 2
    tokens: int = 64
    hit: int = 0
    rounds: int = 1
    sleep: str = ""
    timed: bool = False
    blocks: int = 0
    enforce_hash: bool = True
    trace: bool = False

    @classmethod
    def read(cls, values: dict[str, Any]) -> Case:
        """A case from JSON."""
        known = {item.name for item in fields(cls)}
        given = {name: value for name, value in values.items() if name in known}
        return cls(**{**given, "prefill": Side(**values["prefill"]), "decode": Side(**values["decode"])})


def interior(name: str, heads: int, side: Side, case: Case) -> Any:
    """The formulas of a rank's pages, and the dtype that they are for."""
    from kvreshard.demo import formulas

    size = {"float16": 2, "bfloat16": 2, "float32": 4}[case.dtype]
    geometry = formulas.Geometry(heads=heads, tokens=side.page, head_size=case.head_size, element_bytes=size)
    writers = {
        # Written through the tensor's strides, so the layout decides where heads and tokens lie.
        "packed": formulas.packed_hnd,
        "nhd": formulas.packed_hnd,
        "rocm_attn": formulas.rocm_attn,
        "aiter_shuffle": formulas.aiter_shuffle,
        "b12x": formulas.two_slot_nhd,
        "cpu_vec": formulas.cpu_vec,
        "cpu_amx": formulas.cpu_amx,
        "nvfp4": formulas.nvfp4_flashinfer,
        "page16": formulas.page16,
    }
    return writers[name](geometry)


def backend_of(name: str) -> Any:
    """The class of the backend that builds such pages."""
    if name == "rocm_attn":
        from vllm.v1.attention.backends.rocm_attn import RocmAttentionBackend as Backend
    elif name in ("packed", "aiter_shuffle"):
        from vllm.v1.attention.backends.rocm_aiter_fa import AiterFlashAttentionBackend as Backend
    elif name == "b12x":
        from vllm.v1.attention.backends.b12x import B12xPagedAttentionBackend as Backend
    elif name in ("cpu_vec", "cpu_amx"):
        from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend as Backend
    elif name in ("nvfp4", "page16", "nhd"):
        return _stand_in(name)
    else:
        raise ValueError(f"no backend for {name}")
    return Backend


def _stand_in(name: str) -> Any:
    """A backend that publishes the spec of one that does not import without a GPU."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
    from vllm.v1.kv_cache_interface import KVCacheLayout

    class StandIn(CPUAttentionBackend):
        @staticmethod
        def get_name() -> str:
            return {"nvfp4": "FLASHINFER", "page16": "MINIMAX_M3_SPARSE", "nhd": "TRITON_ATTN"}[name]

        @staticmethod
        def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> Any:
            from vllm.v1.attention.backend import MultipleOf

            return [MultipleOf(16)]

        @classmethod
        def supported_kv_cache_layouts(cls) -> Any:
            return tuple(KVCacheLayout)

        @classmethod
        def customize_spec(cls, spec: Any) -> Any:
            if name == "nvfp4":
                content = spec.head_size // 2 + spec.head_size // 16
                return replace(spec, num_head_slots=2 * spec.num_kv_heads, state_content_bytes=content)
            if name == "page16":
                content = spec.num_kv_heads * spec.head_size * spec.dtype.itemsize
                return replace(spec, num_head_slots=2, state_content_bytes=content)
            return spec

    return StandIn


def settings_of(name: str) -> dict[str, Any]:
    """Settings that the machine at hand would answer by itself, fixed for the test."""
    return {
        "cpu_vec": {"cpu_isa": "vec"},
        "cpu_amx": {"cpu_isa": "amx"},
        "nvfp4": {"nvfp4_scales": "linear"},
    }.get(name, {})
