"""Takes the screenshots of this folder anew: `python docs/img/draw.py`. Look at them before they are kept."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import kvreshard as kvr
from kvreshard.pictures import page

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from tests.chromium import Browser  # noqa: E402

SHUFFLED, PACKED = "k[h d/8 n d%8] v[h n/8 d n%8]", "h n k[d] v[d]"


def rank(notation: str, engine: str, tp: tuple[int, int], *, n: int = 16, d: int = 32) -> kvr.RankLayout:
    """One rank of an engine of four heads."""
    fmt = kvr.PageFormat(notation, h=4 // tp[1], n=n, d=d, dtype="bf16")
    base = 1 << (40 if engine == "prefill" else 41)
    segment = kvr.Segment(kvr.Region(base, 64 * fmt.page_bytes), fmt, pages=64)
    return kvr.RankLayout(engine=engine, tp=tp, layers=[kvr.Layer("layers.0", [segment], totals={"h": 4})])


def main() -> None:
    remote = rank(SHUFFLED, "prefill", (0, 1))
    halves = [kvr.plan(rank(SHUFFLED, "decode", (at, 2)), remote) for at in range(2)]
    small = rank(SHUFFLED, "prefill", (0, 2), n=8, d=16)
    converted = kvr.plan(rank(PACKED, "decode", (0, 2), n=8, d=16), small)
    with tempfile.TemporaryDirectory() as folder, Browser(Path(folder) / "profile") as browser:

        def shoot(
            name: str, html: str, *, only: str | None, dark: bool = False, width: int = 1100, height: int = 780
        ) -> None:
            path = Path(folder) / "page.html"
            path.write_text(html, encoding="utf-8")
            browser.open(path, dark=dark, width=width, height=height)
            if only is None:
                box = browser.run(
                    "(() => { const b = document.querySelectorAll('rect.piece[data-run]')[20].getBoundingClientRect();"
                    " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
                )
                browser.point(*box)
                (HERE / name).write_bytes(browser.picture())
                return
            box = browser.run(
                f"(() => {{ const b = document.querySelector('{only}').getBoundingClientRect();"
                " return [b.x, b.y, b.width, b.height]; })()"
            )
            clip = {"x": box[0], "y": box[1], "width": box[2], "height": box[3], "scale": 1}
            (HERE / name).write_bytes(browser.picture(clip))

        shoot("two-slots.png", page(halves[:1]), only="svg.kvr")
        shoot("conversion.png", page([converted]), only="svg.kvr")
        shoot("page-dark.png", page(halves, title="AITER shuffle, TP 1 to 2"), only=None, dark=True)
        shoot("page-phone.png", page(halves, title="AITER shuffle, TP 1 to 2"), only=None, width=390, height=700)


if __name__ == "__main__":
    main()
