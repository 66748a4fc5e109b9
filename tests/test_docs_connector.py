"""The blocks of the connector's guide run over real NIXL. What `...` leaves to an engine is put in its place."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import kvreshard as kvr
from kvreshard import probe
from tests.connector_rank import Spec, publish
from tests.marked import reader, writer

pytest.importorskip("nixl")

from kvreshard.nixl import Connector, Finished, FirstContact, calibrate

GUIDE = (Path(__file__).parents[1] / "docs" / "connector.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)
# Words by which a test finds its block.
FENCED = 'id="req-1", fence=True'
TOLD = (
    "kv_caches.items()",
    "there.expect(",
    "layers=[layer]",
    "staging=256 << 20",
    FENCED,
    "there.mark(",
)
PUSHED, QUANTISED = "there.expect_contacts(", "sources=sources"
PREFILL = Spec("prefill-0", size=128, pages=260)
DECODE = replace(PREFILL, name="decode-0", engine="decode", heads=4, tp=(0, 2))
MINE, THEIRS = list(range(2, 258)), list(range(256))[::-1]
WHOLE = kvr.Request((0, 4096), [kvr.Blocks(MINE)], [kvr.Blocks(THEIRS)])
HND = PREFILL.notation


def run(words: str, names: dict[str, Any], proceed: Callable[[], object] = lambda: None) -> None:
    """Runs the one block that has these words; `...` is `proceed()`."""
    (block,) = (one for one in BLOCKS if words in one)
    source = re.sub(r"^(\s*)\.\.\.", r"\1proceed()", block, flags=re.MULTILINE)
    imported = {"kvr": kvr, "Connector": Connector, "calibrate": calibrate, "FirstContact": FirstContact}
    names.update({**imported, "proceed": proceed, **names})
    # As locals, so that a mapping may make a value when it is asked for.
    exec(compile(source, "connector.md", "exec"), {}, names)


def heads(arrays: list[npt.NDArray[np.uint8]], spec: Spec) -> npt.NDArray[np.uint16]:
    """The first four heads as [layer, page, head, token, channel]."""
    shape = (spec.layers, spec.pages, spec.heads, spec.tokens, 2 * spec.size)
    return np.stack(arrays).view(np.uint16).reshape(shape)[:, :, :4]


def finish(connector: Connector, ids: list[str]) -> list[tuple[str, ...]]:
    """Waits for these requests, and for nothing else; by what strategies they went."""
    done: list[str] = []
    used: list[tuple[str, ...]] = []
    end = time.monotonic() + 60
    while len(done) < len(ids):
        assert time.monotonic() < end, done
        for event in connector.poll(timeout=0.1):
            assert isinstance(event, Finished), event
            done.append(event.id)
            used.append(event.strategies)
    assert sorted(done) == sorted(ids)
    return used


@pytest.fixture
def there() -> Iterator[tuple[Connector, list[npt.NDArray[np.uint8]]]]:
    """The prefill rank, which answers by itself, and its pages."""
    arrays = PREFILL.arrays(1)
    with Connector("prefill-0", staging=64 << 20) as connector:
        publish(connector, PREFILL, arrays)
        with connector.serve():
            yield connector, arrays


@pytest.fixture
def here() -> Iterator[tuple[Connector, list[npt.NDArray[np.uint8]]]]:
    """The decode rank and its pages."""
    arrays = DECODE.arrays(2)
    with Connector("decode-0") as connector:
        publish(connector, DECODE, arrays)
        yield connector, arrays


def test_a_decode_rank(there: Any) -> None:
    torch = pytest.importorskip("torch")
    caches = {f"layers.{at}": torch.zeros(260, 4, 16, 256, dtype=torch.bfloat16) for at in range(2)}
    names = {"kv_caches": caches, "metadata_of_prefill": there[0].metadata(), "mine": MINE, "theirs": THEIRS}
    run("kv_caches.items()", names)
    assert names["here"].in_flight == ()
    found = np.stack([cache.view(torch.uint16).numpy() for cache in caches.values()])
    np.testing.assert_array_equal(found[:, MINE], heads(there[1], PREFILL)[:, THEIRS])


def test_readers_are_awaited(there: Any, here: Any) -> None:
    route = kvr.route(local=kvr.Engine.uniform(here[0].layout), remote=kvr.Engine([there[0].layout]))
    assert route.readers == [2]
    run("there.expect(", {"there": there[0], "route": route, "rank": 0})
    assert there[0].forget("req-1"), "it was expected"


def test_a_request_in_parts(there: Any, here: Any) -> None:
    peer, layers = here[0].connect(there[0].metadata(), direction="write"), ["layers.1", "layers.0"]
    names = {"here": here[0], "peer": peer, "layers": layers, "mine": MINE, "theirs": THEIRS}
    run("layers=[layer]", names, lambda: finish(here[0], [f"req-1/{layer}" for layer in layers]))
    np.testing.assert_array_equal(heads(there[1], PREFILL)[:, THEIRS], heads(here[1], DECODE)[:, MINE])


def test_strategies(there: Any) -> None:
    pages = DECODE.arrays(2)
    used: list[tuple[str, ...]] = []

    def proceed() -> None:
        publish(names["here"], DECODE, pages)
        names["peer"] = names["here"].connect(there[0].metadata())

    def measured(connector: Connector, peer: Any) -> None:
        used.extend(finish(connector, ["req-1", "req-2"]))
        assert calibrate(connector, peer).read_post_ns > 0

    names: dict[str, Any] = {"calibrate": measured, "request": WHOLE}
    run("staging=256 << 20", names, proceed)
    assert ("landed",) in used
    np.testing.assert_array_equal(heads(pages, DECODE)[:, MINE], heads(there[1], PREFILL)[:, THEIRS])


def test_a_fence(there: Any, here: Any) -> None:
    there[0].expect("req-1", readers=1, lease=60)
    peer = here[0].connect(there[0].metadata())
    run(FENCED, {"here": here[0], "peer": peer, "request": WHOLE})
    finish(here[0], ["req-1"])
    np.testing.assert_array_equal(heads(here[1], DECODE)[:, MINE], heads(there[1], PREFILL)[:, THEIRS])


class Told(dict[str, Any]):
    """The names of a block, and the peer's metadata when they are asked for."""

    def __init__(self, there: Connector, **names: Any) -> None:
        super().__init__(there=there, scratch=7, mine=15, **names)

    def __missing__(self, name: str) -> Any:
        if name == "metadata":
            return self["there"].metadata()
        raise KeyError(name)


def test_first_contact(there: Any, here: Any) -> None:
    write, read = writer(there[1], PREFILL, HND), reader(here[1], DECODE, HND)
    names = Told(there[0], here=here[0], write=write, read=read)
    run("there.mark(", names)
    assert names["peer"].connected


def test_first_contact_of_a_push(there: Any, here: Any) -> None:
    write, read = writer(here[1], DECODE, HND), reader(there[1], PREFILL, HND)
    names = Told(there[0], here=here[0], write=write, read=read)
    run(PUSHED, names)
    assert names["peer"].connected


def test_sources_of_writers_that_quantise() -> None:
    names: dict[str, Any] = {"request": WHOLE, "read": lambda layer, page: {}, "Source": probe.Source}
    run(QUANTISED, names)
    assert set(names["sources"]) == {"k", "ks", "v", "vs"}


def test_no_block_is_left_out() -> None:
    for block in BLOCKS:
        assert sum(words in block for words in (*TOLD, PUSHED, QUANTISED)) == 1, block
