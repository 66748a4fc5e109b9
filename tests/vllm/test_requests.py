"""Block lists of vLLM as requests by token: prefix hits, windows, blocks of several pages, states."""

from __future__ import annotations

import os

import pytest

from tests.vllm.conftest import NEEDS_VLLM
from tests.vllm.harness import set_environment

if not os.environ.get("KVRESHARD_TEST_VLLM"):
    pytest.skip(f"KVRESHARD_TEST_VLLM is not {NEEDS_VLLM}", allow_module_level=True)
set_environment()

import kvreshard as kvr  # noqa: E402  (vLLM reads the environment when it is imported)
from kvreshard.vllm.requests import Shape, build, from_end  # noqa: E402


def _layout(page: int, *, ratio: int = 1, window: int | None = 40, state: bool = False) -> kvr.RankLayout:
    """Layer `full` of group 0, layer `windowed` of group 1, and perhaps a layer of states."""
    form = kvr.PageFormat("h n k[d] v[d]", h=1, n=page, d=8, dtype="bf16")
    groups = [kvr.Group(pages_per_block=ratio), kvr.Group(pages_per_block=ratio, window=window)]
    size = 64 * form.page_bytes
    layers = [
        kvr.Layer(name, [kvr.Segment(kvr.Region(base=(at + 1) << 20, bytes=size), form, pages=64)], group=at)
        for at, name in enumerate(("full", "windowed"))
    ]
    if state:
        whole = kvr.PageFormat("ssm[p s]", p=4, s=4, dtype="f32")
        region = kvr.Region(base=8 << 20, bytes=64 * whole.page_bytes)
        layers.append(kvr.Layer("state", [kvr.Segment(region, whole, pages=64)], group=2))
        groups.append(kvr.Group("state"))
    return kvr.RankLayout(engine="e", layers=layers, groups=groups)


_SHAPE = Shape.of(_layout(16))


def test_block_tokens() -> None:
    """Kernel pages in a block, and states, count."""
    shape = Shape.of(_layout(16, ratio=4, state=True))
    assert shape.blocks == (64, 64, 0)
    assert shape.windowed == (False, True, False)


@pytest.mark.parametrize(("blocks", "tokens", "first"), [(3, 48, 0), (2, 48, 16), (2, 47, 16), (2, 49, 32), (9, 48, 0)])
def test_from_end(blocks: int, tokens: int, first: int) -> None:
    """The last block is the one that holds the last token."""
    assert from_end(blocks, tokens, 16) == first


def test_prefix_hit_and_window() -> None:
    """The list of a group that keeps all begins after what is there; that of a window ends with the sequence."""
    here, there = _layout(32), _layout(16)
    # 112 tokens; a block of 32 is there already. The window of 40 keeps 3 and 4 blocks.
    target = [[5, 6, 7], [9, 10, 11]]
    source = [[1, 2, 3, 4, 5, 6, 7], [4, 5, 6, 7]]
    built = build((Shape.of(here), target, [32, None]), (Shape.of(there), source), 112)
    assert built is not None
    tokens, local, remote = built
    assert tokens == (32, 112)
    assert [blocks.first_token for blocks in local] == [32, 32]
    assert [blocks.first_token for blocks in remote] == [0, 48]
    plan = kvr.plan(here, there)
    moved = plan.lists(kvr.Request(tokens=tokens, local=local, remote=remote))
    # 80 tokens of the first layer; of the second the 64 that the window still has.
    assert int(moved[0][:, 1].sum()) == (80 + 64) * 2 * 8 * 2


def test_destination_ends_early() -> None:
    """No more is wanted than the destination has blocks for."""
    built = build((_SHAPE, [[1, 2], []], [0, 0]), (_SHAPE, [[1, 2, 3, 4], []]), 64)
    assert built is not None
    assert built[0] == (0, 32)


def test_nothing_to_move() -> None:
    """A full prefix hit has no blocks to fill."""
    assert build((_SHAPE, [[], []], [0, 0]), (_SHAPE, [[1], [1]]), 16) is None


def test_states() -> None:
    """The source's earlier states are dropped, and so are the destination's later ones."""
    here = there = Shape.of(_layout(16, state=True))
    built = build((here, [[1], [1], [7, 8]], [0, 0, 0]), (there, [[1], [1], [5]]), 16)
    assert built is not None
    assert built[1][2].ids.tolist() == [7]
    built = build((here, [[1], [1], [7]], [0, 0, 0]), (there, [[1], [1], [4, 5]]), 16)
    assert built is not None
    assert built[2][2].ids.tolist() == [5]
