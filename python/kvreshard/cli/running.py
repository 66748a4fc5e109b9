"""`demo`, `doctor`, `calibrate`: what runs on this machine."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

import kvreshard as kvr
from kvreshard.cli import trial
from kvreshard.cli.devices import described
from kvreshard.cli.devices import devices as look_at_devices
from kvreshard.cli.output import REFUSED, dump, fail, say, table, working

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
PACKAGES = ("numpy", "nixl", "nixl-cu12", "nixl-cu13", "msgspec", "torch", "triton", "vllm", "typer", "rich", "jinja2")


def demo(context: typer.Context) -> None:
    """Moves KV cache between processes whose pages differ, and checks every byte; arguments as of its module."""
    from kvreshard.demo.__main__ import main

    raise typer.Exit(main(context.args))


def calibrate(
    devices: Annotated[
        str,
        typer.Option(help="Two devices, such as 0,1: the one that issues and its peer's. Host memory if not given."),
    ] = "",
    as_json: Json = False,
) -> None:
    """Measures the constants of the cost model between two processes of this machine, over NIXL."""
    if importlib.util.find_spec("nixl") is None:
        fail("calibration needs nixl: pip install 'kvreshard[nixl]'")
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
    numbers = [part.strip() for part in devices.split(",")] if devices else []
    if numbers and (len(numbers) != 2 or not all(part.isdecimal() for part in numbers)):
        fail(f"--devices takes two numbers, such as 0,1; not {devices!r}")
    pair = (int(numbers[0]), int(numbers[1])) if numbers else None
    with working("measuring", quiet=as_json), logs_aside():
        measured = importlib.import_module("kvreshard.nixl.loopback").calibrate_host(devices=pair)
    names = (
        "read_post_ns",
        "read_bytes_per_us",
        "write_post_ns",
        "write_bytes_per_us",
        "pass_bytes_per_us",
        "pass_piece_ps",
        "pass_ns",
        "round_trip_ns",
    )
    values = {name: getattr(measured, name) for name in names}
    if as_json:
        dump(values)
        return
    rows = table("constant", "value", numbers=(1,))
    for name, value in values.items():
        rows.add_row(name, f"{value:,}")
    say(rows)


def doctor(
    transfer: Annotated[bool, typer.Option(help="Try a small transfer between two agents.")] = True,
    as_json: Json = False,
) -> None:
    """What is installed, what NIXL can load, whether a small transfer arrives, how devices reach each other, and known
    traps. Exit code 1 if a transfer fails, or takes a long way round.
    """
    versions = {name: _version(name) for name in PACKAGES}
    found: dict[str, Any] = {
        "kvreshard": kvr.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "packages": versions,
        "environment": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith(("UCX_", "NIXL_"))
        },
        "plugins": None,
        "transfer": None,
        "devices": None,
    }
    if importlib.util.find_spec("nixl") is not None:
        with working("looking", quiet=as_json), logs_aside():
            found["plugins"] = _plugins()
            found["transfer"] = trial.trial() if transfer else None
            found["devices"] = look_at_devices(transfer=transfer)
    found["traps"] = traps(found)
    tried = [found["transfer"], *(found["devices"] or {}).get("paths", [])]
    broken = any(one is not None and not one["right"] for one in tried)
    if as_json:
        dump(found)
    else:
        _print(found)
    if broken:
        raise typer.Exit(REFUSED)


@contextlib.contextmanager
def logs_aside() -> Iterator[None]:
    """Sends what NIXL logs to standard error: it writes to standard output, and that is for answers."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _plugins() -> dict[str, list[str]] | str:
    try:
        return trial.plugins()
    except Exception as error:  # Whatever NIXL raises is what a person wants to read.
        return f"{type(error).__name__}: {error}"


def traps(found: dict[str, Any]) -> list[str]:
    """What is known to go wrong on a machine like this."""
    said = []
    packages = found["packages"]
    if packages["nixl"] is None:
        said.append("nixl is not installed: planning works, transfers do not (pip install 'kvreshard[nixl]')")
    elif tuple(int(part) for part in packages["nixl"].split(".")[:2]) < (1, 5):
        said.append("nixl is older than 1.5: it takes no strided rows, so lists are longer (Plan.local_flat)")
    if packages["nixl"] and not (packages["nixl-cu12"] or packages["nixl-cu13"]):
        said.append("nixl without nixl-cu12 or nixl-cu13: its import fails")
    if (os.cpu_count() or 1) <= 2:
        said.append("two cores or fewer: NIXL's progress threads spin, and several agents slow one another down")
    tls = found["environment"].get("UCX_TLS", "")
    if tls and "cuda" not in tls and packages["torch"]:
        said.append(f"UCX_TLS={tls} names no CUDA transport: device memory goes the long way or not at all")
    # `^` leaves out what is named. The transports that notice the failure of a peer, which agents ask for.
    if tls and not tls.startswith("^") and not {"all", "tcp", "ib", "rc", "ud", "dc"} & set(re.split(r"[,_]", tls)):
        said.append(f"UCX_TLS={tls} names neither tcp nor an RDMA transport: NIXL creates no agent")
    if found["packages"]["nixl-cu12"] and found["packages"]["nixl-cu13"]:
        said.append("nixl-cu12 and nixl-cu13 are both installed: nixl takes the one of torch's CUDA, or the first")
    for way in (found["transfer"] or {}).get("transports", ()):
        if way["operation"].startswith("remote memory") and "tcp" in way["transport"]:
            said.append("bytes between processes of this host went over tcp: cma needs the right to trace")
    if sys.platform != "linux":
        said.append(f"NIXL runs on Linux; this is {sys.platform}")
    return said


def _print(found: dict[str, Any]) -> None:
    say(f"kvreshard {found['kvreshard']}, Python {found['python']} on {found['machine']}")
    rows = table("package", "version")
    for name, version in found["packages"].items():
        rows.add_row(name, version or "not installed")
    say(rows)
    plugins = found["plugins"]
    if isinstance(plugins, str):
        say(f"NIXL plugins: {plugins}")
    elif plugins is not None:
        loaded = [f"{name} ({', '.join(kinds)})" for name, kinds in plugins.items() if kinds]
        lacking = [name for name, kinds in plugins.items() if not kinds]
        say(f"NIXL plugins that load: {', '.join(loaded) or 'none'}")
        if lacking:
            say(f"whose libraries are not here: {', '.join(lacking)}")
    for name, value in found["environment"].items():
        say(f"{name}={value}")
    if found["transfer"] is not None:
        said = found["transfer"]
        say(f"a small transfer: {'right' if said['right'] else 'WRONG'}, {said['said']}")
        for way in said["transports"]:
            say(f"  {way['operation']}: {way['transport']}, {way['method']}, {way['times']} times")
    for line in described(found["devices"]) if found["devices"] else ():
        say(line)
    for trap in found["traps"]:
        say(f"trap: {trap}")
    if not found["traps"]:
        say("no known traps")
