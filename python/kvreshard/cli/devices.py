"""The devices of this machine, and how bytes move between each two: for `doctor`."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

NODES = ("/dev/nvidiactl", "/dev/kfd")
"""What a machine with NVIDIA or AMD devices has; without them torch, which takes seconds, is not imported."""

MOST = 4
"""Devices that are tried against each other."""

TRANSPORT = re.compile(r"\b(cuda_ipc|rocm_ipc|rc_mlx5|rc_verbs|dc_mlx5|ud_mlx5|gdr_copy|cuda_copy|cma|tcp)/")


def devices(*, transfer: bool) -> dict[str, Any] | None:
    """Names, peer access and, with `transfer`, the rate between processes on each two devices; `None` without any."""
    if not any(Path(node).exists() for node in NODES) or importlib.util.find_spec("torch") is None:
        return None
    import torch

    count = torch.cuda.device_count()
    if not count:
        return None
    found: dict[str, Any] = {
        "names": [torch.cuda.get_device_name(index) for index in range(count)],
        "cuda": torch.version.cuda or torch.version.hip,
        "driver": _driver(),
        "peer_access": [
            [one == other or torch.cuda.can_device_access_peer(one, other) for other in range(count)]
            for one in range(count)
        ],
        "paths": [],
    }
    if transfer:
        some = range(min(count, MOST))
        found["paths"] = [path(here, there) for here, there in itertools.product(some, some)]
    return found


def path(here: int, there: int) -> dict[str, Any]:
    """How a process on one device reads from and writes to one on another."""
    program = [sys.executable, "-m", "kvreshard.nixl.loopback", str(here), str(there)]
    environment = {**os.environ, "UCX_PROTO_INFO": "y"}
    try:
        done = subprocess.run(program, capture_output=True, text=True, env=environment, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        return {"here": here, "there": there, "right": False, "said": "no transfer within 120 s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"read"')]
    if done.returncode or not lines:
        said = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        return {"here": here, "there": there, "right": False, "said": said}
    rates = json.loads(lines[-1])
    return {
        "here": here,
        "there": there,
        "right": not any(slow for _, slow, _ in rates.values()),
        "said": "; ".join(said for _, _, said in rates.values()),
        "transports": transports(done.stdout + done.stderr),
        "bytes_per_second": {name: rate for name, (rate, _, _) in rates.items()},
    }


def transports(log: str) -> list[str]:
    """What UCX says that it reads and writes device memory by, in its tables of protocols."""
    found: set[str] = set()
    inside = False
    for line in log.splitlines():
        if " by ucp_" in line:
            inside = "remote memory" in line and line.count("cuda") + line.count("rocm") >= 2
        elif inside:
            found.update(TRANSPORT.findall(line))
    return sorted(found)


def _driver() -> str | None:
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0] if lines else None


def described(found: dict[str, Any]) -> list[str]:
    """Lines for a person."""
    names = found["names"]
    said = [
        f"{len(names)} device{'s' if len(names) > 1 else ''}: {', '.join(sorted(set(names)))}; "
        f"CUDA or ROCm {found['cuda']}, driver {found['driver'] or 'unknown'}"
    ]
    access = found["peer_access"]
    pairs = itertools.permutations(range(len(names)), 2)
    without = [f"{one} to {other}" for one, other in pairs if not access[one][other]]
    if len(names) > 1:
        said.append(f"peer access: {'none from ' + ', '.join(without) if without else 'between all devices'}")
    for one in found["paths"]:
        by = f" by {', '.join(one['transports'])}" if one.get("transports") else ""
        said.append(f"device {one['here']} with {one['there']}{by}: {one['said']}")
    return said
