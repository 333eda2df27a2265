"""A figure as plain shapes: what they are, their colours in light and dark, and how they become SVG.

Knows no benchmark. Shapes name the role of a colour, not the colour: one drawing serves the page in both
schemes, the SVG file and, through ``report_raster``, the PNG.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple

#: Role -> colour in the light and in the dark scheme.
PALETTE = {
    "paper": ("#ffffff", "#131a22"),
    "ink": ("#1b2430", "#e6ebf1"),
    "muted": ("#566273", "#9fabba"),
    "grid": ("#dde3ea", "#2b3642"),
    "axis": ("#8b96a5", "#6b7888"),
    "clear": ("#00000000", "#00000000"),
    "ours": ("#1d5ba4", "#6cb2f0"),
    "other": ("#b4540a", "#f3a35c"),
    "base": ("#76808e", "#8b97a6"),
    "bad": ("#b3261e", "#ff8f85"),
    "pale": ("#dce8f5", "#1d3346"),
    "palebad": ("#f8dedb", "#4a2523"),
}
#: Ends and middle of the ramp that shades Ks: pale to dark on paper, dark to bright on a dark page.
_RAMPS = (
    ("#d8e8f5", "#6ea9d8", "#2263a8", "#0a2c5e"),
    ("#1d3a55", "#2a6394", "#5aa9df", "#d3ecfb"),
)
#: Steps of the ramp. More Ks than steps share the last.
N_STEPS = 8
FONT = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif"
#: Most of a row that a name may take.
NAME_WIDTH = 240
#: Widths of characters over the size of the font: DejaVu Sans, the widest of the fonts above.
_NARROW, _WIDE = frozenset("ijlI.,:;|' -()[]/"), frozenset("mwMW@%~≈")
_WIDTHS = {"narrow": 0.4, "usual": 0.64, "capital": 0.72, "wide": 0.98}


class Rect(NamedTuple):
    """A box; ``radius`` rounds its corners."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    stroke: str = ""
    stroke_width: float = 1
    radius: float = 0


class Line(NamedTuple):
    """A line through points; dashed where asked for."""

    points: tuple[tuple[float, float], ...]
    stroke: str
    width: float = 1
    is_dashed: bool = False


class Dot(NamedTuple):
    """A circle."""

    x: float
    y: float
    radius: float
    fill: str
    stroke: str = ""


class Text(NamedTuple):
    """One line of text; ``anchor`` is start, middle or end, ``y`` its base line."""

    x: float
    y: float
    text: str
    size: float = 12
    fill: str = "ink"
    anchor: str = "start"
    is_bold: bool = False


Shape = Rect | Line | Dot | Text


class Mark(NamedTuple):
    """Shapes that show one value: the value in words, and facts that a program may read."""

    shapes: tuple[Shape, ...]
    title: str
    facts: Mapping[str, str] = {}


class Table(NamedTuple):
    """Rows of text under their titles; ``notes`` stand below. Columns in ``words`` sort as words."""

    name: str
    title: str
    columns: list[str]
    rows: list[list[str]]
    words: frozenset[int] = frozenset({0})
    notes: tuple[str, ...] = ()


class Figure(NamedTuple):
    """A drawing, what it says, and its values as a table."""

    name: str
    title: str
    #: How to read it.
    caption: str
    width: float
    height: float
    marks: list[Mark | Shape]
    table: Table


def step_colours() -> list[tuple[str, str]]:
    """The colours of the ramp, light and dark, one pair for each step."""
    return [
        (_on_ramp(_RAMPS[0], i / (N_STEPS - 1)), _on_ramp(_RAMPS[1], i / (N_STEPS - 1)))
        for i in range(N_STEPS)
    ]


def step(rank: int, n: int) -> int:
    """The step of the ramp for one of ``n`` ordered values."""
    return 2 if n < 2 else min(N_STEPS - 1, round(rank * (N_STEPS - 1) / (n - 1)))


def colours() -> dict[str, tuple[str, str]]:
    """Every role and its two colours; ``k0`` .. are steps of the ramp, ``on-k0`` .. text on them."""
    found = dict(PALETTE)
    for i, pair in enumerate(step_colours()):
        found[f"k{i}"] = pair
        found[f"on-k{i}"] = (_readable(pair[0]), _readable(pair[1]))
    return found


def style(scheme: int, prefix: str = "") -> str:
    """CSS rules for the roles in the light (0) or the dark (1) scheme."""
    rules = []
    for role, pair in colours().items():
        rules.append(f"{prefix}.f-{role}{{fill:{pair[scheme]}}}{prefix}.s-{role}{{stroke:{pair[scheme]}}}")
    return "".join(rules)


def svg(figure: Figure, *, is_file: bool = False) -> str:
    """The drawing as an SVG element; as a file of its own it brings its colours (light) and a background."""
    size = f'viewBox="0 0 {number(figure.width)} {number(figure.height)}"'
    body = "".join(_svg(mark) for mark in figure.marks)
    if not is_file:
        return (
            f'<svg class="figure" data-figure="{escape(figure.name)}" {size} width="{number(figure.width)}" '
            f'height="{number(figure.height)}" role="img" aria-label="{escape(figure.title)}" tabindex="0">'
            f"{body}</svg>"
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} width="{number(figure.width)}" '
        f'height="{number(figure.height)}" role="img"><title>{escape(figure.title)}</title>'
        f"<desc>{escape(figure.caption)}</desc><style>text{{font-family:{FONT}}}{style(0)}</style>"
        f'<rect class="f-paper" width="100%" height="100%"/>{body}</svg>\n'
    )


def _svg(mark: Mark | Shape) -> str:
    if isinstance(mark, Mark):
        facts = "".join(f' data-{name}="{escape(value)}"' for name, value in mark.facts.items())
        inside = "".join(_svg(shape) for shape in mark.shapes)
        return f'<g class="mark"{facts}><title>{escape(mark.title)}</title>{inside}</g>'
    if isinstance(mark, Text):
        anchor = "" if mark.anchor == "start" else f' text-anchor="{mark.anchor}"'
        bold = ' font-weight="600"' if mark.is_bold else ""
        return (
            f'<text class="f-{mark.fill}" x="{number(mark.x)}" y="{number(mark.y)}" '
            f'font-size="{number(mark.size)}"{anchor}{bold}>{escape(mark.text)}</text>'
        )
    if isinstance(mark, Line):
        dash = ' stroke-dasharray="4 3"' if mark.is_dashed else ""
        points = " ".join(f"{number(x)},{number(y)}" for x, y in mark.points)
        return (
            f'<polyline class="s-{mark.stroke}" fill="none" stroke-width="{number(mark.width)}"{dash} '
            f'points="{points}"/>'
        )
    return _svg_area(mark)


def _svg_area(mark: Rect | Dot) -> str:
    classes = " ".join(
        [*([f"f-{mark.fill}"] if mark.fill else []), *([f"s-{mark.stroke}"] if mark.stroke else [])]
    )
    bare = "" if mark.fill else ' fill="none"'
    if isinstance(mark, Dot):
        place = f'cx="{number(mark.x)}" cy="{number(mark.y)}" r="{number(mark.radius)}"'
        return f'<circle class="{classes}"{bare} {place}/>'
    place = f'x="{number(mark.x)}" y="{number(mark.y)}" '
    place += f'width="{number(mark.width)}" height="{number(mark.height)}"'
    rounded = f' rx="{number(mark.radius)}"' if mark.radius else ""
    border = f' stroke-width="{number(mark.stroke_width)}"' if mark.stroke and mark.stroke_width != 1 else ""
    return f'<rect class="{classes}"{bare} {place}{rounded}{border}/>'


def number(value: float) -> str:
    """A coordinate to a tenth of a pixel."""
    text = f"{value:.1f}"
    return text.removesuffix(".0")


def fitted(text: str, width: float, size: float = 12) -> str:
    """Text that is no wider than ``width``: the middle of a long name goes, its ends tell it from others."""
    if width_of([text], size) <= width:
        return text
    most = len(text)
    while True:
        most -= 1
        end = (most - 1) // 2
        cut = f"{text[: most - 1 - end]}…{text[len(text) - end :]}"
        if most <= 3 or width_of([cut], size) <= width:
            return cut


def name_at(text: str, x: float, y: float, most: float = NAME_WIDTH) -> Mark:
    """A name that ends at ``x``, cut to fit; whole when pointed at."""
    return Mark((Text(x, y, fitted(text, most), 12, anchor="end"),), text)


def width_of(texts: Iterable[str], size: float = 12, most: float = math.inf) -> float:
    """Width of the longest of some texts, at most ``most``."""
    return min(most, max((sum(map(_character, text)) for text in texts), default=0) * size)


def _character(character: str) -> float:
    if character in _NARROW:
        return _WIDTHS["narrow"]
    if character in _WIDE or ord(character) > 0x2E7F:
        return _WIDTHS["wide"]
    return _WIDTHS["capital" if character.isupper() else "usual"]


def ticks(low: float, high: float, n: int = 5) -> list[float]:
    """Round values that span ``low`` to ``high``, about ``n`` of them, beginning at or below ``low``."""
    span = (high - low) or abs(high) or 1.0
    power = 10 ** math.floor(math.log10(span / n))
    unit = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m * n >= span * 0.999)
    first, last = math.floor(low / unit + 1e-9), math.ceil(high / unit - 1e-9)
    return [round(unit * i, 10) for i in range(first, last + 1)]


class Scale(NamedTuple):
    """Values to coordinates: ``low`` lies at ``start``, ``high`` at ``end``."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / ((self.high - self.low) or 1.0) * (self.end - self.start)


def scale(values: Sequence[float], start: float, end: float, n: int = 5) -> tuple[Scale, list[float]]:
    """A scale over round values around some values, and its ticks."""
    marks = ticks(min(values), max(values), n)
    return Scale(marks[0], marks[-1], start, end), marks


def _on_ramp(ramp: Sequence[str], share: float) -> str:
    place = share * (len(ramp) - 1)
    i = min(int(place), len(ramp) - 2)
    both = zip(_parts(ramp[i]), _parts(ramp[i + 1]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * (place - i)):02x}" for a, b in both)


def _parts(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def _readable(colour: str) -> str:
    """Ink or paper, whichever is told better from the colour (WCAG 2 relative luminance)."""
    light, dark = PALETTE["paper"][0], PALETTE["ink"][0]
    return max((light, dark), key=lambda text: contrast(text, colour))


def contrast(one: str, other: str) -> float:
    """Contrast of two colours as WCAG 2 defines it: 1 to 21."""
    a, b = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (a + 0.05) / (b + 0.05)


def _luminance(colour: str) -> float:
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (value / 255 for value in _parts(colour))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
