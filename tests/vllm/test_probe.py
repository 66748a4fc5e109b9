"""Declared formats put to vLLM's own writers on host memory: `do_kv_cache_update` of its backends, called as it stands.

Each backend cuts the cache into views and hands them to a kernel. CPU_MLA's writer is Python and runs whole. The other
kernels are compiled for devices: stand-ins here store an element where the kernel's contract has it in the views that
it is given. Formats come from vLLM's spec, as the connector makes them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import kvreshard as kvr
from kvreshard.formats import Pages, Settings, from_vllm_spec
from kvreshard.probe import WriterMismatch, check_writer, infer
from tests.vllm.harness import set_environment

HEADS, TOKENS, SIZE, BLOCKS, BLOCK = 2, 16, 32, 3, 1
Inputs = Mapping[str, npt.NDArray[Any]]


@pytest.fixture(scope="module")
def torch() -> Iterator[Any]:
    """Torch, with vLLM imported for the CPU; vLLM may pin the process to a core, which is undone."""
    set_environment()
    cores = os.sched_getaffinity(0)
    import torch

    with pytest.MonkeyPatch.context() as patch:
        _stand_in(torch, patch)
        yield torch
    os.sched_setaffinity(0, cores)


def _flash(key: Any, value: Any, key_cache: Any, value_cache: Any, slots: Any, *_: Any) -> None:
    """Contract of `reshape_and_cache_flash`: caches are [block, token, head, channel]."""
    page = key_cache.shape[1]
    for token, slot in enumerate(slots.tolist()):
        key_cache[slot // page, slot % page] = key[token]
        value_cache[slot // page, slot % page] = value[token]


def _paged(key: Any, value: Any, key_cache: Any, value_cache: Any, slots: Any, *rest: Any) -> None:
    """Contract of `reshape_and_cache` and its Triton sibling.

    K is [block, head, channel/x, token, x]; V is [block, head, channel, token], or, interleaved, the same bytes as
    [block, head, token/x, channel, x].
    """
    interleaved = rest[-1]
    _, heads, size, page = value_cache.shape
    x = key_cache.shape[-1]
    for token, slot in enumerate(slots.tolist()):
        block, at = divmod(slot, page)
        key_cache[block, :, :, at] = key[token].view(heads, size // x, x)
        if interleaved:
            value_cache.view(-1, heads, page // x, size, x)[block, :, at // x, :, at % x] = value[token]
        else:
            value_cache[block, :, :, at] = value[token]


def _stand_in(torch: Any, patch: pytest.MonkeyPatch) -> None:
    from vllm.v1.attention.backends import rocm_attn, rocm_segmented_attn, triton_attn
    from vllm.v1.attention.ops.paged_attn import PagedAttention

    patch.setattr(torch.ops, "_C_cache_ops", SimpleNamespace(reshape_and_cache_flash=_flash))
    for module in (rocm_segmented_attn, triton_attn):
        patch.setattr(module, "triton_reshape_and_cache_flash", _flash)
    # Which of the two ROCM_ATTN calls depends on the strides between blocks.
    patch.setattr(rocm_attn, "triton_reshape_and_cache_flash", _paged)
    patch.setattr(PagedAttention, "write_to_paged_cache", staticmethod(_paged))


class Layer:
    """A layer of a backend: its cache as vLLM's logical [block, head slot, state, content], and its writer."""

    def __init__(
        self, torch: Any, module: str, backend: str, impl: str, *, layout: str = "LBHNC", **fields: Any
    ) -> None:
        from importlib import import_module

        from vllm.v1.kv_cache_interface import FullAttentionSpec

        source = import_module(f"vllm.v1.attention.backends.{module}")
        self.torch, self.backend, self.layout = torch, getattr(source, backend), layout
        spec = FullAttentionSpec(block_size=TOKENS, num_kv_heads=HEADS, head_size=SIZE, dtype=torch.bfloat16)
        self.spec = self.backend.customize_spec(spec)
        slots = self.spec.num_heads
        content = self.spec.state_content_size_bytes // 2
        if layout == "LBNHC":
            self.cache = torch.zeros(BLOCKS, TOKENS, slots, content, dtype=torch.bfloat16).transpose(1, 2)
        else:
            self.cache = torch.zeros(BLOCKS, slots, TOKENS, content, dtype=torch.bfloat16)
        # The object without its device's set-up: just what its writer looks at.
        kind = getattr(source, impl)
        self.impl = kind.__new__(kind)
        common = {"num_kv_heads": HEADS, "head_size": SIZE, "kv_cache_dtype": "auto", "attn_type": "decoder"}
        for name, value in {**common, "kv_torch_dtype": torch.bfloat16, **fields}.items():
            setattr(self.impl, name, value)

    def write(self, inputs: Inputs) -> None:
        key, value = (self.torch.from_numpy(inputs[side]).to(self.torch.bfloat16) for side in ("k", "v"))
        slots = self.torch.arange(TOKENS) + BLOCK * TOKENS
        scales = SimpleNamespace(_k_scale=None, _v_scale=None)
        self.impl.do_kv_cache_update(scales, key, value, self.cache, slots)

    def declared(self, settings: Settings | None = None) -> kvr.PageFormat:
        pages = from_vllm_spec(self.spec, self.backend, self.layout, settings=settings or Settings())
        assert isinstance(pages, Pages), pages
        (form,) = pages.formats
        return form


def _triton(torch: Any) -> Layer:
    return Layer(
        torch,
        "triton_attn",
        "TritonAttentionBackend",
        "TritonAttentionImpl",
        _is_per_token_head_quant=False,
        _set_kv_ptr_range=False,
    )


def _flex(layout: str) -> Callable[[Any], Layer]:
    return lambda torch: Layer(torch, "flex_attention", "FlexAttentionBackend", "FlexAttentionImpl", layout=layout)


def _rocm(interleaved: bool) -> Callable[[Any], Layer]:
    return lambda torch: Layer(
        torch, "rocm_attn", "RocmAttentionBackend", "RocmAttentionImpl", _use_interleaved_v_cache=interleaved
    )


def _aiter(torch: Any) -> Layer:
    return Layer(torch, "rocm_aiter_fa", "AiterFlashAttentionBackend", "AiterFlashAttentionImpl")


def _b12x(torch: Any) -> Layer:
    return Layer(torch, "b12x", "B12xPagedAttentionBackend", "B12xPagedAttentionImpl")


def _segmented(torch: Any) -> Layer:
    return Layer(torch, "rocm_segmented_attn", "RocmSegmentedAttentionBackend", "RocmSegmentedAttentionImpl")


WRITERS: dict[str, tuple[Callable[[Any], Layer], Settings]] = {
    "flex-hnd": (_flex("LBHNC"), Settings()),
    "flex-nhd": (_flex("LBNHC"), Settings()),
    "triton": (_triton, Settings()),
    "aiter": (_aiter, Settings()),
    "b12x": (_b12x, Settings()),
    "segmented": (_segmented, Settings()),
    "rocm": (_rocm(False), Settings(interleaved_v=False)),
    "rocm-interleaved": (_rocm(True), Settings(interleaved_v=True)),
}


@pytest.mark.parametrize("name", WRITERS)
def test_backends_write_what_their_specs_declare(torch: Any, name: str) -> None:
    build, settings = WRITERS[name]
    layer = build(torch)
    form = layer.declared(settings)
    start = BLOCK * form.page_bytes
    assert check_writer(form, layer.write, layer.cache, start=start) > 0
    inputs = {side: {"n": TOKENS, "h": HEADS, "d": SIZE} for side in ("k", "v")}
    found = infer(layer.write, layer.cache, inputs, page_bytes=form.page_bytes, types="bf16", start=start)
    assert all((found.offsets(side) == _as(found, form, side)).all() for side in ("k", "v")), found.notation
    assert not layer.cache.any(), "the probe puts back what the page held"


def _as(found: kvr.PageFormat, form: kvr.PageFormat, side: str) -> npt.NDArray[np.int64]:
    """The declared offsets with the axes in the order of the format that was found."""
    have = [axis for axis, _ in form.axes(side)]
    return np.transpose(form.offsets(side), [have.index(axis) for axis, _ in found.axes(side)])


def test_a_setting_that_is_not_so_is_refused(torch: Any) -> None:
    """Row 15 of the list of pairs that are accepted and wrong: the order of V follows a setting that no spec shows."""
    layer = _rocm(True)(torch)
    lie = layer.declared(Settings(interleaved_v=False))
    with pytest.raises(WriterMismatch) as caught:
        check_writer(lie, layer.write, layer.cache, start=BLOCK * lie.page_bytes)
    assert caught.value.component == "v"
    assert not layer.cache.any()


def test_a_layout_that_is_not_so_is_refused(torch: Any) -> None:
    layer = _flex("LBNHC")(torch)
    layer.layout = "LBHNC"
    lie = layer.declared()
    with pytest.raises(WriterMismatch) as caught:
        check_writer(lie, layer.write, layer.cache, start=BLOCK * lie.page_bytes)
    assert (caught.value.component, caught.value.index) == ("k", {"d": 0, "h": 0, "n": 1})


def test_latent_rows_by_the_writer_for_cpus(torch: Any) -> None:
    """Nothing stands in for anything: `CPU_MLA` stores rows in Python."""
    from vllm.v1.attention.backends.mla.cpu_mla import CPUMLAImpl
    from vllm.v1.kv_cache_interface import MLAAttentionSpec

    latent, rope = 64, 16
    spec = MLAAttentionSpec(block_size=TOKENS, num_kv_heads=1, head_size=latent + rope, dtype=torch.bfloat16)
    cache = torch.zeros(BLOCKS, TOKENS, latent + rope, dtype=torch.bfloat16)
    pages = from_vllm_spec(spec, "CPU_MLA", "LBHNC")
    assert isinstance(pages, Pages), pages
    (form,) = pages.formats
    (component,) = form.components

    def write(inputs: Inputs) -> None:
        rows = torch.from_numpy(inputs[component].reshape(TOKENS, latent + rope)).to(torch.bfloat16)
        slots = torch.arange(TOKENS) + BLOCK * TOKENS
        CPUMLAImpl.do_kv_cache_update(
            SimpleNamespace(), rows[:, :latent], rows[:, None, latent:], cache, slots, "auto", None
        )

    start = BLOCK * form.page_bytes
    check_writer(form, write, cache, start=start)
    sides = list(form.axes(component))
    transposed = kvr.PageFormat(
        f"{component}[{' '.join(axis for axis, _ in reversed(sides))}]", dtype="bf16", extents=dict(sides)
    )
    with pytest.raises(WriterMismatch):
        check_writer(transposed, write, cache, start=start)
