"""The commands. Each prints for a person, or JSON with `--json`; none computes an offset."""

from __future__ import annotations

from typing import Annotated

import typer

import kvreshard as kvr
from kvreshard.cli import checking, describing, planning, running

app = typer.Typer(
    name="kvreshard",
    help="Will this prefill and this decode engine work together, what will be sent, why was it refused.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(describing.formats, name="formats")
app.command("explain")(describing.explain)
app.command("plan")(planning.plan)
app.command("check")(checking.check)
app.command("verify")(checking.verify)
app.command("matrix")(planning.matrix)
app.command("dump-vllm")(describing.dump_vllm)
app.command(
    "demo", context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
)(running.demo)
app.command("calibrate")(running.calibrate)
app.command("doctor")(running.doctor)


def _version(wanted: bool) -> None:
    if wanted:
        print(kvr.__version__)
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Exit codes: 0 fine, 1 refused or found wrong, 2 asked wrongly."""
