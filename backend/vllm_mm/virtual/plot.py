"""A picture of the results: how long requests waited, and which model was resident when. Needs matplotlib."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from vllm_mm.virtual.records import Outcome

INSTALL = (
    "drawing needs matplotlib; install it with `pip install 'vllm-mm[plot]'`, in a clone with "
    "`.venv/bin/python -m pip install '.[plot]'`, or take --json"
)


class NoPlot(Exception):
    """matplotlib is not there, or the file cannot be written."""


def plot(outcomes: Sequence[Outcome], path: Path) -> None:
    """One PNG for all policies: the distribution of waits, and a lane per model with its loads. Raises NoPlot."""
    try:
        import_module("matplotlib").use("Agg")
        pyplot = import_module("matplotlib.pyplot")
    except ImportError as error:
        raise NoPlot(INSTALL) from error
    try:
        _draw(pyplot, outcomes, path)
    except OSError as error:
        raise NoPlot(f"{path} cannot be written: {error.strerror or error}") from error


def _draw(pyplot: Any, outcomes: Sequence[Outcome], path: Path) -> None:
    rows = 1 + len(outcomes)
    figure, axes = pyplot.subplots(rows, 1, figsize=(11, 3 + 2.4 * len(outcomes)), squeeze=False, layout="constrained")
    waits = axes[0][0]
    for outcome in outcomes:
        values = sorted(max(s.leased - s.arrived, 0.01) for s in outcome.served)
        waits.plot(values, [100 * (i + 1) / len(values) for i in range(len(values))], label=outcome.policy)
    waits.set(xscale="log", xlabel="seconds from arrival to lease", ylabel="% of requests", title="Waits")
    waits.grid(visible=True, alpha=0.3)
    waits.legend()
    for axis, outcome in zip((row[0] for row in axes[1:]), outcomes, strict=True):
        models = sorted(outcome.stays)
        for place, model in enumerate(models):
            loads = [
                (load.begun, load.ready - load.begun)
                for load in outcome.loads
                if load.model == model and load.begun is not None and load.ready is not None
            ]
            axis.broken_barh(_resident(outcome, model), (place - 0.4, 0.8), color="#3b7dd8")
            axis.broken_barh(loads, (place - 0.4, 0.8), color="#e0a030")
        axis.set(xlim=(0, outcome.ended), ylim=(-0.6, len(models) - 0.4), yticks=range(len(models)), yticklabels=models)
        axis.set(title=f"{outcome.policy}: resident (blue), loading (orange)", xlabel="seconds")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _resident(outcome: Outcome, model: str) -> list[tuple[float, float]]:
    """From ready until the end of the drain, as (begin, length)."""
    return [(begin, end - begin) for begin, end in outcome.stays.get(model, [])]
