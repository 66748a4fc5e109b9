"""The fewest runs that a decode rank's request can need, counted from addresses and closed formulas alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from kvreshard.demo.fewest import fewest_runs
from kvreshard.demo.memory import Place
from kvreshard.demo.pattern import Ints
from kvreshard.demo.scenarios import Scenario, Which

Places = Mapping[int, Place]
"""By layer number."""


def runs_needed(scenario: Scenario, rank: int, here: Places, there: Sequence[Places]) -> int:
    """The fewest runs that can bring decode rank `rank`, whose pages are `here`, what the prefill ranks hold `there`.

    Every element is looked at, over all pages of the request, so runs are counted across components, pages and layers
    alike. They end where an allocation does, since each is registered by itself.
    """
    runs = 0
    for owner, heads in _owners(scenario, rank):
        for layers in _by_allocation(here):
            parts = list(_elements(scenario, rank, owner, heads, layers, here, there[owner]))
            local, remote, sizes = (np.concatenate(column) for column in zip(*parts, strict=True))
            starts = np.unique([place.allocation for place in there[owner].values()])
            runs += len(fewest_runs(local, remote, sizes, remote_regions=starts))
    return runs


def _owners(scenario: Scenario, rank: int) -> Iterator[tuple[int, Ints]]:
    """The prefill ranks that together hold the heads of a decode rank, each with its stretch of global heads."""
    held = scenario.held("decode", rank)
    if held is None:
        yield 0, np.zeros(1, dtype=np.int64)
        return
    wanted = np.arange(*held)
    for owner in range(scenario.prefill.tp):
        given = scenario.held("prefill", owner)
        assert given is not None
        taken = (wanted >= given[0]) & (wanted < given[1])
        if taken.any():
            yield owner, wanted[taken]
        # The first of several replicas has them all; another one would need as many runs.
        wanted = wanted[~taken]


def _by_allocation(places: Places) -> list[list[int]]:
    """Layer numbers, those of one allocation together."""
    found: dict[int, list[int]] = {}
    for number, place in places.items():
        found.setdefault(place.allocation, []).append(number)
    return list(found.values())


def _elements(
    scenario: Scenario, rank: int, owner: int, heads: Ints, layers: Sequence[int], here: Places, there: Places
) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Local address, remote address and bytes of all elements of some layers, int64 [elements] at a time."""
    states = np.arange(scenario.first, scenario.end)
    local, local_heads = scenario.page("decode", rank), heads - _first(scenario, "decode", rank)
    remote, remote_heads = scenario.page("prefill", owner), heads - _first(scenario, "prefill", owner)
    for layer in layers:
        ours, theirs = here[layer].pages(scenario.blocks("decode")), there[layer].pages(scenario.blocks("prefill"))
        for component in local.components:
            name = component.name
            at = local.addresses(name, ours, states=states, heads=local_heads).ravel()
            source = remote.addresses(name, theirs, states=states, heads=remote_heads).ravel()
            yield at, source, np.full(len(at), component.element_bytes, dtype=np.int64)


def _first(scenario: Scenario, which: Which, rank: int) -> int:
    """The first head that a rank holds."""
    return (scenario.held(which, rank) or (0, 0))[0]
