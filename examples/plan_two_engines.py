"""Two engines that lay their pages out differently: who reads what from whom, and the lists that NIXL would be handed.

Run it: `python examples/plan_two_engines.py`. numpy is all that it needs; nothing is moved.
"""

from __future__ import annotations

import kvreshard as kvr

HEADS, LAYERS, PAGES, TOKENS = 8, 4, 1024, 100

# Prefill shuffles its pages as AITER does on ROCm; the same on decode, in shares of a quarter.
PAGE = kvr.preset("aiter-shuffle", h=HEADS, n=16, d=128)


def engine(name: str, tp: int, base: int) -> list[kvr.RankLayout]:
    """The layouts of an engine's ranks, each with all its layers in one registration."""
    page = PAGE.with_extents(h=HEADS // tp)
    ranks = []
    for rank in range(tp):
        region = kvr.Region(base + rank * (1 << 36), LAYERS * PAGES * page.page_bytes)
        layers = [
            kvr.Layer(
                f"layers.{at}",
                [kvr.Segment(region, page, pages=PAGES, offset=at * PAGES * page.page_bytes)],
                totals={"h": HEADS},
            )
            for at in range(LAYERS)
        ]
        ranks.append(kvr.RankLayout(engine=name, tp=(rank, tp), layers=layers))
    return ranks


def main() -> None:
    prefill, decode = engine("prefill", 2, 1 << 40), engine("decode", 4, 1 << 45)
    route = kvr.route(local=kvr.Engine(decode), remote=kvr.Engine(prefill), direction="read")
    blocks = -(-TOKENS // 16)
    for edge in route.edges:
        plan = kvr.plan(decode[edge.local], prefill[edge.remote], edge=edge)
        plan.verify()
        # Block ids come from each engine's scheduler; they need not resemble one another.
        request = kvr.Request((0, TOKENS), [kvr.Blocks(range(blocks))], [kvr.Blocks(range(500, 500 + blocks))])
        local_ids, _ = plan.ids(request)
        print(
            f"decode rank {edge.local} reads from prefill rank {edge.remote}: {plan.runs_per_page} runs a page of "
            f"{plan.bytes_per_run:,} bytes, {len(plan.local_rows())} rows, {len(local_ids)} ids"
        )


if __name__ == "__main__":
    main()
