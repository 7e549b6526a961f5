"""Charts of replays, a line per policy: allocation and waiting jobs over time, distributions of completion and wait.

matplotlib is large and used nowhere else, so it is an optional extra, and imported only when a chart is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aliquot.errors import Invalid, Unavailable
from aliquot.sim.replay.engine import Replay

SUFFIXES = (".png", ".svg")
# Lines differ in dashes too, for readers who cannot tell the colours apart.
_LINES = ("-", "--", "-.", ":")
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")


def check(path: str) -> None:
    """Raise before the replay, which may take hours, if the chart cannot be drawn after it."""
    if Path(path).suffix not in SUFFIXES:
        raise Invalid(f"{path}: must end in {' or '.join(SUFFIXES)}")
    if not Path(path).absolute().parent.is_dir():
        raise Invalid(f"{path}: its folder does not exist")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise Unavailable("charts need matplotlib", hint="pip install 'aliquot[charts]'") from None


def draw(path: str, title: str, figures_by_policy: Sequence[dict[str, Any]], replays: Sequence[Replay]) -> None:
    import matplotlib

    # The same replay gives the same file: no date and no random ids. Text stays text in SVG.
    matplotlib.rcParams.update({"svg.hashsalt": "aliquot", "svg.fonttype": "none"})
    from matplotlib.figure import Figure  # not pyplot: no window, no state

    figure = Figure(figsize=(11, 7), layout="constrained")
    figure.suptitle(title)
    (used, completion), (queue, wait) = figure.subplots(2, 2)
    for index, (figures, replay) in enumerate(zip(figures_by_policy, replays, strict=True)):
        style = {
            "linestyle": _LINES[index % 4],
            "color": _COLOURS[index % 6],
            "label": figures["policy"],
            "linewidth": 1.3,
        }
        series = figures["series"]
        used.plot(series["hours"], [100 * value for value in series["allocation"]], **style)
        queue.plot(series["hours"], series["waiting"], **style)
        ended = [job for job in replay.jobs if job.finished is not None]
        completions = [(job.finished or 0.0) - job.trace_job.submit for job in ended]
        _distribution(completion, completions, style)
        _distribution(wait, [total - job.ran for total, job in zip(completions, ended, strict=True)], style)
    used.set(title="GPUs in use", xlabel="hours", ylabel="% of all", ylim=(0, 101))
    queue.set(title="Jobs that wait", xlabel="hours", ylabel="jobs", ylim=(0, None))
    for axes, name in ((completion, "Submission to end"), (wait, "Waiting, in all")):
        axes.set(title=name, xlabel="hours", ylabel="% of jobs", ylim=(0, 101))
        axes.set_xscale("symlog", linthresh=0.01)  # from seconds to months
        axes.set_xlim(left=0)
    for axes in (used, queue, completion, wait):
        axes.grid(alpha=0.3)
    figure.legend(*used.get_legend_handles_labels(), loc="outside lower center", ncols=len(figures_by_policy))
    metadata = {"Date": None} if path.endswith(".svg") else {}
    figure.savefig(path, dpi=120, metadata=metadata)


def _distribution(axes: Any, seconds: list[float], style: dict[str, Any]) -> None:
    ordered = sorted(seconds)
    step = max(1, len(ordered) // 1000)
    sample = ordered[::step]
    percent = [100 * index * step / len(ordered) for index in range(len(sample))]
    axes.plot([value / 3600 for value in sample], percent, **style)
