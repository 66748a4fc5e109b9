"""Pairs of engines of real vLLM, on host memory: schedulers, workers, handshake, NIXL; no model runs.

One process plays all ranks of a prefill and a decode engine. What is not vLLM's: the rank that each worker is told it
has, a layer that only names its backend, and the bytes of the pages, which closed formulas write and read
(`kvreshard.demo.formulas`) in the place of attention kernels.

`python -m tests.vllm.harness CASES` runs a JSON list of cases and prints a JSON line for each; tests run it as a
process of its own, since vLLM wants its environment set before it is imported, and pins its process to one core.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.vllm.engine import Engine, model_folder
from tests.vllm.setting import Case

# A case takes a second or two, its requests at most 20 seconds each; the first one of a process imports vLLM.
CASE_SECONDS = 180


def set_environment() -> None:
    """What vLLM reads when it is imported."""
    for name, value in {
        "VLLM_TARGET_DEVICE": "cpu",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "UCX_LOG_LEVEL": "error",
        "NIXL_LOG_LEVEL": "ERROR",
    }.items():
        os.environ.setdefault(name, value)


class _Blocks:
    """What a scheduler was allocated, as far as a connector looks: `hit` blocks are in the prefix cache."""

    def __init__(self, ids: list[int], hit: int) -> None:
        hashed = [SimpleNamespace(block_id=0, block_hash=index, is_null=False) for index in range(hit)]
        free = [SimpleNamespace(block_id=number, block_hash=None, is_null=False) for number in ids]
        self.blocks = ([*hashed, *free],)
        self._ids = ids

    def get_unhashed_block_ids_all_groups(self) -> list[list[int]]:
        return [list(self._ids)]


class _Errors(logging.Handler):
    """Keeps errors in vLLM's log, where alone a refused handshake says why; and our warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []
        self.warnings: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.ERROR:
            if record.getMessage().startswith("kvreshard"):
                self.warnings.append(record.getMessage())
        elif record.exc_info and record.exc_info[1] is not None:
            problem = record.exc_info[1]
            self.texts.append(f"{type(problem).__name__}: {problem}")
        else:
            self.texts.append(record.getMessage().splitlines()[0])


@contextlib.contextmanager
def _errors() -> Iterator[_Errors]:
    handler = _Errors()
    logger = logging.getLogger("vllm")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.WARNING)
    quiet = [(other, other.level) for other in logger.handlers if other is not handler]
    for other, _ in quiet:
        other.setLevel(logging.CRITICAL + 1)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        for other, level in quiet:
            other.setLevel(level)


def run(case: Case) -> dict[str, Any]:
    """Runs one case: `verdict` is `right`, `wrong` or `refused`, and what was counted and timed."""
    result: dict[str, Any] = {"verdict": "refused", "errors": []}
    engines: list[Engine] = []
    with model_folder(case) as model, _errors() as errors:
        try:
            for name, side, role in (
                ("prefill", case.prefill, "kv_producer"),
                ("decode", case.decode, "kv_consumer"),
            ):
                engine = Engine(name, side, case, role, model)
                engine.serve()
                engines.append(engine)
            _transfer(case, engines[0], engines[1], result, errors)
        except Exception as problem:
            result["errors"].append(f"{type(problem).__name__}: {problem}")
            if case.trace:
                traceback.print_exc()
        finally:
            for engine in engines:
                with contextlib.suppress(Exception):
                    engine.close()
    result["errors"] += list(dict.fromkeys(errors.texts))
    result["warnings"] = errors.warnings
    return result


def _scattered(count: int, offset: int, limit: int) -> list[int]:
    """Block ids in an order that no two neighbours keep, within `limit`."""
    step = next(step for step in (7, 5, 3, 11, 13, 1) if limit % step)
    ids = [(offset + index * step) % limit for index in range(limit)]
    return ids[:count]


def _transfer(case: Case, prefill: Engine, decode: Engine, result: dict[str, Any], errors: _Errors) -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlConnectorMetadata

    used: list[int] = []
    sources = _scattered(-(-case.tokens // prefill.side.page) * case.rounds, 2, prefill.blocks - 1)
    targets = _scattered(-(-case.tokens // decode.side.page) * case.rounds, 1, decode.blocks - 1)
    timings = _Timings(prefill if case.mode == "push" else decode)
    wrong: list[str] = []
    for turn in range(case.rounds):
        if case.sleep and turn:
            {"prefill": prefill, "decode": decode}[case.sleep].sleep_and_wake()
        count = -(-case.tokens // prefill.side.page)
        here = sources[turn * count : (turn + 1) * count]
        hit = case.hit // decode.side.page
        count = -(-case.tokens // decode.side.page)
        there = targets[turn * count : (turn + 1) * count][hit:]
        looked_at = not case.timed or turn == case.rounds - 1
        if looked_at:
            prefill.write(here, case.tokens)
        started = time.perf_counter()
        done = _request(case, prefill, decode, f"r{turn}", here, there, hit, NixlConnectorMetadata, errors)
        result.setdefault("seconds", []).append(time.perf_counter() - started)
        if done is not True:
            result["errors"].append(done)
            result |= timings.result()
            return
        used += there
        if looked_at:
            wrong += decode.wrong(there, hit * decode.side.page, case.tokens)
        filled = case.tokens % decode.side.page
        if decode.side.format == "packed" and filled:
            result["tail"] = sorted(decode.tail(there[-1], filled))
    result |= timings.result() | (prefill if case.mode == "push" else decode).stats()
    result["touched"] = decode.touched(used)
    result["wrong"] = wrong
    result["verdict"] = "wrong" if wrong or result["touched"] else "right"


def _request(
    case: Case,
    prefill: Engine,
    decode: Engine,
    name: str,
    here: list[int],
    there: list[int],
    hit: int,
    empty: Any,
    errors: _Errors,
) -> Any:
    """One request from prefill to decode through both schedulers; true, or what went wrong."""
    from vllm.v1.request import RequestStatus

    prompt = list(range(case.tokens))
    origin = SimpleNamespace(
        request_id=f"p-{name}" if case.mode == "pull" else name,
        kv_transfer_params={"do_remote_decode": True, "do_remote_prefill": False},
        prompt_token_ids=prompt,
        num_prompt_tokens=case.tokens,
        num_computed_tokens=case.tokens,
        status=RequestStatus.FINISHED_LENGTH_CAPPED,
    )
    prefill.scheduler.on_new_request(origin)
    prefill.scheduler.update_state_after_alloc(origin, _Blocks(here, 0), 0)
    held, params = prefill.scheduler.request_finished_all_groups(origin, (list(here),))
    assert held
    prefill.step(prefill.scheduler.build_connector_meta(None))
    target = SimpleNamespace(
        request_id=f"d-{name}" if case.mode == "pull" else name,
        kv_transfer_params=dict(params),
        prompt_token_ids=prompt,
        num_prompt_tokens=case.tokens,
        num_computed_tokens=0,
        status=RequestStatus.WAITING,
    )
    decode.scheduler.on_new_request(target)
    computed = hit * decode.side.page
    wanted, _ = decode.scheduler.get_num_new_matched_tokens(target, computed)
    decode.scheduler.update_state_after_alloc(target, _Blocks(there, hit), wanted)
    metadata = decode.scheduler.build_connector_meta(None)
    waiting, sending = set(range(decode.side.tp)), set(range(len(prefill.connectors)))
    deadline, refused = time.monotonic() + 20, 0.0
    while (waiting or sending) and time.monotonic() < deadline:
        if case.mode == "push" and errors.texts:
            # A source that refuses says so in its log alone: the destination would wait for its lease to end.
            refused = refused or time.monotonic()
            deadline = refused + 1
        for rank, results in enumerate(decode.step(metadata)):
            if target.request_id in results.failed_recving:
                return f"decode rank {rank}: the request failed"
            if target.request_id in results.finished_recving:
                waiting.discard(rank)
        metadata = empty()
        for rank, results in enumerate(prefill.step(empty())):
            if origin.request_id in results.finished_sending:
                sending.discard(rank)
        time.sleep(0.001)
    if waiting:
        return f"decode ranks {sorted(waiting)}: nothing came in time"
    return True if not sending else f"prefill ranks {sorted(sending)}: not told that the request is done"


class _Clock(threading.local):
    """What NIXL took of a thread's time."""

    nixl = 0.0
    nixl_cpu = 0.0


class _Timings:
    """Seconds that the planning side spends on first contact and on each request.

    Of first contact NIXL's part is counted, and the processor's time without NIXL's part apart; of requests it is not.
    """

    def __init__(self, engine: Engine) -> None:
        self.contact: list[float] = []
        self.contact_cpu: list[float] = []
        self.planning: list[float] = []
        self._clock = _Clock()
        turns = threading.Lock()
        for connector in engine.connectors:
            worker = connector.connector_worker
            for name in (
                *("make_prepped_xfer", "transfer", "send_notif", "initialize_xfer"),
                *("add_remote_agent", "prep_xfer_dlist"),
            ):
                self._count(worker.nixl_wrapper, name)
            method = "_xfer_blocks_for_req" if hasattr(worker, "_xfer_blocks_for_req") else "_read_blocks_for_req"
            self._time(worker, method, self._planned)
            # Ranks of an engine have processes of their own. Here they take turns: none waits for another's GIL.
            self._time(worker, "_nixl_handshake", self._met, turns)

    def _count(self, wrapper: Any, name: str) -> None:
        inner = getattr(wrapper, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter(), time.thread_time()
            try:
                return inner(*args, **kwargs)
            finally:
                self._clock.nixl += time.perf_counter() - started[0]
                self._clock.nixl_cpu += time.thread_time() - started[1]

        setattr(wrapper, name, counted)

    def _time(
        self,
        worker: Any,
        name: str,
        note: Callable[[float, float], None],
        turns: contextlib.AbstractContextManager[Any] | None = None,
    ) -> None:
        inner = getattr(worker, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with turns or contextlib.nullcontext():
                self._clock.nixl = self._clock.nixl_cpu = 0.0
                started = time.perf_counter(), time.thread_time()
                try:
                    return inner(*args, **kwargs)
                finally:
                    note(time.perf_counter() - started[0], time.thread_time() - started[1])

        setattr(worker, name, timed)

    def _planned(self, seconds: float, cpu: float) -> None:
        self.planning.append(seconds - self._clock.nixl)

    def _met(self, seconds: float, cpu: float) -> None:
        self.contact.append(seconds)
        self.contact_cpu.append(cpu - self._clock.nixl_cpu)

    def result(self) -> dict[str, Any]:
        """The times, in seconds."""
        return {"contact": self.contact, "contact_cpu": self.contact_cpu, "planning": self.planning}


def main() -> None:
    """Runs the cases given as JSON, one line of JSON each."""
    set_environment()
    faulthandler.enable()
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    # UCX reports errors on standard output, in the middle of a line of ours where they come then.
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    text = sys.argv[1]
    for values in json.loads(text if text.lstrip().startswith("[") else Path(text).read_text()):
        # Whatever hangs, inside NIXL too, ends the process and shows where every thread was.
        faulthandler.dump_traceback_later(CASE_SECONDS, exit=True)
        print("RESULT " + json.dumps(run(Case.read(values))), file=results, flush=True)
    # Threads of NIXL and of the side channels must not hold the process.
    sys.stdout.flush()
    os._exit(0)


def _end_with(parent: int) -> None:
    """Ends this process soon after the one that started it."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main()
