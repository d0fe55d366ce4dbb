"""What a study came to, in words: the same for the command that made it, for `show` and for the page."""

from __future__ import annotations

from importlib import import_module

from torchmark.records import Run

_MAKERS = {"tuning": "tuning", "fitting": "fitting", "limiting": "limits", "live": "live"}  # modules of the reports


def conclusion(run: Run) -> list[str]:
    """The answer in one sentence, then what it rests on and what is missing; empty for a plain run."""
    makers = [import_module(f"torchmark.report.{maker}") for name, maker in _MAKERS.items() if getattr(run, name)]
    return [line for maker in makers for line in maker.conclusion(run)]


def render_study(run: Run, format: str, width: int, color: bool) -> str | None:  # noqa: A002
    """The whole report of a study that has one of its own; None for any other run."""
    if run.tuning and format in ("table", "md"):
        from torchmark.analyze.tuning import recall_tuned
        from torchmark.report.tuning import render_tuned

        return render_tuned(run, recall_tuned(run), format, width, color)
    if run.fitting and run.fitting.tried and format in ("table", "md"):
        from torchmark.analyze.fitting import recall_fitted
        from torchmark.report.fitting import render_fitted

        return render_fitted(run, run.fitting.case, recall_fitted(run), format, width, color)
    if run.limiting and format == "table":
        from torchmark.report.limits import render_limits

        return render_limits(run, width, color)
    return None
