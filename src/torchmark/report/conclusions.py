"""What a study came to, in words: the same for the command that made it, for `show` and for the page."""

from __future__ import annotations

from torchmark.records import Run


def conclusion(run: Run) -> list[str]:
    """The answer in one sentence, then what it rests on and what is missing; empty for a plain run."""
    from torchmark.report import fitting, limits, live, tuning

    makers = {"tuning": tuning, "fitting": fitting, "limiting": limits, "live": live}
    return [line for name, maker in makers.items() if getattr(run, name) for line in maker.conclusion(run)]


def render_study(run: Run, format: str, width: int, color: bool) -> str | None:  # noqa: A002
    """The whole report of a study that has one of its own; None for any other run."""
    from torchmark.analyze.fitting import recall_fitted
    from torchmark.analyze.tuning import recall_tuned
    from torchmark.report.fitting import render_fitted
    from torchmark.report.limits import render_limits
    from torchmark.report.tuning import render_tuned

    if run.tuning and format in ("table", "md"):
        return render_tuned(run, recall_tuned(run), format, width, color)
    if run.fitting and run.fitting.tried and format in ("table", "md"):
        return render_fitted(run, run.fitting.case, recall_fitted(run), format, width, color)
    return render_limits(run, width, color) if run.limiting and format == "table" else None
