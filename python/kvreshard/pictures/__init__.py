"""Drawings of pages and plans: SVG, and pages of HTML that need nothing else.

:func:`format_svg` draws a page, :func:`plan_svg` both sides of a plan with the runs between them; :func:`page` writes a
self-contained HTML page about one or several plans, for people to look at with a mouse, a keyboard or a finger. The
pieces and runs come from :meth:`kvreshard.Plan.picture`; nothing here computes an offset.
"""

from kvreshard.pictures.html import format_html, page, plan_html, report_html
from kvreshard.pictures.svg import format_svg, plan_svg

__all__ = ["format_html", "format_svg", "page", "plan_html", "plan_svg", "report_html"]
