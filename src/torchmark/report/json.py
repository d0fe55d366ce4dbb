"""A run as JSON: the records as they are, under their own names and in base units. Nothing in it moves a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from torchmark.analyze.headline import Headline
from torchmark.analyze.money import Prices, cost_of
from torchmark.records import Result, Run
from torchmark.report.text import clean_values, escape_json


def render_json(run: Run, more: dict[str, Any] | None = None, prices: Prices | None = None) -> str:
    """One object: `run` is the header with what is known of the whole run, `results` is one entry per case."""
    return pretty(_object(run, prices) | (more or {}))


def render_runs(
    runs: Sequence[Run],
    prices: Prices | None = None,
    more: dict[str, Any] | None = None,
    headlines: Sequence[Headline | None] = (),
) -> str:
    """One object: `runs` has for each of them what `render_json` writes."""
    objects = [_object(run, prices) for run in runs]
    for each, headline in zip(objects, headlines, strict=False):
        each |= {"headline": headline} if headline else {}
    return pretty((more or {}) | {"runs": objects})


def _object(run: Run, prices: Prices | None) -> dict[str, Any]:
    about = msgspec.to_builtins(run.header)
    cases = dict.fromkeys((*run.header.cases, *(result.case.text for result in run.results)))  # a search adds some
    about |= {"cases": [*cases], "process_spread": run.process_spread, "problems": run.problems}
    studies = {name: getattr(run, name) for name in ("tuning", "fitting", "limiting", "live")}
    about |= {name: study for name, study in studies.items() if study}
    priced = {"prices": prices} if prices else {}
    return {"run": about, **priced, "results": [_priced(result, prices) for result in run.results]}


def _priced(result: Result, prices: Prices | None) -> Any:
    """With `cost` beside the fields of the record, where prices were named."""
    return msgspec.to_builtins(result) | {"cost": cost_of(result, prices)} if prices else result


def render_jsonl(run: Run, prices: Prices | None = None) -> str:
    """One line per result, for tools that read line by line."""
    return lines(_priced(result, prices) for result in run.results)


def pretty(value: Any) -> str:
    """Any value as JSON, indented."""
    return escape_json(msgspec.json.format(_encoded(value), indent=2).decode()) + "\n"


def lines(values: Iterable[Any]) -> str:
    """Each value as JSON on a line of its own."""
    return "".join(escape_json(_encoded(value).decode()) + "\n" for value in values)


def _encoded(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # a name that is not UTF-8
        return msgspec.json.encode(clean_values(msgspec.to_builtins(value)))
