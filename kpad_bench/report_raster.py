"""A drawing as PNG. Draws the same shapes as the SVG, with matplotlib; knows no benchmark."""

from __future__ import annotations

import io
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, FancyBboxPatch, Rectangle

from kpad_bench.report_figure import Dot, Figure, Line, Mark, Rect, Shape, Text, colours

#: A unit of a drawing is a pixel of the page; two pixels of the file, for print and dense screens.
_UNITS_PER_INCH, _SCALE = 72, 2
_ANCHORS = {"start": "left", "middle": "center", "end": "right"}


def png(figure: Figure) -> bytes:
    """The drawing in the light colours, twice the size of the page's."""
    canvas = Canvas(figsize=(figure.width / _UNITS_PER_INCH, figure.height / _UNITS_PER_INCH))
    axes = canvas.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, figure.width)
    axes.set_ylim(figure.height, 0)
    axes.axis("off")
    light = {role: pair[0] for role, pair in colours().items()}
    order = 1.0
    for mark in figure.marks:
        for shape in mark.shapes if isinstance(mark, Mark) else (mark,):
            _draw(axes, shape, light, order)
            order += 1
    out = io.BytesIO()
    FigureCanvasAgg(canvas).print_figure(
        out, dpi=_UNITS_PER_INCH * _SCALE, format="png", facecolor=light["paper"], metadata={"Software": None}
    )
    return out.getvalue()


def _draw(axes: Any, shape: Shape, light: dict[str, str], order: float) -> None:
    if isinstance(shape, Text):
        axes.text(
            shape.x, shape.y, shape.text, fontsize=shape.size * 0.93, color=light[shape.fill],
            ha=_ANCHORS[shape.anchor], va="baseline", weight="bold" if shape.is_bold else "normal",
            zorder=order, parse_math=False,
        )  # fmt: skip
    elif isinstance(shape, Line):
        xs, ys = zip(*shape.points, strict=True)
        dash: Any = (0, (4, 3)) if shape.is_dashed else "solid"
        axes.add_line(
            Line2D(xs, ys, color=light[shape.stroke], linewidth=shape.width, linestyle=dash, zorder=order)
        )
    elif shape.fill != "clear":
        axes.add_patch(_area(shape, light, order))


def _area(shape: Rect | Dot, light: dict[str, str], order: float) -> Any:
    look: dict[str, Any] = {
        "facecolor": light[shape.fill] if shape.fill else "none",
        "edgecolor": light[shape.stroke] if shape.stroke else "none",
        "zorder": order,
    }
    if isinstance(shape, Dot):
        return Circle((shape.x, shape.y), shape.radius, linewidth=1, **look)
    if not shape.radius:
        return Rectangle((shape.x, shape.y), shape.width, shape.height, linewidth=shape.stroke_width, **look)
    return FancyBboxPatch(
        (shape.x + shape.radius, shape.y + shape.radius),
        shape.width - 2 * shape.radius,
        shape.height - 2 * shape.radius,
        boxstyle=f"round,pad={shape.radius},rounding_size={shape.radius}",
        linewidth=shape.stroke_width,
        **look,
    )
