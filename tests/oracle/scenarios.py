"""Engines of every layout and every kind of parallelism, and a request between each two: small, written out by hand.

`tests/cases/layouts.toml` has what must come out (see `enumerate`); the planner is held to that, real NIXL moves it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from tests.oracle.engines import Exchange
from tests.oracle.model import Group
from tests.oracle.ranks import (
    SOURCE,
    TARGET,
    Sizes,
    State,
    block_outermost,
    compressed,
    dealt,
    drafted,
    engine,
    exchange,
    gdn,
    head_planes,
    heads_before_layers,
    hybrid,
    ids,
    latent_replicas,
    mamba1,
    mamba2,
    mixed_memory,
    one_pool,
    outermost,
    side_planes,
    staged,
    states,
    windowed,
)


@dataclass(frozen=True)
class Scenario:
    """An exchange, what it shows, and which way it goes: `read` is issued by the target, `write` by the source."""

    id: str
    bullet: str
    about: str
    exchange: Exchange
    direction: str = "read"


PACKED, TOKEN_MAJOR = "h n k[d] v[d]", "n h k[d] v[d]"
SHUFFLED_K, SHUFFLED_V = "k[h d/8 n d%8]", "v[h n/8 d n%8]"
SMALL: Sizes = {"n": 4, "d": 4}


def scenarios() -> list[Scenario]:
    """All of them; ids are unique."""
    return [*_planes(), *_rows(), *_groups(), *_states(), *_contexts(), *_engines(), *_requests()]


def _planes() -> list[Scenario]:
    planes, joint = head_planes(["n k[d] v[d]"], **SMALL), outermost(PACKED, **SMALL)
    lists = [ids(5, 1, 2)], [ids(0, 3, 6)]
    found = []
    for name, about, source, target in (
        (
            "planes-tp1-to-tp2",
            "head planes, K and V side by side; each rank reads its planes whole",
            (planes, 1),
            (planes, 2),
        ),
        ("planes-tp2-to-tp1", "the same the other way", (planes, 2), (planes, 1)),
        ("planes-to-joint", "head planes against joint pages", (planes, 1), (joint, 2)),
        ("joint-to-planes", "joint pages of two ranks against head planes", (joint, 2), (planes, 1)),
        (
            "sides-apart-to-joint",
            "a plane for each head's K and for its V against token-major pages: a run a token, and K beside V is two",
            (head_planes(["k[n d]", "v[n d]"], **SMALL), 1),
            (outermost(TOKEN_MAJOR, **SMALL), 1),
        ),
        (
            "shuffled-planes-tp1-to-tp2",
            "two-slot pages with heads-outer layout: all K one plane, all V another, shuffled inside",
            (side_planes(SHUFFLED_K, SHUFFLED_V, n=16, d=16), 1),
            (side_planes(SHUFFLED_K, SHUFFLED_V, n=16, d=16), 2),
        ),
        (
            "shuffled-joint-to-planes",
            "the same, from joint pages of two ranks",
            (outermost(f"{SHUFFLED_K} {SHUFFLED_V}", n=16, d=16), 2),
            (side_planes(SHUFFLED_K, SHUFFLED_V, n=16, d=16), 1),
        ),
    ):
        tokens = (0, 42) if "shuffled" in name else (0, 11)
        sides = engine(SOURCE, source[1], source[0]), engine(TARGET, target[1], target[0])
        found.append(Scenario(name, "head planes", about, exchange(*sides, tokens, *lists)))
    return found


def _rows() -> list[Scenario]:
    lists = [ids(5, 1, 7)], [ids(0, 3, 2)]
    blhnc, blnhc = block_outermost(PACKED, **SMALL), block_outermost(TOKEN_MAJOR, **SMALL)
    padded = block_outermost(PACKED, pad=24, **SMALL)
    bhlnc = heads_before_layers("n k[d] v[d]", **SMALL)
    found = []
    for name, about, source, target in (
        ("rows-alike", "BLHNC on both sides: a whole row is one descriptor", (blhnc, 1), (blhnc, 1)),
        ("rows-alike-token-major", "BLNHC on both sides", (blnhc, 1), (blnhc, 1)),
        (
            "rows-alike-heads-first",
            "BHLNC on both sides: layers interleave by head, a row is one run",
            (bhlnc, 1),
            (bhlnc, 1),
        ),
        ("rows-padded", "padded rows against tight ones", (padded, 1), (blhnc, 1)),
        (
            "rows-to-layers",
            "BLHNC against layer-outermost pages: a run a layer",
            (blhnc, 1),
            (outermost(PACKED, **SMALL), 1),
        ),
        (
            "layers-to-rows-tp2",
            "layer-outermost against rows of two ranks",
            (outermost(PACKED, **SMALL), 1),
            (blhnc, 2),
        ),
        ("heads-first-tp2-to-tp1", "BHLNC: a rank's heads are a run of all layers", (bhlnc, 2), (bhlnc, 1)),
        ("heads-first-to-token-major", "BHLNC against BLNHC: a run a token", (bhlnc, 1), (blnhc, 2)),
    ):
        sides = engine(SOURCE, source[1], source[0]), engine(TARGET, target[1], target[0])
        found.append(Scenario(name, "packed rows across layers", about, exchange(*sides, (0, 12), *lists)))
    both = [ids(0, 1)], [ids(0, 1)]
    for regions, name, about in (
        (1, "layers-in-one-registration", "two layers back to back in one registration: one run crosses both"),
        (2, "layers-in-touching-registrations", "the same memory registered in two: a run never crosses a region"),
    ):
        sides = engine(SOURCE, 1, one_pool(regions, **SMALL)), engine(TARGET, 1, one_pool(1, **SMALL))
        found.append(Scenario(name, "packed rows across layers", about, exchange(*sides, (0, 8), *both)))
    return found


def _groups() -> list[Scenario]:
    per2, per4 = (outermost(PACKED, group=Group(pages_per_block=per), **SMALL) for per in (2, 4))
    found = []
    for name, about, source, target, lists in (
        ("pages-per-block-4-to-2", "four kernel pages a block against two", per4, per2, ([ids(1, 0)], [ids(3, 0, 2)])),
        ("pages-per-block-2-to-4", "two against four", per2, per4, ([ids(2, 0, 3)], [ids(1, 0)])),
        (
            "pages-per-block-1-to-2",
            "pages of 8 tokens against blocks of two pages of 4",
            outermost(PACKED, n=8, d=4),
            per2,
            ([ids(2, 5, 0)], [ids(3, 0, 1)]),
        ),
    ):
        sides = engine(SOURCE, 1, source), engine(TARGET, 2, target)
        found.append(Scenario(name, "kernel pages per block", about, exchange(*sides, (0, 22), *lists)))
    for name, about, lists in (
        (
            "window-clipped-at-both",
            "full attention and a window of 8 tokens over one pool; both sides keep the window's last pages only",
            ([ids(4, 9, 0, 7, 2), ids(5, 11, first=12)], [ids(1, 0, 3), ids(5, 4, first=8)]),
        ),
        (
            "window-clipped-at-the-source",
            "the target lists pages for tokens that the source's window has dropped: they are to be cleared",
            ([ids(4, 9, 0, 7, 2), ids(5, 11, first=12)], [ids(1, 0, 3), ids(5, 4, 2)]),
        ),
        (
            "window-clipped-at-the-target",
            "the source still has all pages",
            ([ids(4, 9, 0, 7, 2), ids(5, 11, 10, 8, 1)], [ids(1, 0, 3), ids(5, first=16)]),
        ),
    ):
        sides = [windowed(4, SOURCE, 8)], [windowed(8, TARGET, 8)]
        found.append(Scenario(name, "groups", about, exchange(*sides, (0, 18), *lists)))
    return found


def _states() -> list[Scenario]:
    lists = [ids(4, 1)], [ids(0, 5)]
    found: list[Scenario] = []
    kinds: tuple[tuple[str, State, str], ...] = (
        ("mamba1", mamba1, "Mamba-1: convolution and state by the same channels"),
        ("mamba2", mamba2, "Mamba-2: x, B and C of unequal width, and heads"),
        (
            "mamba2-one-group",
            lambda rank, size: mamba2(rank, size, 1),
            "Mamba-2 with one group: B and C whole on every rank",
        ),
        ("gdn", gdn, "GDN: Q, K and wider V, token-major convolution"),
    )
    for kind, of, about in kinds:
        for source, target in ((1, 2), (2, 1)):
            sides = states(of, SOURCE, source), states(of, TARGET, target)
            found.append(
                Scenario(f"{kind}-tp{source}-to-tp{target}", "state groups", about, exchange(*sides, (0, 30), *lists))
            )
    lists = [ids(6, 2, 9), ids(5)], [ids(1, 8), ids(0)]
    for source, target in ((1, 2), (2, 1)):
        about = "attention and Mamba-2 in one page pool; pages of 4 tokens against 8"
        sides = hybrid(SOURCE, source, 4), hybrid(TARGET, target, 8)
        name = f"hybrid-tp{source}-to-tp{target}"
        found.append(Scenario(name, "hybrids", about, exchange(*sides, (0, 11), *lists)))
    sides = drafted(SOURCE, 4, 4, PACKED), drafted(TARGET, 2, 8, "k[h n d] v[h n d]")
    about = "an MLA target, replicated, with a GQA draft of four heads; TP 4 to 2, pages of 4 against 8"
    found.append(
        Scenario("mla-with-gqa-draft", "hybrids", about, exchange(*sides, (0, 14), [ids(3, 0, 1, 6)], [ids(5, 2)]))
    )
    return found


def _contexts() -> list[Scenario]:
    found = []
    for name, about, source, target, lists, tokens in (
        ("dcp4-to-dcp2", "interleave 1 on both sides", (4, 4, 1), (2, 4, 1), ([ids(3, 0)], [ids(5, 1, 2, 7)]), (0, 27)),
        ("dcp2-to-1", "interleave of a page", (2, 4, 4), (1, 8, 1), ([ids(3, 0, 6)], [ids(5, 1, 2)]), (0, 21)),
        (
            "dcp1-to-4",
            "interleave between one and the page size",
            (1, 8, 1),
            (4, 8, 2),
            ([ids(3, 0, 6, 1)], [ids(5)]),
            (0, 30),
        ),
        (
            "dcp4-to-dcp2-unequal",
            "interleave 1 against 4, pages of 4 against 8",
            (4, 4, 1),
            (2, 8, 4),
            ([ids(3, 0, 9)], [ids(5, 1, 2)]),
            (0, 40),
        ),
        (
            "dcp2-equal",
            "equal sides fold to whole pages, rank with rank",
            (2, 8, 2),
            (2, 8, 2),
            ([ids(3, 0)], [ids(5, 1)]),
            (0, 32),
        ),
        (
            "dcp2-several-pages",
            "interleave of two pages, blocks of two pages",
            (2, 4, 8),
            (1, 16, 1),
            ([ids(3, 0)], [ids(5, 1)]),
            (0, 32),
        ),
        ("dcp2-to-dcp3", "sizes that do not divide", (2, 4, 2), (3, 4, 2), ([ids(3, 0, 4)], [ids(5, 1)]), (0, 24)),
        (
            "dcp2-hit",
            "a hit of one virtual block at the target",
            (4, 4, 2),
            (2, 4, 4),
            ([ids(3, 0)], [ids(5, 1, 2, first=8)]),
            (0, 32),
        ),
    ):
        per = [2 if i > n else 1 for _, n, i in (source, target)]
        sides = dealt(SOURCE, *source, per_block=per[0]), dealt(TARGET, *target, per_block=per[1])
        found.append(Scenario(name, "context parallelism", about, exchange(*sides, tokens, *lists)))
    return found


def _engines() -> list[Scenario]:
    lists = [ids(5, 1)], [ids(0, 3)]
    found = []
    for name, about, source, target in (
        (
            "pp2-to-1",
            "two uneven stages to one rank, by layer name",
            staged(SOURCE, [[0, 1, 2], [3]]),
            staged(TARGET, [[3, 2, 1, 0]]),
        ),
        ("pp1-to-2", "one rank to two stages", staged(SOURCE, [[0, 1, 2]]), staged(TARGET, [[0], [1, 2]])),
        (
            "pp3-to-pp2-tp2",
            "stages that cut the layers elsewhere, TP 1 to 2",
            staged(SOURCE, [[0], [1, 2], [3, 4]]),
            staged(TARGET, [[0, 1], [2, 3, 4]], tp=2),
        ),
    ):
        found.append(Scenario(name, "pipeline", about, exchange(source, target, (0, 7), *lists)))
    for p, d, direction, about in (
        (8, 4, "read", "MLA at TP 8 to 4: every second source rank is read, the others are only told"),
        (4, 8, "read", "MLA at TP 4 to 8: every source rank is read twice"),
        (2, 4, "write", "a push reaches every replica"),
        (4, 2, "write", "a push from replicas: half of them write"),
    ):
        sides = latent_replicas(SOURCE, p), latent_replicas(TARGET, d)
        name = f"mla-tp{p}-to-tp{d}-{direction}"
        found.append(Scenario(name, "replicas", about, exchange(*sides, (0, 7), *lists), direction))
    heads = exchange(
        engine(SOURCE, 4, outermost(PACKED, heads=2, **SMALL)),
        engine(TARGET, 8, outermost(PACKED, heads=2, **SMALL)),
        (0, 8),
        *lists,
    )
    found.append(
        Scenario("gqa-two-heads-tp4-to-tp8", "replicas", "two heads at TP 4 to 8: replicas on both sides", heads)
    )
    pools = exchange(
        [outermost(PACKED, pages=8, gap=0, **SMALL)(0, 1, SOURCE)],
        [
            outermost(PACKED, pages=6, gap=40, **SMALL)(0, 2, TARGET),
            block_outermost(TOKEN_MAJOR, pages=11, pad=16, **SMALL)(1, 2, TARGET + 0x55_0000),
        ],
        (0, 8),
        [ids(7, 1)],
        [ids(0, 5)],
    )
    about = "ranks of one engine with other pools: pages, strides, paddings, bases and page formats"
    found.append(Scenario("pools-differ-by-rank", "different pools", about, pools))
    mixed = exchange([mixed_memory(SOURCE, False)], [mixed_memory(TARGET, True)], (0, 8), *lists)
    about = "host and device memory in one layout: a list for each pair of kinds"
    found.append(Scenario("memory-kinds", "memory kinds", about, mixed))
    return found


def _requests() -> list[Scenario]:
    found = []
    p16, d64 = outermost(PACKED, heads=2, n=16, d=4, pages=12), outermost(PACKED, heads=2, n=64, d=4, pages=4)
    tail = exchange(engine(SOURCE, 1, p16), engine(TARGET, 1, d64), (0, 160), [ids(*range(10))], [ids(1, 2, first=64)])
    about = (
        "prefill pages of 16, decode pages of 64, 160 tokens, a hit of 64 at the decoder: tokens 64 to 160 go from"
        " pages 4 to 9 to the first 96 places of two pages. Counted from the tail after the page-size split, as stock"
        " vLLM 0.33 does, eight pairs come out, each 32 tokens off"
    )
    found.append(Scenario("tail-alignment", "requests", about, tail))
    two = windowed(4, SOURCE, 8), windowed(4, TARGET, 8)
    for name, about, tokens, lists in (
        (
            "hits-per-group",
            "a hit of one page in one group, of three in the other",
            (0, 19),
            ([ids(4, 9, 0, 7, 2), ids(5, 11, 10, 8, 1)], [ids(1, 0, 3, 6, first=4), ids(5, 2, first=12)]),
        ),
        (
            "hits-per-side",
            "the source's lists begin late too, where nothing before is wanted",
            (0, 19),
            ([ids(0, 7, 2, first=8), ids(8, 1, first=12)], [ids(3, 6, first=12), ids(2, first=16)]),
        ),
        (
            "inside-a-page",
            "an interval that begins and ends inside pages",
            (6, 13),
            ([ids(4, 9, 0, 7), ids(5, 11, 10, 8)], [ids(1, 0, 3, 6), ids(5, 2, 7, 8)]),
        ),
        (
            "a-page-more",
            "the decoder's lists have a page more than needed",
            (0, 8),
            ([ids(4, 9), ids(5, 11)], [ids(1, 0, 3), ids(5, 2, 7)]),
        ),
    ):
        found.append(Scenario(name, "requests", about, exchange([two[0]], [two[1]], tokens, *lists)))
    uneven = exchange(
        engine(SOURCE, 1, outermost(PACKED, n=6, d=4)),
        engine(TARGET, 1, outermost(PACKED, n=4, d=4)),
        (3, 17),
        [ids(7, 2, 4)],
        [ids(1, 0, 3, 6, 5)],
    )
    about = "pages of 6 tokens against 4, an interval inside pages, a page too many"
    found.append(Scenario("pages-of-6-and-4", "requests", about, uneven))
    for name, about, scale, tokens, n in (
        ("compressed-by-4", "one state for four tokens; the last one is not full", Fraction(4), (4, 30), (4, 2)),
        ("four-states-a-token", "four states a token (Whisper's pooling)", Fraction(1, 4), (1, 5), (8, 4)),
    ):
        block = [int(states * scale) for states in n]
        need = [-(-tokens[1] // size) for size in block]
        sides = [compressed(SOURCE, n[0], scale)], [compressed(TARGET, n[1], scale)]
        lists = [ids(*range(need[0]))], [ids(*reversed(range(need[1])))]
        found.append(Scenario(name, "requests", about, exchange(*sides, tokens, *lists)))
    return found
