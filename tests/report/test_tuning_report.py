"""What a search and a fit have found, as text: the answer first, nothing wider than the terminal, code that runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from torchmark.records import BreakEven, Contribution, Fitting, Result, Run, Tried, Tuning, parse_case
from torchmark.report import render
from torchmark.report.charts import find_series, speeds
from torchmark.report.searches import fitting_document, snippet, tuning_document

DEFAULT = parse_case("resnet50/infer@cpu/float32")
OPTIONS = "compile+threads=2+layout=channels-last+isa=avx512-core-bf16+wait=passive"
WINNER = parse_case(f"resnet50/infer@cpu/bfloat16+{OPTIONS}")
LAST = parse_case("resnet50/infer@cpu/float32+layout=channels-last")


@pytest.fixture
def run(make_header: Callable[..., object], make_result: Callable[..., Result]) -> Run:
    reason = "it was ended by SIGILL during first step"
    results = (
        make_result(DEFAULT.text, 1.2),
        make_result(LAST.text, 0.9),
        make_result(WINNER.text, 0.3),
        make_result("resnet50/infer@cpu/bfloat16", status="crashed", reason=reason, estimate=None),
    )
    return Run(make_header(tuple(each.case.text for each in results)), results)  # type: ignore[arg-type]


@pytest.fixture
def tuned() -> Tuning:
    return Tuning(
        DEFAULT, WINNER, gain=4.0, low=3.8, high=4.2, pairs=3, same_precision=LAST, same_precision_gain=1.33,
        contributions=(Contribution("bfloat16", 2.0), Contribution("channels-last", 2.0)),
        break_even=BreakEven(19.0, 0.2, 95.0),
        relative={DEFAULT.text: 1.0, LAST.text: 1.33, WINNER.text: 4.0},
        duration_s=101.0,
    )  # fmt: skip


def shown_tuning(run: Run, tuned: Tuning, *how: object) -> str:
    return render(tuning_document(replace(run, tuning=tuned)), *how)  # type: ignore[arg-type]


def shown_fitting(run: Run, found: Fitting, tried: Sequence[tuple[Tried, Result]], *how: object) -> str:
    """As it is stored: every size is a case of its own."""
    cases = [f"resnet50/infer:batch={each.size}@cpu/float32" for each, _ in tried]
    results = [replace(result, case=parse_case(case)) for case, (_, result) in zip(cases, tried, strict=True)]
    found = replace(found, tried=tuple(replace(each, case=case) for case, (each, _) in zip(cases, tried, strict=True)))
    return render(fitting_document(replace(run, fitting=found, results=tuple(results))), *how)  # type: ignore[arg-type]


def fitting(limit_bytes: float, bound: str, largest: int | None = None, **more: object) -> Fitting:
    return Fitting(DEFAULT, "batch", limit_bytes, bound, largest, unit="image", duration_s=12.0, **more)  # type: ignore[arg-type]


def probed(size: int, result: Result, rate: float = 100.0) -> tuple[Tried, Result]:
    return Tried("", size, rate * size, peaks=(4e8 + 1e7 * size,)), result


LINE = {"fixed_bytes": 4e8, "item_bytes": 1e7, "line_error": 0.004}


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_answer_comes_first_and_everything_fits(run: Run, tuned: Tuning, width: int) -> None:
    text = shown_tuning(run, tuned, "table", width)
    assert max(map(len, text.partition("To paste")[0].splitlines())) <= width  # the rest is never broken
    words = " ".join(text.split())
    for reported in (
        "is 4.00× as fast as the default (3.80 to 4.20).",
        "Best in float32: channels-last, 1.33× as fast by the search.",
        "Compiling takes 19.0 s, saves 200 ms a step: pays off after 95 steps.",
        "crashed",
        "SIGILL",
        "model = torch.compile(model)",
    ):
        assert reported in words


def test_every_format_has_the_winner(run: Run, tuned: Tuning) -> None:
    assert f"{WINNER.text},ok" in shown_tuning(run, tuned, "csv")
    found = json.loads(shown_tuning(run, tuned, "json"))
    assert (found["tuned"]["winner"], found["tuned"]["low"]) == (WINNER.text, 3.8)
    assert len(found["results"]) == 4
    assert "```python" in shown_tuning(run, tuned, "md")
    assert json.loads(shown_tuning(run, tuned, "jsonl"))["snippet"] == snippet(DEFAULT, WINNER)


def test_what_may_be_chance_is_not_recommended(run: Run, tuned: Tuning) -> None:
    refuted = replace(tuned, winner=DEFAULT, unconfirmed=WINNER, gain=1.02, low=0.99, high=1.05)
    text = shown_tuning(run, refuted, "table", 200)
    assert "Stay with the default: bfloat16" in text
    assert "1.020× as fast as the default (0.990 to 1.050)" in text
    assert "import torch" not in text
    disturbed = replace(refuted, gain=15.7, low=0.404, high=614.0)
    text = " ".join(shown_tuning(run, disturbed, "table", 200).split())
    assert "Inconclusive: bfloat16" in text
    assert "614" not in text
    assert "close other programs and run: torchmark " in text
    assert "import torch" not in text


def test_the_command_that_does_it_again_is_not_broken_by_a_narrow_terminal(run: Run, tuned: Tuning) -> None:
    assert f"\ntorchmark run {tuned.winner.text}\n" in shown_tuning(run, tuned, "table", 40)


def test_a_stored_search_shows_what_it_came_to(run: Run, tuned: Tuning) -> None:
    stored = replace(run, tuning=tuned)
    words = " ".join(render(stored, "table", 80).split())
    assert "is 4.00× as fast as the default (3.80 to 4.20)." in words
    assert "model = torch.compile(model)" in words
    assert json.loads(render(stored, "json"))["run"]["tuning"]["gain"] == 4.0


def test_a_chart_says_once_what_all_candidates_share(run: Run) -> None:
    (panel,) = speeds.find_speeds(find_series([run]))
    assert panel.title == "resnet50 · infer"
    short = "bfloat16 · compile · threads=2 · channels-last · wait=passive · isa=avx512-core-bf16"
    assert [bar["label"] for bar in panel.rows] == ["float32", "channels-last", short]


def test_times_are_those_of_common_rounds_and_chance_is_named(run: Run, tuned: Tuning) -> None:
    seen = {DEFAULT.text: 1.0, LAST.text: 1.2, WINNER.text: 1.25}
    table = shown_tuning(run, replace(tuned, winner=LAST, same_precision=LAST, relative=seen), "table", 200)
    rows = {line.split()[0]: " ".join(line.split()) for line in table.splitlines() if "/s " in line}
    assert rows["channels-last"].endswith("1.20× fastest")
    assert "1.00 s" in rows["channels-last"]  # 1.2 s of the default by 1.2, though it took 0.9 s in rounds of its own
    assert rows["default"].endswith("1.000× default")
    winner = next(row for name, row in rows.items() if name.startswith("bfloat16"))
    assert winner.endswith("1.25× within chance")


def test_the_snippet_is_python_that_sets_the_environment_first() -> None:
    code = snippet(DEFAULT, WINNER)
    compile(code, "snippet", "exec")
    assert code.index('os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16"') < code.index("import torch")
    assert code.index('os.environ["OMP_WAIT_POLICY"] = "PASSIVE"') < code.index("import torch")
    assert code.index("model.to(torch.bfloat16)") < code.index("torch.compile(model)")
    assert snippet(DEFAULT, DEFAULT) == ""


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_the_snippet_can_be_copied_from_a_narrow_terminal(run: Run, tuned: Tuning, mode: str) -> None:
    ways = "+pinned+threads=2+layout=channels-last+attention=eager+isa=avx512-core-bf16+bind=close+wait=passive"
    winner = parse_case(f"resnet50/{mode}:batch=64@cpu/float16+compile=max-autotune-no-cudagraphs{ways}")
    default = parse_case(f"resnet50/{mode}@cpu/float32+per-step")
    code = snippet(default, winner)
    assert "pin_memory" in code
    shown = shown_tuning(run, replace(tuned, default=default, winner=winner), "table", 80)
    assert "\n".join(f"  {line}".rstrip() for line in code.splitlines()) in shown


@pytest.mark.parametrize("field", ["dtype", "compile", "layout", "isa", "matmul"])
def test_no_code_is_made_of_what_a_stranger_wrote(run: Run, field: str) -> None:
    evil = "float16); __import__('os').system('id'"
    changes = {field: evil} if field in ("dtype", "compile") else {"options": {field: evil}}
    winner = replace(DEFAULT, **changes)
    assert snippet(DEFAULT, winner) == ""
    shown = render(replace(run, tuning=Tuning(DEFAULT, winner, 2.0, 1.9, 2.1, 3)), "table", 120)
    assert "To paste" not in shown


def test_the_snippet_does_to_a_model_what_was_measured() -> None:
    import torch

    scope: dict[str, object] = {"model": torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3))}
    exec(snippet(DEFAULT, parse_case("resnet50/infer@cpu/bfloat16+layout=channels-last")), scope)
    ready, model = scope["ready"], scope["model"]
    assert callable(ready)
    assert callable(model)
    image = ready(torch.rand(1, 3, 8, 8))
    assert image.dtype == model(image).dtype == torch.bfloat16
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert ready(torch.ones(2, dtype=torch.int64)).dtype == torch.int64


def test_what_fits_is_reported_with_bars_and_the_line_of_memory(run: Run, make_result: Callable[..., Result]) -> None:
    result = make_result()
    tried = [probed(size, result, 100.0 * min(size, 8) / size) for size in (1, 2, 4, 8, 16)]
    lost = make_result(status="oom", reason="can't allocate memory", estimate=None)
    tried.append((Tried("", 17), lost))
    found = fitting(8e8, "memory", 16, efficient=8, **LINE)
    text = shown_fitting(run, found, tried, "table", 80)
    assert max(map(len, text.splitlines())) <= 80
    words = " ".join(text.split())
    assert "Batch 16 is the largest that fits into 800 MB; 17 does not." in words
    assert "Most efficient: batch 8, 800 image/s, the highest rate, in 1 process." in words
    assert "Memory = 400 MB + 10.0 MB x batch (within 0.4%)." in words
    bars = [line.count("█") for line in text.splitlines() if "image/s" in line and "█" in line]
    assert bars == [3, 6, 12, 24, 24]
    assert "in a process of its own." in words
    whole = json.loads(shown_fitting(run, found, tried, "json"))["fitted"]
    assert (whole["largest"], whole["probes"][0]["bytes"]) == (16, 4.1e8)
    csv = shown_fitting(run, found, tried, "csv")
    assert "17,false,oom" in csv
    assert ",1,true,ok,,410000000.0," in csv


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        ("time", "Batch 16 fits into 8.00 GB, and larger ones may: by what it takes, up to about 760."),
        ("interrupted", "up to about 760."),
        ("parameter", "Batch 16 fits into 8.00 GB. "),
        ("crashed", "Batch 16 fits into 8.00 GB. "),
    ],
)
def test_what_was_not_ended_by_memory_is_not_called_the_largest(run: Run, make_result, bound: str, words: str) -> None:
    found = fitting(8e9, bound, 16, efficient=16, **LINE)
    tried = [probed(size, make_result()) for size in (8, 16)]
    reported = " ".join(shown_fitting(run, found, tried, "table", 80).split())
    assert words in reported
    assert "is the largest" not in reported
    assert "largest that fitted, most efficient" in reported


def test_what_is_known_to_be_too_large_is_reported_and_never_promised(run: Run, make_result) -> None:
    found = fitting(6e8, "time", 8, efficient=8, **LINE)

    def words(found: Fitting, status: str) -> str:
        lost = Tried("", 16), make_result(status=status, estimate=None)
        return shown_fitting(run, found, [*(probed(size, make_result()) for size in (4, 8)), lost], "table", 80)

    assert "Batch 8 fits into 600 MB, and larger ones may; 16 does not." in words(found, "oom")
    text = words(replace(found, bound="memory"), "crashed")
    assert "Batch 8 is the largest that fits into 600 MB; 16 does not." in text
    assert "Nothing is known" in shown_fitting(run, fitting(6e8, "interrupted"), [], "table", 80)


def test_memory_that_differs_from_process_to_process_is_reported(run: Run, make_result: Callable[..., Result]) -> None:
    def words(*peaks: float) -> str:
        answer = Tried("", 16, 100.0, len(peaks), peaks), make_result()
        return " ".join(shown_fitting(run, fitting(6e8, "memory", 16), [answer], "table", 80).split())

    reported = words(5.0e8, 5.6e8, 5.2e8)
    assert "1 size in 12.0 s, each in a process of its own; batch 16 fitted in 3 of 3." in reported
    assert "The same size took 500 MB to 560 MB: memory layout varies by chance." in reported
    assert "is chance" not in words(5.0e8, 5.01e8)


@pytest.mark.parametrize(
    ("default", "lines"),
    [
        ("resnet50/infer@cpu/float32+layout=channels-last", ("torch.contiguous_format",)),
        ("mlp/infer@cuda:0/float32+matmul=high", ('set_float32_matmul_precision("highest")', "allow_tf32 = False")),
        ("mlp/infer@cpu/float32+isa=avx2+bind=close", ("import torch",)),
        ("bert-classify/infer@cpu/float32+gradients=inference-mode", ("with torch.no_grad():",)),
        ("bert-encode/infer@cpu/float32+gradients=no-grad", ("with torch.inference_mode():",)),
    ],
)
def test_where_the_usual_way_wins_the_snippet_goes_back_to_it(default: str, lines: tuple[str, ...]) -> None:
    before = parse_case(default)
    code = snippet(before, parse_case(default.partition("+")[0]))
    compile(code, "snippet", "exec")
    assert all(line in code for line in lines)
    assert "usual" not in code.lower()
    assert "channels_last" not in code


def test_a_size_that_crashed_for_another_reason_is_not_said_to_be_too_large(run: Run, make_result) -> None:
    lost = make_result(status="crashed", reason="my_model.py, line 7: KeyError", estimate=None)
    words = " ".join(shown_fitting(run, fitting(8e8, "crashed"), [(Tried("", 1), lost)], "table", 80).split())
    assert "Batch 1 crashed, so nothing is known." in words
    assert "Memory did not end it" in words
    assert "line 7: KeyError" in words
    assert "fits into" not in words


def test_how_much_of_the_machine_is_used_is_reported_where_that_is_known(run: Run, tuned: Tuning) -> None:
    from torchmark.records import Peak

    shares = {DEFAULT.text: 0.2, WINNER.text: 0.8}
    peaks = {text: Peak(share, "compute") for text, share in shares.items()}
    results = tuple(replace(each, peak=peaks.get(each.case.text)) for each in run.results)
    text = shown_tuning(replace(run, results=results), tuned, "table", 200)
    words = "Of this machine's peak it uses 80%, where the default uses 20%, each of the peak of its own number format."
    assert words in text


def test_a_search_that_compared_nothing_does_not_say_that_nothing_is_faster(run: Run, tuned: Tuning) -> None:
    short = replace(tuned, winner=DEFAULT, same_precision=DEFAULT, gain=None, low=None, high=None, stopped="budget")
    text = shown_tuning(run, replace(short, relative={}, contributions=()), "table", 200)
    assert "Inconclusive: the budget was spent before any settings were compared." in text
