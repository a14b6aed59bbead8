"""Pictures for a page: images as PNG inside of it, plots as SVG in the page's own colours."""

import base64
import html
import io
from collections.abc import Sequence

import numpy as np
from PIL import Image
from torch import Tensor


def png(image: Tensor, low: float, high: float) -> str:
    """An image `(c, y, x)` as the address of a picture that lies in the page itself; low is black and high is white."""
    values = (image - low) / max(high - low, 1e-30)
    pixels = np.rint(255 * values.clamp(0, 1).double().numpy()).astype(np.uint8)
    picture = Image.fromarray(pixels.transpose(1, 2, 0)) if len(pixels) == 3 else Image.fromarray(pixels[0])
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def line_plot(points: Sequence[tuple[float, float]], labels: Sequence[str], title: str) -> str:
    """A line through points whose second numbers lie between 0 and 1, at equal distances, with a label below each."""
    left, right, top, bottom, width, height = 60, 30, 12, 36, 640, 240
    step = (width - left - right) / max(len(points) - 1, 1)

    def place(index: int, value: float) -> tuple[float, float]:
        return left + index * step, top + (1 - value) * (height - top - bottom)

    lines = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(title)}">']
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        _, y = place(0, value)
        lines.append(f'<line class="grid" x1="{left}" y1="{y:.1f}" x2="{width - right}" y2="{y:.1f}"/>')
        lines.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.0%}</text>')
    spots = [place(index, value) for index, (_, value) in enumerate(points)]
    lines.append(f'<polyline class="line" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in spots)}"/>')
    for (x, y), label, (_, value) in zip(spots, labels, points, strict=True):
        hint = f"<title>{html.escape(label)}: {value:.1%}</title>"
        lines.append(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="4">{hint}</circle>')
        lines.append(f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle">{html.escape(label)}</text>')
    return "".join([*lines, "</svg>"])
