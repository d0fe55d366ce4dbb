"""A run as JSON: the records as they are, under their own names and in base units."""

from __future__ import annotations

import msgspec

from torchmark.records import Run


def render_json(run: Run) -> str:
    """One object: `run` is the header with what is known of the whole run, `results` is one entry per case."""
    about = msgspec.to_builtins(run.header)
    about |= {"process_spread": run.process_spread, "problems": run.problems}
    whole = msgspec.json.encode({"run": about, "results": run.results})
    return msgspec.json.format(whole, indent=2).decode() + "\n"


def render_jsonl(run: Run) -> str:
    """One line per result, for tools that read line by line."""
    return "".join(msgspec.json.encode(result).decode() + "\n" for result in run.results)
