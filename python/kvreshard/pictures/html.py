"""HTML of pages, plans and reports: pieces for notebooks, and whole pages that need no network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import kvreshard as kvr
from kvreshard.pictures.svg import format_svg, plan_svg
from kvreshard.pictures.words import rank_words

MISSING = "a page of HTML needs jinja2: pip install 'kvreshard[cli]'"
COLOURS = {"error": "#d1242f", "warning": "#9a6700", "note": "#57606a"}


@dataclass(frozen=True)
class Panel:
    """One plan of a page."""

    title: str
    svg: str
    runs: int
    runs_per_page: int
    bytes: int
    bytes_per_run: int


def format_html(fmt: kvr.PageFormat, /) -> str:
    """A page format for a notebook: its drawing, or its text where it has too many pieces to draw."""
    try:
        return format_svg(fmt)
    except kvr.LimitExceeded:
        return f"<code>{escape(str(fmt))}</code>"


def plan_html(plan: kvr.Plan, /) -> str:
    """A plan for a notebook: the drawing of its first layer, or its words where there is too much to draw."""
    try:
        return plan_svg(plan)
    except (kvr.LimitExceeded, kvr.LayoutError):
        return f"<pre>{escape(plan.explain())}</pre>"


def report_html(report: kvr.Report, /) -> str:
    """A report for a notebook: a row a finding."""
    rows = "".join(
        f'<tr><td style="color:{COLOURS[finding.severity]}">{finding.severity}</td>'
        f'<td style="text-align:left">{escape(str(finding.error))}</td></tr>'
        for finding in report.findings
    )
    verdict = f"advice: {report.advice}" if report.accepted else "refused"
    return f"<p><b>{verdict}</b></p><table>{rows}</table>"


def page(plans: Sequence[kvr.Plan], /, *, layer: str | None = None, title: str = "kvreshard plan") -> str:
    """A self-contained page of HTML about plans: a drawing each, chosen by rank, with every piece explained.

    Args:
        plans: The plans; at least one.
        layer: The layer to draw; the first one where not given.
        title: The title.

    Raises:
        ImportError: jinja2 is not installed.
        ValueError: There is no plan.
        LayoutError, LimitExceeded: As :meth:`kvreshard.Plan.picture`.
    """
    try:
        from jinja2 import Environment, PackageLoader
    except ImportError as error:
        raise ImportError(MISSING) from error
    if not plans:
        raise ValueError("a page needs at least one plan")
    panels = [
        Panel(
            title=f"{rank_words(plan.local)} {'from' if plan.direction == 'read' else 'to'} {rank_words(plan.remote)}",
            svg=plan_svg(plan, layer),
            runs=plan.runs,
            runs_per_page=plan.runs_per_page,
            bytes=plan.bytes,
            bytes_per_run=plan.bytes_per_run,
        )
        for plan in plans
    ]
    environment = Environment(loader=PackageLoader("kvreshard.pictures", "templates"), autoescape=True)
    return environment.get_template("page.html.j2").render(title=title, panels=panels)
