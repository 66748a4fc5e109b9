"""`python -m kvreshard.demo`: moves KV cache between processes whose pages differ, and checks every byte."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

MISSING = "the demonstration needs nixl, msgspec and rich: pip install 'kvreshard[nixl,cli]'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the scenarios; 0 if every byte was right and every refusal came."""
    from kvreshard.demo.scenarios import LAYERS, SCENARIOS

    parser = argparse.ArgumentParser(prog="python -m kvreshard.demo", description=__doc__)
    names = [one.name for one in SCENARIOS]
    parser.add_argument("scenario", nargs="*", help=f"run only these: {', '.join(names)}")
    parser.add_argument("--layers", type=int, default=LAYERS, help="layers of the model (default: %(default)s)")
    parser.add_argument("--tokens", type=int, help="end every request after this many tokens")
    parser.add_argument("--seed", type=int, default=1, help="of what the pages hold and where (default: %(default)s)")
    parser.add_argument(
        "--scramble", action="store_true", help="prefill writes pages that are not what its format says: must fail"
    )
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.add_argument(
        "--memory", choices=("dram", "vram"), default="dram", help="where pages are (vram: on all visible devices)"
    )
    given = parser.parse_args(arguments)
    if unknown := sorted(set(given.scenario) - set(names)):
        parser.error(f"no scenario is called {', '.join(unknown)}")
    if given.layers < 2 or (given.tokens is not None and given.tokens < 1):
        parser.error("there must be at least 2 layers and 1 token")

    try:
        if importlib.util.find_spec("nixl") is None:
            raise ImportError("No module named 'nixl'")
        from kvreshard.demo.report import Report, as_json, summary
        from kvreshard.demo.run import run
    except ImportError as error:
        print(f"{error}: {MISSING}", file=sys.stderr)
        return 2

    devices = 0
    if given.memory == "vram":
        devices = visible()
        if not devices:
            print("--memory vram needs torch and a CUDA or ROCm device", file=sys.stderr)
            return 2

    chosen = []
    for one in SCENARIOS:
        if not given.scenario or one.name in given.scenario:
            end = one.end if given.tokens is None else max(given.tokens, one.first + 1)
            chosen.append(replace(one, layers=given.layers, seed=given.seed, end=end))
    begun = time.perf_counter()
    report = Report(chosen, sys.stderr if given.json else None, terse=given.json)
    outcomes = report.run(lambda scenario, stage: run(scenario, stage=stage, backwards=given.scramble, devices=devices))
    seconds = time.perf_counter() - begun
    if given.json:
        print(json.dumps(as_json(outcomes, seconds), indent=2))
    else:
        report.say(summary(outcomes, seconds))
    return 0 if all(outcome.good for outcome in outcomes) else 1


def visible() -> int:
    """How many devices torch sees; 0 without torch."""
    if importlib.util.find_spec("torch") is None:
        return 0
    import torch

    return int(torch.cuda.device_count())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
