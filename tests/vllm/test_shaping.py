"""Parts of a push whose pages are rebuilt: what is written when, and what a buffer holds."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from tests.vllm.conftest import NEEDS_VLLM
from tests.vllm.harness import set_environment

if not os.environ.get("KVRESHARD_TEST_VLLM"):
    pytest.skip(f"KVRESHARD_TEST_VLLM is not {NEEDS_VLLM}", allow_module_level=True)
set_environment()

import kvreshard as kvr  # noqa: E402  (vLLM reads the environment when it is imported)
from kvreshard.vllm.pairs import Pair  # noqa: E402
from kvreshard.vllm.push import PlannedPushWorker  # noqa: E402
from kvreshard.vllm.rearranging import order, sample  # noqa: E402
from kvreshard.vllm.requests import Shape  # noqa: E402
from kvreshard.vllm.shaping import Job, Part, Shaping  # noqa: E402
from kvreshard.vllm.staging import Buffer  # noqa: E402

PACKED, SHUFFLED = "h n k[d] v[d]", "k[h d/8 n d%8] v[h n/8 d n%8]"


def _layout(engine: str, notation: str, tp: tuple[int, int] = (0, 1), *, page: int = 16) -> kvr.RankLayout:
    form = kvr.PageFormat(notation, h=4 // tp[1], n=page, d=16, dtype="bf16")
    region = kvr.Region(base=1 << 30, bytes=64 * form.page_bytes)
    layers = [kvr.Layer("layer", [kvr.Segment(region, form, pages=64)], totals={"h": 4})]
    return kvr.RankLayout(engine=engine, layers=layers, tp=tp)


def _shaping(mine: kvr.RankLayout, theirs: kvr.RankLayout, size: int) -> Shaping:
    engines = kvr.Engine.uniform(mine), kvr.Engine.uniform(theirs)
    route = kvr.route(local=engines[0], remote=engines[1], direction="write")
    (edge,) = route.edges_of(local=0, remote=theirs.tp[0])
    return Shaping(Pair(mine, theirs, edge, kvr.plan(mine, theirs, edge=edge, direction="write")), size)


def _parts(shaping: Shaping, tokens: tuple[int, int]) -> list[Part]:
    blocks = [kvr.Blocks(list(range(60)), 0)]
    return shaping.parts(kvr.Request(tokens=tokens, local=blocks, remote=blocks), "peer", b"news")


def test_parts_cover_the_tokens() -> None:
    """Each part holds what a buffer does, the last one alone brings the news, and together they are all tokens."""
    mine, theirs = _layout("p", PACKED), _layout("d", SHUFFLED, (1, 2), page=32)
    # The peer's page of 32 tokens has 4096 bytes, all of them ours to fill; three fit.
    parts = _parts(_shaping(mine, theirs, 3 * 4096 + 100), (32, 300))
    assert [part.tokens for part in parts] == [(32, 128), (128, 224), (224, 300)]
    assert [part.more for part in parts] == [True, True, False]
    assert [part.news for part in parts] == [b"", b"", b"news"]


def test_no_room_for_a_page() -> None:
    """The error says what to raise."""
    with pytest.raises(kvr.LimitExceeded, match="raise staging_bytes"):
        _shaping(_layout("p", PACKED), _layout("d", SHUFFLED), 1000)


def test_news_comes_last() -> None:
    """The part with the news waits for all others to the same peer, not for those to another."""
    mine = _layout("p", PACKED)
    first, second = (_parts(_shaping(mine, _layout("d", SHUFFLED, (rank, 2)), 2 * 2048), (0, 64)) for rank in range(2))
    assert len(first) == len(second) == 2
    job = Job(waiting=[*first, *second])

    def written(part: Any) -> None:
        assert job.next() == part
        job.waiting.remove(part)
        job.writing[id(part)] = part

    def done(part: Any) -> None:
        del job.writing[id(part)]

    written(first[0])
    written(second[0])
    assert job.next() is None
    done(second[0])
    written(second[1])
    assert job.next() is None
    done(first[0])
    written(first[1])
    assert not job.over
    done(first[1])
    done(second[1])
    assert job.over


def test_looking_makes_no_staging() -> None:
    """The engine's thread looks for lost buffers while the writer's is about to make the first ones."""
    worker = object.__new__(PlannedPushWorker)
    worker._send_failures = set()
    worker._jobs["request"] = Job()
    done = {"request"}
    worker._parts_written({}, done, set())
    assert done == {"request"}
    assert not worker._jobs
    assert worker._staging is None


def test_price_against_runs() -> None:
    """Rebuilding is cheaper than runs of a few bytes."""
    mine, theirs = _layout("p", PACKED), _layout("d", SHUFFLED)
    request = sample(mine, theirs, (Shape.of(mine), Shape.of(theirs)))
    assert request is not None
    assert request.tokens == (0, 16)
    transport = kvr.Transport.named("cma")
    price = _shaping(mine, theirs, 1 << 20).price(request, transport)
    plan = kvr.plan(mine, theirs, direction="write")
    (direct,) = plan.costs(request, transport=transport, lands=False, packs=False)
    assert price.posted == plan.pages[1] == 1
    assert order(price, by_count=False) < order(direct, by_count=False)
    assert order(price, by_count=True) < order(direct, by_count=True)


def test_a_sample_fits_small_caches() -> None:
    """Blocks of 16 and 24 tokens, their common period, and no block beside the next where there is room."""
    mine, theirs = _layout("p", PACKED), _layout("d", PACKED, page=24)
    request = sample(mine, theirs, (Shape.of(mine), Shape.of(theirs)))
    assert request is not None
    assert request.tokens == (0, 48)
    assert [blocks.ids.tolist() for blocks in request.local] == [[0, 2, 4]]
    assert [blocks.ids.tolist() for blocks in request.remote] == [[0, 2]]


def test_a_rebuilt_page() -> None:
    """Every element lies where the peer's format has it; what no token fills is zero, whatever the buffer held."""
    pages = torch.arange(8 * 4 * 16 * 2 * 16, dtype=torch.int16)
    form = kvr.PageFormat(PACKED, h=4, n=16, d=16, dtype="bf16")
    region = kvr.Region(base=pages.data_ptr(), bytes=pages.nbytes)
    layer = kvr.Layer("layer", [kvr.Segment(region, form, pages=8)], totals={"h": 4})
    mine, theirs = kvr.RankLayout(engine="p", layers=[layer]), _layout("d", SHUFFLED, page=32)
    memory = torch.full((2 * 8192,), 0x5A, dtype=torch.uint8)
    buffer = Buffer(memory, kvr.Region(base=memory.data_ptr(), bytes=memory.numel()), 0)
    shaping = _shaping(mine, theirs, memory.numel())
    tokens, order_here = 40, [5, 0, 2]
    request = kvr.Request(tokens=(0, tokens), local=[kvr.Blocks(order_here)], remote=[kvr.Blocks([9, 3])])
    (part,) = shaping.parts(request, "peer", b"news")
    shaping.shape(part, buffer, [pages], torch.empty_like(memory))
    target = theirs.layers[0].segments[0].format
    found = memory.view(torch.int16)
    for token in range(64):
        for component in ("k", "v"):
            at = target.offset(component, h=3, n=token % 32, d=11) + token // 32 * target.page_bytes
            if token >= tokens:
                assert token // 16 == 2 or found[at // 2] == 0
                continue
            source = form.offset(component, h=3, n=token % 16, d=11) + order_here[token // 16] * form.page_bytes
            assert found[at // 2] == pages[source // 2]
    here, there = shaping.lists(part, buffer)
    first = theirs.layers[0].segments[0].region.base
    assert here.tolist() == [[memory.data_ptr(), 8192, 0], [memory.data_ptr() + 8192, 8192, 0]]
    assert there.tolist() == [[first + 9 * 8192, 8192, 0], [first + 3 * 8192, 8192, 0]]
