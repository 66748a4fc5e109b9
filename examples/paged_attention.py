"""A toy model with paged attention: prefill on two ranks hands its cache to decode on four, pages built otherwise.

Prefill writes pages shuffled as AITER does (16 tokens), decode reads packed ones (32 tokens), and no rank of one has
the heads of a rank of the other. Afterwards the model goes on, and its logits are those of a model that was never
divided, bit for bit: every head is computed by itself, and what heads found is gathered before it is multiplied, so no
sum has another order.

Run it: `python examples/paged_attention.py`. It needs torch; the bytes are copied in this process, where an engine
would hand the same lists to NIXL.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import kvreshard as kvr

LAYERS, HEADS, WIDTH, VOCABULARY = 3, 8, 16, 97
PROMPT, STEPS, BLOCKS = 75, 6, 12
MODEL = HEADS * WIDTH


class Weights:
    """The model's weights, the same for every engine."""

    def __init__(self) -> None:
        made = torch.Generator().manual_seed(1)
        scale = MODEL**-0.5
        self.embedding = torch.randn(VOCABULARY, MODEL, generator=made)
        self.qkv = torch.randn(LAYERS, 3, MODEL, MODEL, generator=made) * scale
        self.out = torch.randn(LAYERS, MODEL, MODEL, generator=made) * scale


@dataclass
class Rank:
    """One rank: its heads, its pages, and where each element of a page is."""

    tp: tuple[int, int]
    page: kvr.PageFormat
    memory: Tensor
    layout: kvr.RankLayout

    @property
    def heads(self) -> range:
        """The heads of the model that this rank holds."""
        rank, size = self.tp
        return range(rank * HEADS // size, (rank + 1) * HEADS // size)

    def cells(self, layer: int, component: str, blocks: list[int], head: int, tokens: range) -> Tensor:
        """Positions in the memory, (tokens, channels), of one head of K or V; float32 elements."""
        # `offsets` has the page's elements as (d, h, n): axes by name.
        offsets = torch.from_numpy(self.page.offsets(component))[:, head - self.heads[0], :] // 4
        size = self.page.extents["n"]
        pages = torch.tensor(
            [(layer * BLOCKS + blocks[token // size]) * (self.page.page_bytes // 4) for token in tokens]
        )
        return pages[:, None] + offsets[:, torch.tensor([token % size for token in tokens])].T

    def write(self, layer: int, component: str, blocks: list[int], head: int, token: int, values: Tensor) -> None:
        """Stores one token's K or V of one head."""
        self.memory[self.cells(layer, component, blocks, head, range(token, token + 1))[0]] = values

    def read(self, layer: int, component: str, blocks: list[int], head: int, tokens: int) -> Tensor:
        """K or V of one head, (tokens, channels)."""
        return self.memory[self.cells(layer, component, blocks, head, range(tokens))]


def engine(name: str, tp: int, notation: str, tokens: int) -> list[Rank]:
    """The ranks of an engine, their caches empty."""
    ranks = []
    for rank in range(tp):
        page = kvr.PageFormat(notation, h=HEADS // tp, n=tokens, d=WIDTH, dtype="f32")
        memory = torch.full((LAYERS * BLOCKS * page.page_bytes // 4,), float("nan"))
        region = kvr.Region(memory.data_ptr(), 4 * memory.numel())
        layers = [
            kvr.Layer(
                f"layers.{at}",
                [kvr.Segment(region, page, pages=BLOCKS, offset=at * BLOCKS * page.page_bytes)],
                totals={"h": HEADS},
            )
            for at in range(LAYERS)
        ]
        ranks.append(Rank((rank, tp), page, memory, kvr.RankLayout(engine=name, tp=(rank, tp), layers=layers)))
    return ranks


def step(weights: Weights, ranks: list[Rank], blocks: list[int], position: int, token: int) -> Tensor:
    """One token through the model: its K and V into the cache, its logits, (vocabulary,)."""
    x = weights.embedding[token]
    for layer in range(LAYERS):
        q, k, v = ((weights.qkv[layer, part] @ x).view(HEADS, WIDTH) for part in range(3))
        found = torch.empty(HEADS, WIDTH)
        for rank in ranks:
            for head in rank.heads:
                rank.write(layer, "k", blocks, head, position, k[head])
                rank.write(layer, "v", blocks, head, position, v[head])
                keys = rank.read(layer, "k", blocks, head, position + 1)
                values = rank.read(layer, "v", blocks, head, position + 1)
                found[head] = torch.softmax(keys @ q[head] * WIDTH**-0.5, dim=0) @ values
        x = torch.nn.functional.normalize(x + weights.out[layer] @ found.view(MODEL), dim=0) * MODEL**0.5
    return weights.embedding @ x


def hand_over(prefill: list[Rank], decode: list[Rank], prompt: list[int], reply: list[int]) -> int:
    """Moves the prompt's cache; how many descriptors it took. `prompt` and `reply` are the blocks on either side."""
    local, remote = ([rank.layout for rank in ranks] for ranks in (decode, prefill))
    memories = {id(rank.layout): rank.memory.numpy().view(np.uint8) for rank in (*prefill, *decode)}
    starts = {id(rank.layout): rank.memory.data_ptr() for rank in (*prefill, *decode)}
    count = 0
    for edge in kvr.route(local=kvr.Engine(local), remote=kvr.Engine(remote)).edges:
        here, there = local[edge.local], remote[edge.remote]
        plan = kvr.plan(here, there, edge=edge)
        request = kvr.Request((0, PROMPT), [kvr.Blocks(reply)], [kvr.Blocks(prompt)])
        for to, source in zip(*plan.lists(request), strict=True):
            into, out = int(to[0]) - starts[id(here)], int(source[0]) - starts[id(there)]
            memories[id(here)][into : into + int(to[1])] = memories[id(there)][out : out + int(source[1])]
            count += 1
    return count


def main() -> None:
    torch.set_num_threads(1)
    weights = Weights()
    tokens = torch.randint(VOCABULARY, (PROMPT + STEPS,), generator=torch.Generator().manual_seed(2)).tolist()

    whole = engine("whole", 1, "h n k[d] v[d]", 16)
    expected = [step(weights, whole, list(range(BLOCKS)), at, token) for at, token in enumerate(tokens)]

    prefill = engine("prefill", 2, "k[h d/4 n d%4] v[h n/4 d n%4]", 16)
    decode = engine("decode", 4, "h n k[d] v[d]", 32)
    prompt, reply = [7, 3, 9, 0, 5], [4, 1, 8]
    for at in range(PROMPT):
        assert torch.equal(step(weights, prefill, prompt, at, tokens[at]), expected[at])
    count = hand_over(prefill, decode, prompt, reply)
    for at in range(PROMPT, PROMPT + STEPS):
        assert torch.equal(step(weights, decode, reply, at, tokens[at]), expected[at])
    print(f"{PROMPT} tokens handed over in {count:,} copies; {STEPS} more decoded, logits equal bit for bit")


if __name__ == "__main__":
    main()
