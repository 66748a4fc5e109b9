"""Runs vLLM's own connector tests, from its source distribution, with our connectors in the place of vLLM's.

`python -m tests.vllm.upstream FOLDER [--stock]` unpacks the tests from vLLM's archive in FOLDER, to which
`make test-vllm` downloads it, and runs them. What passes with stock connectors is listed by name in
`stock_passing.txt`, and must pass with ours. `--stock` runs without exchange and prints the list anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

VERSION = "0.33.0"
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
UNIT = "tests/v1/kv_connector/unit"
# Two processes, about equally long: importing vLLM takes longer than most of these files.
FILES = (
    (
        "test_nixl_desc_geometry.py",
        "test_nixl_push_connector.py",
        "test_tp_mapping.py",
        "test_transfer_topology_sharded.py",
        "test_remote_decode_lifecycle.py",
        "test_remote_prefill_lifecycle.py",
        "test_config.py",
        "test_output_aggregator.py",
        "test_scheduler_kv_connector_override.py",
        "test_hma_auto_config.py",
    ),
    (
        "test_nixl_connector.py",
        "test_nixl_connector_hma.py",
        "test_bidirectional_kv_transfer.py",
        "test_nixl_heartbeat.py",
        "test_handshake_pp_aggregation.py",
        "test_kv_connector_lifecycle.py",
        "test_nixl_simple_cpu_offload.py",
    ),
)

# Three tests that load weights, and one starts Ray for that: they pass with no connector without a download.
_NEED_WEIGHTS = (
    "test_nixl_connector.py::test_abort_timeout_on_prefiller",
    "test_nixl_connector_hma.py::test_fewer_blocks_with_hma",
)

# Alone on two cores they take a sixth of this.
_SECONDS = 1800

# Model configurations that the tests name on a hub; without weights, which no test that can pass here loads.
_OPT = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "vocab_size": 50272,
    "max_position_embeddings": 2048,
    "activation_function": "relu",
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 2,
    "torch_dtype": "float16",
}
_MODELS = {
    "facebook/opt-125m": {
        "hidden_size": 768,
        "ffn_dim": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "word_embed_proj_dim": 768,
        "do_layer_norm_before": True,
    },
    "facebook/opt-350m": {
        "hidden_size": 1024,
        "ffn_dim": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "word_embed_proj_dim": 512,
        "do_layer_norm_before": False,
    },
}


# Tests that are given a worker class are named after it.
_SUBSTITUTES = {"PlannedPullWorker": "NixlPullConnectorWorker", "_PushWorker": "NixlPushConnectorWorker"}


def unpack(folder: Path) -> Path:
    """The tests of vLLM's source distribution, which lies in `folder`, unpacked where they are not yet."""
    base = folder / f"vllm-{VERSION}"
    if not (base / UNIT).is_dir():
        with tarfile.open(folder / f"vllm-{VERSION}.tar.gz") as packed:
            wanted = (f"vllm-{VERSION}/tests/", f"vllm-{VERSION}/pyproject.toml")
            packed.extractall(folder, [item for item in packed if item.name.startswith(wanted)], filter="data")
    for name, sizes in _MODELS.items():
        (base / name).mkdir(parents=True, exist_ok=True)
        (base / name / "config.json").write_text(json.dumps({**_OPT, **sizes}))
    return base


def run(base: Path, names: tuple[str, ...], *, exchanged: bool) -> dict[str, str]:
    """Outcomes of the tests of some files by name: `passed`, `failed` or `skipped`."""
    report = base / f"{names[0]}.xml"
    report.unlink(missing_ok=True)
    # The plugins by their own names: the folder of vLLM's tests is a package `tests` too.
    paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
    command = [
        *(sys.executable, "-m", "pytest", "-q", *(f"{UNIT}/{name}" for name in names)),
        *(f"--deselect={UNIT}/{name}" for name in _NEED_WEIGHTS),
        *("-p", "no:cacheprovider", "--timeout=180"),
        *("-o", "junit_family=xunit1", f"--junitxml={report}", "--tb=line"),
        *("-p", "unpinned", *(("-p", "substitute") if exchanged else ())),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "VLLM_TARGET_DEVICE": "cpu",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    log = base / f"{names[0]}.log"
    with (
        log.open("w") as said,
        # A session of its own: what the tests leave behind is ended with it.
        subprocess.Popen(
            command, cwd=base, env=environment, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        ) as tests,
    ):
        try:
            tests.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            print(f"{names[0]} and what follows it: ended after {_SECONDS} seconds")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(tests.pid, signal.SIGKILL)
    if not report.exists():
        print(f"{names[0]}: pytest ended with {tests.returncode} and wrote no report\n{log.read_text()[-3000:]}")
        return {}
    return read(report)


def read(report: Path) -> dict[str, str]:
    """Outcomes in one of pytest's reports, by name."""
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        file, name = Path(case.get("file", "")).name, case.get("name", "")
        for ours, stock in _SUBSTITUTES.items():
            name = name.replace(ours, stock)
        outcomes[f"{file}::{case.get('classname', '').rsplit('.', 1)[-1]}::{name}"] = outcome
    return outcomes


def run_all(base: Path, *, exchanged: bool) -> dict[str, str]:
    """Outcomes of all files."""
    with ThreadPoolExecutor(max_workers=len(FILES)) as pool:
        parts = pool.map(lambda names: run(base, names, exchanged=exchanged), FILES)
        return {name: outcome for part in parts for name, outcome in part.items()}


def stock_passing() -> list[str]:
    """The names of tests that pass with stock connectors."""
    lines = (HERE / "stock_passing.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def main() -> int:
    """Runs the tests; 0 when all that stock connectors pass is passed."""
    base = unpack(Path(sys.argv[1]).resolve())
    if "--stock" in sys.argv:
        for name, outcome in sorted(run_all(base, exchanged=False).items()):
            if outcome == "passed":
                print(name)
        return 0
    started = time.monotonic()
    outcomes = run_all(base, exchanged=True)
    stock = stock_passing()
    failed = [name for name in stock if outcomes.get(name) != "passed"]
    for name in failed:
        print(f"{name}: {outcomes.get(name, 'not found')}, but passes with stock connectors")
    counts = f"{len(failed)} failed, {len(stock) - len(failed)} passed" if failed else f"{len(stock)} passed"
    print(f"vLLM's tests that pass with stock connectors: {counts} in {time.monotonic() - started:.2f}s")
    return 1 if failed or not stock else 0


if __name__ == "__main__":
    sys.exit(main())
