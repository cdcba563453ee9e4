"""The picture of a profile: throughput against latency by batch size, for planning capacity."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from bench.profile_curve import Curve

FORMATS = (".svg", ".png")


class CannotPlot(Exception):
    """No picture can be made there; the message says why."""


def check(path: Path) -> None:
    """Say at once what would come out after minutes of measuring. Raises CannotPlot."""
    if path.suffix not in FORMATS:
        raise CannotPlot(f"--plot {path}: the name should end with {' or '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise CannotPlot(f"--plot {path}: there is no folder {path.parent}")
    if find_spec("matplotlib") is None:
        raise CannotPlot("--plot needs matplotlib: pip install 'headway[plots]'")


def plot(curve: Curve, title: str, path: Path) -> None:
    """Draw the curve into a file. Needs matplotlib."""
    # Imported here: it is an extra of the installation, and slow.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    mix, points = curve.mix, curve.points
    # Letters as letters, no date: the same figures are the same file.
    with rc_context({"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "headway"}):
        figure = Figure(figsize=(6, 4), layout="constrained")
        axis = figure.subplots()
        axis.plot(
            [point.decoded_per_s for point in points],
            [point.step_s * 1e3 for point in points],
            color="0.6",
            marker=".",
            label=f"decodes alone at {mix.context:.0f} tokens",
        )
        axis.plot(
            [point.tokens_per_s for point in points],
            [point.itl_s * 1e3 for point in points],
            marker=".",
            label=f"prompts of {mix.prompt}, completions of {mix.output}",
        )
        for point in points:
            at = (point.tokens_per_s, point.itl_s * 1e3)
            axis.annotate(f"{point.size}", at, textcoords="offset points", xytext=(4, -9))
            if point.size == curve.knee:
                axis.plot(*at, marker="o", linestyle="", color="C1", label="knee")
        axis.set_xlabel("tokens/s")
        axis.set_ylabel("time between tokens, ms")
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)
        axis.set_title(title)
        axis.legend(frameon=False)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
