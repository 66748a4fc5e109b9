"""Transfers in device memory between processes: direct, landed, packed, and one merged write; every byte checked.

    python -m benches.gpu_transfers                     the tables, over all visible GPUs
    python -m benches.gpu_transfers --only shuffle      cases whose name contains this
    python -m benches.gpu_transfers --trace FILE        the steps of some turns of each row as well, for gpu_profile
    python -m benches.gpu_transfers --device cpu --mib 16     the same on host memory, to try the script

One GPU: prefill TP 2 in one process, decode TP 4 in another. Several: prefill TP 1 on the first to decode TP 1 on the
second; TP 1 to TP 2 on both; TP 2 on both to TP 1; TP 2 on the first to TP 4 on the second; from four on also between
two halves of them; a process a rank. Random data, 32 layers, 8 heads of 128, pages of 16 tokens, scattered. The bounds
beside a table are writes of as many bytes: one descriptor from one rank to another, and one a pair of ranks at once. A
time is from the first call of the issuing side to the last rank's end: of turns with a pause between them, in which all
is checked, and of as many in a row.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import torch

import kvreshard as kvr
from benches.gpu_ranks import LAYERS, PACKED, SHUFFLED, SLOTS, Case, Half, How, Moved, Which, cores, serve

TOKENS = 16
TRACED = 5
TOKEN_BYTES = 2 * LAYERS * 8 * 128 * 2


@dataclass(frozen=True)
class Topology:
    """Which ranks are where, and how many processes host them."""

    name: str
    prefill: tuple[str, ...]
    decode: tuple[str, ...]
    process_a_rank: bool


def topologies(device: str) -> Iterator[Topology]:
    """What the visible devices allow."""
    count = 1 if device == "cpu" else torch.cuda.device_count()
    if count == 1:
        one = "cpu" if device == "cpu" else "cuda:0"
        yield Topology("TP 2 to TP 4", (one,) * 2, (one,) * 4, False)
        return
    first, last = "cuda:0", "cuda:1"
    yield Topology("TP 1 to TP 1", (first,), (last,), True)
    yield Topology("TP 1 to TP 2 on both", (first,), (first, last), True)
    yield Topology("TP 2 on both to TP 1", (first, last), (last,), True)
    yield Topology("TP 2 to TP 4", (first,) * 2, (last,) * 4, True)
    if count > 3:
        # As many on each side as heads can be shared by, the prefill ranks on GPUs of their own.
        half = max(size for size in (2, 4, 8) if 2 * size <= count)
        every = tuple(f"cuda:{index}" for index in range(2 * half))
        yield Topology(f"TP {half} to TP {half}", every[:half], every[half:], True)
        yield Topology(f"TP {half} to TP {half // 2}", every[:half], every[half : half + half // 2], True)


def cases(topology: Topology, mib: int) -> Iterator[tuple[Case, str]]:
    """What is measured between them, and by what: r(ead) or w(rite), strategy."""
    tokens = (mib << 20) // TOKEN_BYTES // 64 * 64

    def case(name: str, source: str, target: str, tokens: int, pages: tuple[int, int] = (16, 16), **rest: Any) -> Case:
        halves = Half(source, pages[0], topology.prefill), Half(target, pages[1], topology.decode)
        return Case(name, *halves, tokens, **rest)

    slots = case("two slots", SLOTS, SLOTS, tokens)
    yield slots, "r-direct w-direct r-landed r-packed w-packed r-auto"
    yield replace(slots, name="two slots, reader issues", flow="pull"), "r-packed w-packed"
    yield case("standard to shuffle", PACKED, SHUFFLED, tokens), "r-landed r-packed w-packed"
    yield case("standard, pages of 16 to 64", PACKED, PACKED, tokens, (16, 64)), "r-direct r-landed r-packed w-packed"
    if len(set(topology.prefill + topology.decode)) > 1:
        # Long enough that the first chunk's way and the last one's do not weigh.
        many = case("two slots, 4 times as much", SLOTS, SLOTS, 4 * tokens)
        yield many, "r-packed w-packed"
        yield replace(many, name="two slots, 4 times, reader issues", flow="pull"), "r-packed"
        yield case("standard to shuffle, 4 times", PACKED, SHUFFLED, 4 * tokens), "r-packed w-packed"
    small = case("64 pages", SLOTS, SLOTS, 64 * TOKENS)
    yield small, "r-direct r-landed r-packed w-packed r-auto"
    yield replace(small, name="64 pages, consecutive", consecutive=True), "r-direct r-packed r-auto"
    yield case("1 page", SLOTS, SLOTS, TOKENS), "r-direct r-landed r-packed r-auto"


class Worker:
    """The driver's hold on a process."""

    def __init__(self, which: Which, indexes: tuple[int, ...], bound: set[int]) -> None:
        context = mp.get_context("spawn")
        self.pipe: Connection
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, which, indexes, bound), daemon=True)
        self.process.start()
        theirs.close()

    def tell(self, command: str, *arguments: Any) -> None:
        """Sends a command."""
        self.pipe.send((command, arguments))

    def answer(self) -> Any:
        """Its result."""
        if not self.pipe.poll(180):
            raise SystemExit("a rank does not answer")
        found = self.pipe.recv()
        if isinstance(found, Exception):
            raise SystemExit(str(found))
        return found


def ask(workers: Sequence[Worker], command: str, *arguments: Any) -> list[Any]:
    """A command to all, and all results."""
    for worker in workers:
        worker.tell(command, *arguments)
    return [worker.answer() for worker in workers]


class Ranks:
    """All processes of a topology."""

    def __init__(self, topology: Topology, *, bind: int) -> None:
        count = len(topology.prefill) + len(topology.decode) if topology.process_a_rank else 2
        shares = iter(cores(count, bind))

        def made(which: Which, devices: tuple[str, ...]) -> list[Worker]:
            every = tuple(range(len(devices)))
            parts = [(one,) for one in every] if topology.process_a_rank else [every]
            return [Worker(which, part, next(shares, set())) for part in parts]

        self.prefill, self.decode = made("prefill", topology.prefill), made("decode", topology.decode)
        for worker in self.all:
            worker.answer()
        self.turn = 0

    @property
    def all(self) -> list[Worker]:
        """Prefill's first."""
        return self.prefill + self.decode

    def open(self, case: Case) -> None:
        """Builds a case and connects the ranks."""
        told = ask(self.all, "build", case)
        sides = [
            [one for some in part for one in some] for part in (told[: len(self.prefill)], told[len(self.prefill) :])
        ]
        ask(self.all, "join", *sides)

    def merged(self, repeats: int, *, whole: bool) -> float:
        """Median seconds of writing as many bytes as one descriptor, or one for each pair of ranks at once."""
        workers = self.prefill[:1] if whole else self.prefill
        times = [spent(ask(workers, "one_run", whole)) for _ in range(repeats + 2)]
        return statistics.median(times[2:])

    def move(self, how: str, *, traced: How = "no") -> tuple[float, list[Moved], list[Moved]]:
        """Seconds of one turn, and what both sides say of it."""
        self.turn += 1
        operation, strategy = how.split("-")
        issuers, others = (self.prefill, self.decode) if operation == "w" else (self.decode, self.prefill)
        if traced != "no":
            ask(others, "watch", traced)
        moved = ask(issuers, "move", f"request-{self.turn}", strategy, traced)
        heard = ask(others, "heard", f"request-{self.turn}")
        if traced != "no":
            ask(others, "watch", "no")
        return spent(moved), moved, heard

    def wrong(self) -> int:
        """Wrong elements at decode."""
        return sum(ask(self.decode, "wrong"))

    def quit(self) -> None:
        """Ends the processes."""
        for worker in self.all:
            worker.tell("quit")
        for worker in self.all:
            worker.process.join(20)


def spent(moved: Sequence[Moved]) -> float:
    """Seconds from the first call to the last end."""
    return max(one.ended for one in moved) - min(one.begun for one in moved)


def link(topology: Topology, size: int = 1 << 30, repeats: int = 20) -> float:
    """Median milliseconds of one copy of `size` bytes from prefill's first device to decode's last."""
    one, other = (
        torch.randint(0, 256, (size,), dtype=torch.uint8, device=device)
        for device in (topology.prefill[0], topology.decode[-1])
    )
    times = []
    for _ in range(repeats + 3):
        for device in (one.device, other.device):
            torch.cuda.synchronize(device)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.device(one.device):
            begin.record()
            other.copy_(one)
            end.record()
            end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times[3:])


def measured(ranks: Ranks, topology: str, case: Case, how: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Several turns of one case by one strategy."""
    times: list[float] = []
    repeats = 1 if "direct" in how and case.bytes > 64 << 20 else arguments.repeats
    for turn in range(repeats + 1):
        seconds, moved, heard = ranks.move(how)
        if wrong := ranks.wrong():
            raise SystemExit(f"{case.name}, {how}: {wrong} elements are wrong")
        times.append(seconds)
        if turn == 0 and repeats == 1:
            break
    best = statistics.median(times[1:] or times)
    row = {
        "case": case.name,
        "how": how,
        "strategies": sorted({name for one in moved for name in one.strategies}),
        "posted": sum(one.posted for one in moved),
        "mib": sum(one.bytes for one in moved) / 2**20,
        "ms": best * 1e3,
        "least_ms": min(times) * 1e3,
        "first_ms": times[0] * 1e3,
        "gb_per_s": case.bytes / best / 1e9,
    }
    if "direct" not in how:
        # The turns so far came after pauses in which all was checked; these follow one another.
        row["row_ms"] = statistics.median([ranks.move(how)[0] for _ in range(repeats + 2)][2:]) * 1e3
        if wrong := ranks.wrong():
            raise SystemExit(f"{case.name}, {how}, in a row: {wrong} elements are wrong")
        traced(ranks, topology, case, how, arguments.trace)
        seconds, moved, heard = ranks.move(how, traced="traced")
        ranks.wrong()
        row["traced_ms"] = seconds * 1e3
        for name, side in (("issuer", moved), ("other", heard)):
            row[f"{name}_us"] = {
                key: round(max(one.host.get(key, 0.0) for one in side) * 1e6) for one in side for key in one.host
            }
        if arguments.profile:
            ranks.move(how, traced="profiled")
            ranks.wrong()
            with open(arguments.profile, "a") as file:
                for worker, text in zip(ranks.all, ask(ranks.all, "profile"), strict=True):
                    file.write(f"{case.name}, {how}: {worker.process.name}\n{text}\n")
    return row


def traced(ranks: Ranks, topology: str, case: Case, how: str, path: str | None) -> None:
    """Writes down the steps of some turns after pauses, and of some in a row."""
    for row in (False, True) if path else ():
        for _ in range(TRACED):
            ranks.move(how, traced="traced")
            if not row:
                ranks.wrong()
            logs = ask(ranks.all, "log")
            told = {"topology": topology, "case": case.name, "how": f"{how}, in a row" if row else how, "logs": logs}
            with open(str(path), "a") as file:
                json.dump(told, file)
                file.write("\n")


HEAD = (
    f"{'case':33s} {'by':12s} {'posted':>7s} {'MiB':>6s} {'ms':>9s} {'GB/s':>7s} "
    f"{'of one':>6s} {'pairs':>6s} {'in a row':>8s} {'of one':>6s} {'first':>6s}  host us"
)


def shown(row: dict[str, Any]) -> str:
    """A row of the table."""
    by = row["how"].replace("r-", "read ").replace("w-", "write ")
    chosen = f" ({'+'.join(row['strategies'])})" if "auto" in by else ""
    sides = ("issuer", "other")
    host = [f"{name} {sum(row[f'{name}_us'].values())}" for name in sides if f"{name}_us" in row]
    again = f"{row['row_ms']:8.2f} {row['one_ms'] / row['row_ms']:6.2f}" if "row_ms" in row else " " * 15
    return (
        f"{row['case']:33s} {by:12s} {row['posted']:7d} {row['mib']:6.0f} {row['ms']:9.2f} {row['gb_per_s']:7.1f} "
        f"{row['one_ms'] / row['ms']:6.2f} {row['pairs_ms'] / row['ms']:6.2f} {again} {row['first_ms']:6.0f}  "
        f"{', '.join(host)}{chosen}"
    )


def table(topology: Topology, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """All cases between the ranks of a topology."""
    rows = []
    print(f"\n{topology.name}: prefill on {', '.join(topology.prefill)}; decode on {', '.join(topology.decode)}")
    copied = 0.0
    if arguments.device != "cpu":
        copied = link(topology)
        ends = f"{topology.prefill[0]} to {topology.decode[-1]}"
        print(f"one copy of 1 GiB, {ends}: {copied:.3f} ms, {(1 << 30) / copied / 1e6:.0f} GB/s")
        torch.cuda.empty_cache()
    ranks = Ranks(topology, bind=arguments.bind)
    print(HEAD, flush=True)
    for case, ways in cases(topology, arguments.mib):
        if arguments.only not in case.name:
            continue
        slot = arguments.slot or (128 if len(set(topology.prefill + topology.decode)) > 1 else 256)
        case = replace(case, staging=arguments.staging << 20, slot=slot << 20)
        ranks.open(case)
        bounds = {name: ranks.merged(arguments.repeats, whole=name == "one") * 1e3 for name in ("one", "pairs")}
        for name, words in (("one", "one write"), ("pairs", "one a pair")):
            rate = case.bytes / bounds[name] / 1e6
            print(f"{case.name:33s} {words:12s} {case.bytes / 2**20:14.0f} {bounds[name]:9.2f} {rate:7.1f}")
        for how in ways.split():
            if arguments.ways and how not in arguments.ways.split(","):
                continue
            row = measured(ranks, topology.name, case, how, arguments)
            row |= {"topology": topology.name, "one_ms": bounds["one"], "pairs_ms": bounds["pairs"], "copy_ms": copied}
            rows.append(row)
            print(shown(row), flush=True)
        ask(ranks.all, "end")
    ranks.quit()
    return rows


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024, help="MiB of a large request, all ranks together")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--ranks", default="", help="topologies whose name contains this, such as 'TP 2 to TP 2'")
    parser.add_argument("--ways", default="", help="only these, such as r-packed,w-packed")
    parser.add_argument("--staging", type=int, default=3072, help="MiB of staging of a rank")
    parser.add_argument("--slot", type=int, help="MiB of a slot; 256 on one device, 128 on several where not given")
    parser.add_argument(
        "--bind", type=int, default=2, help="processor cores of each process's own; 0: wherever it runs"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--trace", help="file to append the steps to, a line of JSON a turn")
    parser.add_argument("--profile", help="file to append what Python's profiler says of one more turn of each row")
    parser.add_argument("--json", help="file to write all rows to")
    arguments = parser.parse_args()
    if arguments.device != "cpu" and not torch.cuda.is_available():
        print("no CUDA device: nothing measured")
        return
    names = ["host memory"]
    if arguments.device != "cpu":
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    print(f"{len(names)} x {names[0]}, torch {torch.__version__}, kvreshard {kvr.__version__}")
    wanted = [topology for topology in topologies(arguments.device) if arguments.ranks in topology.name]
    rows = [row for topology in wanted for row in table(topology, arguments)]
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"devices": names, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
