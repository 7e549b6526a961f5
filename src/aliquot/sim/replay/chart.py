"""Charts of replays: allocation and queue over time, and how completion and wait are distributed, a line per policy.

matplotlib is large and draws nothing else here, so it is an extra, and loaded only when a chart is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aliquot.errors import Invalid, Unavailable
from aliquot.sim.replay.engine import Replay

SUFFIXES = (".png", ".svg")
# Colour never speaks alone: each line has its own dashes too.
_LINES = ("-", "--", "-.", ":")
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")


def check(path: str) -> None:
    """Before hours of work: whether the chart can be drawn in the end."""
    if Path(path).suffix not in SUFFIXES:
        raise Invalid(f"{path}: must end in {' or '.join(SUFFIXES)}")
    if not Path(path).absolute().parent.is_dir():
        raise Invalid(f"{path}: its folder does not exist")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise Unavailable("charts need matplotlib", hint="pip install 'aliquot[charts]'") from None


def draw(path: str, title: str, told: Sequence[dict[str, Any]], replays: Sequence[Replay]) -> None:
    import matplotlib

    # The same replay gives the same file: no date, no random names of parts. Words stay words.
    matplotlib.rcParams.update({"svg.hashsalt": "aliquot", "svg.fonttype": "none"})
    from matplotlib.figure import Figure  # not pyplot: no window, no state

    figure = Figure(figsize=(11, 7), layout="constrained")
    figure.suptitle(title)
    (used, completion), (queue, wait) = figure.subplots(2, 2)
    for index, (one, replay) in enumerate(zip(told, replays, strict=True)):
        style = {"linestyle": _LINES[index % 4], "color": _COLOURS[index % 6], "label": one["policy"], "linewidth": 1.3}
        series = one["series"]
        used.plot(series["hours"], [100 * value for value in series["allocation"]], **style)
        queue.plot(series["hours"], series["waiting"], **style)
        ended = [work for work in replay.works if work.finished is not None]
        spent = [(work.finished or 0.0) - work.source.submit for work in ended]
        _distribution(completion, spent, style)
        _distribution(wait, [all_ - work.ran for all_, work in zip(spent, ended, strict=True)], style)
    used.set(title="GPUs in use", xlabel="hours", ylabel="% of all", ylim=(0, 101))
    queue.set(title="Jobs that wait", xlabel="hours", ylabel="jobs", ylim=(0, None))
    for axes, name in ((completion, "Submission to end"), (wait, "Waiting, in all")):
        axes.set(title=name, xlabel="hours", ylabel="% of jobs", ylim=(0, 101))
        axes.set_xscale("symlog", linthresh=0.01)  # from nothing to months
        axes.set_xlim(left=0)
    for axes in (used, queue, completion, wait):
        axes.grid(alpha=0.3)
    figure.legend(*used.get_legend_handles_labels(), loc="outside lower center", ncols=len(told))
    dated = {"Date": None} if path.endswith(".svg") else {}
    figure.savefig(path, dpi=120, metadata=dated)


def _distribution(axes: Any, seconds: list[float], style: dict[str, Any]) -> None:
    ordered = sorted(seconds)
    step = max(1, len(ordered) // 1000)
    shown = ordered[::step]
    axes.plot(
        [one / 3600 for one in shown], [100 * index * step / len(ordered) for index in range(len(shown))], **style
    )
