"""A run as JSON: the records as they are, under their own names and in base units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from torchmark.records import Run


def render_json(run: Run, more: dict[str, Any] | None = None) -> str:
    """One object: `run` is the header with what is known of the whole run, `results` is one entry per case."""
    return _written(_object(run) | (more or {}))


def render_runs(runs: Sequence[Run]) -> str:
    """One object: `runs` has for each of them what `render_json` writes."""
    return _written({"runs": list(map(_object, runs))})


def _object(run: Run) -> dict[str, Any]:
    about = msgspec.to_builtins(run.header)
    about |= {"process_spread": run.process_spread, "problems": run.problems}
    return {"run": about, "results": run.results}


def _written(whole: dict[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode() + "\n"


def render_jsonl(run: Run) -> str:
    """One line per result, for tools that read line by line."""
    return "".join(msgspec.json.encode(result).decode() + "\n" for result in run.results)
