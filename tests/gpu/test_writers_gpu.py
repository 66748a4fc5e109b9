"""Cache writers on a GPU, as engines have them: probed, and met at first contact."""

# Triton compiles these functions; their types are not Python's.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

import kvreshard as kvr
from kvreshard import probe
from tests.connector_rank import Spec, placed, publish, request, running
from tests.marked import reader

pytest.importorskip("triton")

import triton
import triton.language as tl

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

HEADS, TOKENS, SIZE = 2, 16, 64
SIZES = {"h": HEADS, "n": TOKENS, "d": SIZE}


def _reshape_and_cache(  # type: ignore[no-untyped-def]
    key, value, cache, slots, HEADS: tl.constexpr, TOKENS: tl.constexpr, SIZE: tl.constexpr, X: tl.constexpr
):
    """One token and head a program, into pages of x-wide key rows and shuffled values, as AITER stores them."""
    token, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots + token)
    page, n = slot // TOKENS, slot % TOKENS
    d = tl.arange(0, SIZE)
    source = (token * HEADS + head) * SIZE + d
    base = page * (2 * HEADS * TOKENS * SIZE)
    k_at = base + ((head * (SIZE // X) + d // X) * TOKENS + n) * X + d % X
    v_at = base + HEADS * TOKENS * SIZE + ((head * (TOKENS // X) + n // X) * SIZE + d) * X + n % X
    tl.store(cache + k_at, tl.load(key + source))
    tl.store(cache + v_at, tl.load(value + source))


reshape_and_cache: Any = triton.jit(_reshape_and_cache)


def _unshuffled(  # type: ignore[no-untyped-def]
    key, value, cache, slots, HEADS: tl.constexpr, TOKENS: tl.constexpr, SIZE: tl.constexpr, X: tl.constexpr
):
    """The same with plain values: what a backend of the same name stores without the shuffle."""
    token, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots + token)
    page, n = slot // TOKENS, slot % TOKENS
    d = tl.arange(0, SIZE)
    source = (token * HEADS + head) * SIZE + d
    base = page * (2 * HEADS * TOKENS * SIZE)
    k_at = base + ((head * (SIZE // X) + d // X) * TOKENS + n) * X + d % X
    v_at = base + HEADS * TOKENS * SIZE + (head * TOKENS + n) * SIZE + d
    tl.store(cache + k_at, tl.load(key + source))
    tl.store(cache + v_at, tl.load(value + source))


unshuffled: Any = triton.jit(_unshuffled)


class Writer:
    """A Triton kernel behind the probe's call: page 1 of a cache of three."""

    def __init__(self, kernel: Any, dtype: torch.dtype) -> None:
        self.cache = torch.zeros((3, 2 * HEADS * TOKENS * SIZE), dtype=dtype, device="cuda")
        self.slots = torch.arange(TOKENS, 2 * TOKENS, dtype=torch.int64, device="cuda")
        self.kernel = kernel

    def __call__(self, inputs: Mapping[str, Any]) -> None:
        key, value = (torch.from_numpy(np.array(inputs[name])).to(self.cache) for name in "kv")
        self.kernel[(TOKENS, HEADS)](key, value, self.cache, self.slots, HEADS, TOKENS, SIZE, 8)


@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, "bf16"), (torch.float16, "f16")])
def test_a_triton_writer_is_confirmed(dtype: torch.dtype, name: str) -> None:
    writer = Writer(reshape_and_cache, dtype)
    before = writer.cache.clone()
    form = kvr.preset("aiter-shuffle", **SIZES, dtype=name)
    assert probe.check_writer(form, writer, writer.cache, start=form.page_bytes) > 0
    assert torch.equal(writer.cache, before), "what was there is put back"


def test_a_writer_that_does_not_shuffle_is_refused_with_the_element() -> None:
    writer = Writer(unshuffled, torch.bfloat16)
    form = kvr.preset("aiter-shuffle", **SIZES)
    with pytest.raises(probe.WriterMismatch, match="component v, element") as caught:
        probe.check_writer(form, writer, writer.cache, start=form.page_bytes)
    assert caught.value.component == "v"


def test_the_format_of_a_triton_writer_is_found() -> None:
    writer = Writer(reshape_and_cache, torch.bfloat16)
    form = kvr.preset("aiter-shuffle", **SIZES)
    found = probe.infer(
        writer, writer.cache, {"k": SIZES, "v": SIZES}, page_bytes=form.page_bytes, types="bf16", start=form.page_bytes
    )
    assert found.same_bytes_as(form)


def test_torch_index_put_as_a_writer() -> None:
    """What an engine without a kernel does: pages of `[slot][token][head]`."""
    cache = torch.zeros((2, TOKENS, HEADS, SIZE), dtype=torch.bfloat16, device="cuda")

    def write(inputs: Mapping[str, Any]) -> None:
        at = torch.arange(TOKENS, device="cuda")
        for slot, name in enumerate("kv"):
            cache[slot].index_put_((at,), torch.from_numpy(np.array(inputs[name])).to(cache))

    form = kvr.preset("two-slot-nhd", **SIZES)
    assert probe.check_writer(form, write, cache) > 0


@pytest.mark.parametrize("lies", [False, True])
def test_first_contact_on_device_memory(lies: bool) -> None:
    """The peer marks pages with its writer on one device, this rank reads them with its own on another."""
    pytest.importorskip("nixl")
    from kvreshard.nixl import Connector, FirstContact

    hnd, nhd = "h n k[d] v[d]", "n h k[d] v[d]"
    spec = Spec("here", engine="decode", notation=hnd, device=f"cuda:{torch.cuda.device_count() - 1}")
    mine = placed(spec, spec.arrays(1))
    with running(Spec("there", notation=nhd, device="cuda:0")) as (there,), Connector("here") as here:
        publish(here, spec, mine)
        there.call("mark", hnd if lies else nhd, [7], 5)
        contact = FirstContact(request((0, 16), [15], [7]), reader(mine, spec, hnd), seed=5)
        if lies:
            with pytest.raises(probe.WriterMismatch):
                here.connect(there.call("metadata"), first_contact=contact)
        else:
            assert here.connect(there.call("metadata"), first_contact=contact).connected
