"""The pairs of engines that are tried, with stock connectors and with ours, and how each comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One pair.

    Attributes:
        name: What is tried.
        prefill: The prefill engine.
        decode: The decode engine.
        stock: How stock connectors fare: `right`, `wrong` (silently) or `refused`. Ours come out right.
        rest: Fields of the case that are not those of an engine.
        stock_push: How stock connectors fare in push mode; as in pull mode where not given.
    """

    name: str
    prefill: dict[str, Any]
    decode: dict[str, Any]
    stock: str
    rest: dict[str, Any]
    stock_push: str = ""

    def case(self, connector: str, mode: str) -> dict[str, Any]:
        """The harness's case."""
        return {
            "prefill": {"connector": connector, **self.prefill},
            "decode": {"connector": connector, **self.decode},
            "mode": mode,
            **self.rest,
        }

    def expected(self, connector: str, mode: str) -> str:
        """How it comes out."""
        if connector == "ours":
            return "right"
        return self.stock_push if mode == "push" and self.stock_push else self.stock


def _row(
    name: str,
    tp: tuple[int, int],
    stock: str,
    form: str | tuple[str, str] = "packed",
    pages: tuple[int, int] = (16, 16),
    layout: str | tuple[str, str] = "LBHNC",
    stock_push: str = "",
    **rest: Any,
) -> Row:
    forms = (form, form) if isinstance(form, str) else form
    layouts = (layout, layout) if isinstance(layout, str) else layout
    sides = [
        {"tp": size, "format": name, "page": page, "layout": order}
        for size, name, page, order in zip(tp, forms, pages, layouts, strict=True)
    ]
    return Row(f"{name}, TP {tp[0]} to {tp[1]}", sides[0], sides[1], stock, rest, stock_push)


ROWS: tuple[Row, ...] = (
    # Where stock is silently wrong.
    *(
        _row(f"{name} pages", tp, "wrong", form, heads=8)
        for name, form in (("ROCM_ATTN", "rocm_attn"), ("AITER shuffle", "aiter_shuffle"))
        for tp in ((1, 2), (2, 1), (2, 4), (4, 2), (1, 4))
    ),
    *(_row("B12X pages", tp, "wrong", "b12x", (64, 64)) for tp in ((1, 2), (2, 1), (2, 4), (4, 2), (1, 4))),
    *(_row("page-16 pages", tp, "wrong", "page16", (128, 128), tokens=256) for tp in ((1, 2), (2, 1))),
    _row("packed pages into AITER shuffle", (1, 1), "wrong", ("packed", "aiter_shuffle")),
    _row("AITER shuffle pages into packed", (1, 1), "wrong", ("aiter_shuffle", "packed")),
    _row("packed pages into AITER shuffle", (1, 2), "wrong", ("packed", "aiter_shuffle")),
    _row("packed pages into AITER shuffle", (2, 1), "wrong", ("packed", "aiter_shuffle")),
    _row("ROCM_ATTN pages of 16 into 32 tokens", (1, 1), "wrong", "rocm_attn", (16, 32), stock_push="refused"),
    _row("CPU_ATTN (vec) pages of 32 into 64 tokens", (1, 1), "wrong", "cpu_vec", (32, 64), stock_push="refused"),
    _row(
        "CPU_ATTN (AMX) pages of 32 into 64 tokens",
        (1, 1),
        "wrong",
        "cpu_amx",
        (32, 64),
        stock_push="refused",
        dtype="bfloat16",
    ),
    _row(
        "packed pages of 16 into 32 tokens, 32 of 112 tokens in the decoder's prefix cache",
        (1, 1),
        "wrong",
        pages=(16, 32),
        stock_push="refused",
        tokens=112,
        hit=32,
    ),
    # Where stock refuses.
    *(_row("packed pages at LBNHC", tp, "refused", "nhd", layout="LBNHC") for tp in ((1, 2), (2, 1))),
    *(_row("packed pages at LHBNC", tp, "refused", layout="LHBNC") for tp in ((1, 2), (2, 1))),
    _row("ROCM_ATTN pages at LHBNC", (2, 1), "refused", "rocm_attn", layout="LHBNC"),
    _row(
        "packed pages into AITER shuffle at LHBNC",
        (1, 1),
        "refused",
        ("packed", "aiter_shuffle"),
        layout=("LBHNC", "LHBNC"),
    ),
    _row(
        "AITER shuffle pages at LHBNC into packed",
        (1, 1),
        "refused",
        ("aiter_shuffle", "packed"),
        layout=("LHBNC", "LBHNC"),
    ),
    _row(
        "packed pages at LHBNC into AITER shuffle",
        (2, 1),
        "refused",
        ("packed", "aiter_shuffle"),
        layout=("LHBNC", "LBHNC"),
    ),
    _row(
        "AITER shuffle pages into packed at LHBNC",
        (1, 2),
        "refused",
        ("aiter_shuffle", "packed"),
        layout=("LBHNC", "LHBNC"),
    ),
    _row(
        "packed pages of 16 into AITER shuffle of 32 tokens, 100 tokens",
        (2, 1),
        "refused",
        ("packed", "aiter_shuffle"),
        (16, 32),
        tokens=100,
    ),
    _row(
        "AITER shuffle pages of 32 into packed of 16 tokens, 100 tokens",
        (1, 2),
        "refused",
        ("aiter_shuffle", "packed"),
        (32, 16),
        tokens=100,
    ),
    _row("packed pages, 2 KV heads", (4, 2), "refused", heads=2),
    _row("packed pages, 2 KV heads", (4, 1), "refused", heads=2),
    _row("packed pages of 32 into 16 tokens", (1, 1), "refused", pages=(32, 16)),
    _row("packed pages of 16 into 32 tokens", (2, 1), "refused", pages=(16, 32)),
    _row("packed pages, 6 KV heads", (2, 3), "refused", heads=6),
    _row("packed pages, 6 KV heads", (3, 2), "refused", heads=6),
    _row("NVFP4 pages of FlashInfer", (1, 2), "refused", "nvfp4"),
    _row("NVFP4 pages of FlashInfer", (2, 1), "refused", "nvfp4"),
    # Where stock is right.
    _row("packed pages", (1, 1), "right"),
    _row("packed pages", (1, 2), "right"),
    _row("packed pages", (2, 1), "right"),
    _row("packed pages, 2 KV heads", (2, 4), "right", heads=2, stock_push="refused"),
    _row("packed pages, fp32", (1, 2), "right", dtype="float32"),
    _row("packed pages of 16 into 32 tokens", (1, 1), "right", pages=(16, 32), stock_push="refused"),
    _row(
        "packed pages of 16 into 32 tokens, 100 tokens",
        (1, 1),
        "right",
        pages=(16, 32),
        tokens=100,
        stock_push="refused",
    ),
    _row("packed pages, 48 of 100 tokens in the decoder's prefix cache", (1, 1), "right", tokens=100, hit=48),
    _row("packed pages, three requests", (1, 1), "right", rounds=3),
    _row("ROCM_ATTN pages", (1, 1), "right", "rocm_attn"),
)

_SHUFFLE = {"format": "aiter_shuffle"}

# Pairs of our connector with another, or with other options: case, verdict, and what the refusal must say.
MIXED: tuple[tuple[str, dict[str, Any], str, tuple[str, ...]], ...] = (
    *(
        (
            f"packed into AITER shuffle pages, {mode}, in many small parts, some of them in the prefix cache",
            {
                "prefill": {"options": {"staging_bytes": 131072}},
                "decode": {**_SHUFFLE, "tp": 2, "page": 32, "options": {"staging_bytes": 131072}},
                "tokens": 400,
                "hit": 32,
                "rounds": 2,
                "mode": mode[:4],
            },
            "right",
            (),
        )
        for mode in ("pulled", "pushed")
    ),
    *(
        (
            f"packed into AITER shuffle pages, {mode}, descriptor by descriptor",
            {
                "prefill": {"options": {"conversion": "direct"}},
                "decode": {**_SHUFFLE, "options": {"conversion": "direct"}},
                "mode": mode[:4],
            },
            "right",
            (),
        )
        for mode in ("pulled", "pushed")
    ),
    *(
        (
            f"packed pages, {mode}, rearranged though that is never cheaper",
            {
                "prefill": {"options": {"conversion": "staged"}},
                "decode": {"tp": 2, "options": {"conversion": "staged"}},
                "mode": mode[:4],
            },
            "right",
            (),
        )
        for mode in ("pulled", "pushed")
    ),
    *(
        (
            f"packed into AITER shuffle pages, {mode}, conversion off",
            {
                "prefill": {"options": {"conversion": "off"}},
                "decode": {**_SHUFFLE, "options": {"conversion": "off"}},
                "mode": mode[:4],
            },
            "refused",
            ("k[h d/8 n d%8] v[h n/8 d n%8]", "h n k[d] v[d]", "conversion is off"),
        )
        for mode in ("pulled", "pushed")
    ),
    (
        "a stock prefill engine into shuffled pages",
        {"prefill": {"connector": "stock"}, "decode": _SHUFFLE},
        "refused",
        ("does not say how its pages are built", "aiter-shuffle", 'assume_untagged="standard"'),
    ),
    (
        "a stock prefill engine, assumed standard, into shuffled pages",
        {"prefill": {"connector": "stock"}, "decode": {**_SHUFFLE, "options": {"assume_untagged": "standard"}}},
        "right",
        (),
    ),
    (
        "a stock prefill engine, standard pages",
        {"prefill": {"connector": "stock", "tp": 2}, "decode": {}},
        "right",
        (),
    ),
    (
        "a stock prefill engine, untagged peers refused",
        {"prefill": {"connector": "stock"}, "decode": {"options": {"untagged": "refuse"}}},
        "refused",
        ("untagged peers are refused",),
    ),
    (
        "a stock prefill engine, 32 of 112 tokens in the prefix cache, pages of 16 into 32",
        {"prefill": {"connector": "stock"}, "decode": {"page": 32}, "tokens": 112, "hit": 32},
        "right",
        (),
    ),
    ("a stock decode engine, standard pages", {"prefill": {}, "decode": {"connector": "stock", "tp": 2}}, "right", ()),
    (
        "a stock decode engine, our pages shuffled under the same backend name",
        {"prefill": _SHUFFLE, "decode": {"connector": "stock"}},
        "refused",
        ("compatibility hash mismatch",),
    ),
    (
        "a stock prefill engine pushing, standard pages",
        {"prefill": {"connector": "stock"}, "decode": {}, "mode": "push"},
        "right",
        (),
    ),
    (
        "a stock decode engine pushed to, standard pages",
        {"prefill": {}, "decode": {"connector": "stock", "tp": 2}, "mode": "push"},
        "right",
        (),
    ),
    (
        "another backend's name, both standard",
        {"prefill": {"format": "packed"}, "decode": {"format": "nhd"}},
        "right",
        (),
    ),
    *(
        (
            f"{what}, a {side} engine that sleeps and wakes between two requests",
            {
                "prefill": {"format": forms[0]},
                "decode": {"format": forms[1], "tp": 2},
                "rounds": 2,
                "sleep": side,
            },
            "right",
            (),
        )
        for what, forms in (
            ("ROCM_ATTN pages", ("rocm_attn", "rocm_attn")),
            ("packed into AITER shuffle pages", ("packed", "aiter_shuffle")),
        )
        for side in ("prefill", "decode")
    ),
    (
        "ROCM_ATTN pages, pushed from two pipeline stages, TP 1 to 2",
        {"prefill": {"format": "rocm_attn", "pp": 2}, "decode": {"format": "rocm_attn", "tp": 2}, "mode": "push"},
        "right",
        (),
    ),
    (
        "packed pages of 16 into AITER shuffle of 32 tokens, 100 tokens, pushed from two pipeline stages, TP 2 to 1",
        {"prefill": {"pp": 2, "tp": 2}, "decode": {**_SHUFFLE, "page": 32}, "tokens": 100, "mode": "push"},
        "right",
        (),
    ),
    (
        "packed pages of 16 into 32 tokens, 100 tokens, pushed from two pipeline stages",
        {"prefill": {"pp": 2}, "decode": {"page": 32}, "tokens": 100, "mode": "push"},
        "right",
        (),
    ),
    (
        "a stock prefill engine of two pipeline stages pushing, standard pages",
        {"prefill": {"connector": "stock", "pp": 2}, "decode": {}, "mode": "push"},
        "right",
        (),
    ),
    (
        "a stock decode engine pushed to from two pipeline stages, standard pages",
        {"prefill": {"pp": 2}, "decode": {"connector": "stock"}, "mode": "push"},
        "right",
        (),
    ),
    (
        "ROCM_ATTN pages, pulled from two pipeline stages",
        {"prefill": {"format": "rocm_attn", "pp": 2}, "decode": {"format": "rocm_attn"}},
        "refused",
        ("pipeline stages in a pull", "push, or serve without pipeline parallelism"),
    ),
    (
        "packed pages, pulled from two pipeline stages",
        {"prefill": {"pp": 2}, "decode": {}},
        "refused",
        ("Number of KV layers must match",),
    ),
    (
        "a decode engine of two pipeline stages",
        {"prefill": {}, "decode": {"pp": 2}, "mode": "push"},
        "refused",
        ("does not support pipeline_parallel_size > 1",),
    ),
    (
        "a stock decode engine, our pages not known",
        {
            "prefill": {"format": "cpu_vec", "page": 32, "options": {"settings": {"cpu_isa": "neon"}}},
            "decode": {"connector": "stock", "format": "cpu_vec", "page": 32},
        },
        "refused",
        ("compatibility hash mismatch",),
    ),
    *(
        (
            f"an instruction set whose packing is not known, {mode}",
            {
                "prefill": {"format": "cpu_vec", "page": 32, "options": {"settings": {"cpu_isa": "neon"}}},
                "decode": {"format": "cpu_vec", "page": 32, "options": {"settings": {"cpu_isa": "neon"}}},
                "mode": mode[:4],
            },
            "refused",
            ("not known", "neon"),
        )
        for mode in ("pulled", "pushed")
    ),
)
