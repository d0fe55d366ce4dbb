"""The data files hold every figure of the published tables, and each names work that can be done here."""

from __future__ import annotations

import math
import re

import msgspec
import pytest

from torchmark.analyze import grades
from torchmark.errors import UnknownName
from torchmark.measure.cases import check_case, full_params
from torchmark.publications import Figure, Publication, PublishedTable, as_runs, find_publication, names
from torchmark.records import parse_case
from torchmark.workloads import find_workload
from torchmark.workloads.contract import Setting

# Counted by hand in the published tables: figures of each kind by table.
TABLES = {
    "m1-chips": {
        "Compare of inference time": {"measured": 12},
        "Compare of switch and no-switch": {"measured": 12},
        "Compare of revive sdk": {"measured": 5},
    },
    "apple-silicon-bert": {"Devices": {"power": 3}, "Training": {"measured": 24}, "Inference": {"measured": 24}},
    "intel-vs-m2": {"Examples": {"measured": 8, "derived": 4}},
    "simple-add": {"Results": {"measured": 11}},
    "m1-gpu-for-ml": {
        "Performance on BERT": {"measured": 8, "derived": 4},
        "V100": {"measured": 4},
        "P100": {"measured": 4},
        "Performance on Stable Diffusion": {"measured": 1},
    },
}

# Copied by hand: publication, cells that name the row, column, machine, what is printed, and its value in base units.
SPOTS = [
    ("m1-chips", "M1 GPU MLP", "time cost(seconds)", "M1 GPU", "4.8", 4.8),
    ("m1-chips", "Xeon Gold CPU MLP", "time cost(seconds)", "Xeon Gold", "330", 330),
    ("m1-chips", "M1 CPU Resnet50", "time cost(seconds)", "M1 CPU", "206", 206),
    ("m1-chips", "M1 Ultra CPU Resnet50", "time cost(seconds)", "M1 Ultra CPU", "210", 210),
    ("m1-chips", "RTX3090 GPU Resnet50", "time cost(seconds)", "RTX3090", "2.9", 2.9),
    ("m1-chips", "M1 Ultra yes MLP", "time cost(seconds)", "M1 Ultra GPU", "13.0", 13),
    ("m1-chips", "M1 no Resnet50", "time cost(seconds)", "M1 GPU", "16.9", 16.9),
    ("m1-chips", "RTX3090 yes Resnet50", "time cost(seconds)", "RTX3090", "4.5", 4.5),
    ("m1-chips", "M1 Ultra(gpu) revive", "time cost(seconds)", "M1 Ultra GPU", "597", 597),
    ("m1-chips", "M1 (only cpu) revive", "time cost(seconds)", "M1 CPU", "65", 65),
    ("apple-silicon-bert", "M1 Max GPU 32GB", "Peak measured power consumption", "M1 Max GPU", "41W", 41),
    ("apple-silicon-bert", "NVIDIA V100 16GB (SXM2)", "Peak measured power consumption", "V100", "310W", 310),
    ("apple-silicon-bert", "64 512", "M1 Max CPU (32GB)", "M1 Max CPU", "1h 21m 2s", 4862),
    ("apple-silicon-bert", "256 512", "M1 Max CPU (32GB)", "M1 Max CPU", "6h 33m 7s", 23587),
    ("apple-silicon-bert", "256 512", "M1 Max GPU (32GB)", "M1 Max GPU", "175m 4s", 10504),
    ("apple-silicon-bert", "64 128", "T4", "T4", "2m", 120),
    ("apple-silicon-bert", "256 128", "V100 (16GB)", "V100", "-", None),
    ("apple-silicon-bert", "256 512", "T4", "T4", "14m 18s", 858),
    ("apple-silicon-bert", "16 128", "V100 (16GB)", "V100", "4s", 4),
    ("intel-vs-m2", "Example 1", "M2", "M2 Max CPU", "124.96s", 124.96),
    ("intel-vs-m2", "Example 2", "Intel", "Intel i9 CPU", "96.92s", 96.92),
    ("intel-vs-m2", "Example 4", "Speedup factor", "M2 Max CPU", "3.5x", 3.5),
    ("simple-add", "Nvidia 3090 GPU", "Performance (it/s)", "Nvidia 3090 GPU", "670", 670),
    ("simple-add", "Server GPU (Overheat)", "Performance (it/s)", "Server GPU (Overheat)", "55", 55),
    ("simple-add", "AMD Ryzen 5 5600G CPU", "Performance (it/s)", "AMD Ryzen 5 5600G CPU", "25", 25),
    ("m1-gpu-for-ml", "1 128", "MPS", "M1 Pro GPU", "29 ms/it", 29),
    ("m1-gpu-for-ml", "4 512", "CPU", "M1 Pro CPU", "752 ms/it", 752),
    ("m1-gpu-for-ml", "4 128", "T4 GPU", "T4", "26 ms/it", 26),
    ("m1-gpu-for-ml", "4 512", "P100 GPU", "P100", "65 ms/it", 65),
    ("m1-gpu-for-ml", "4 512", "speedup", "M1 Pro GPU", "375.9%", 3.759),
    ("m1-gpu-for-ml", "50 steps", "M1 Pro", "M1 Pro GPU", "1.18s/it", 1.18),
]

PUBLICATIONS = [find_publication(name) for name in names()]
FIGURES = [
    pytest.param(publication, table, figure, id=f"{publication.name}-{'-'.join(figure.labels)}-{figure.machine}")
    for publication in PUBLICATIONS
    for table in publication.tables
    for figure in table.figures
]


def test_every_figure_of_every_table_is_there() -> None:
    kinds = {
        publication.name: {
            table.title: {
                kind: count
                for kind in ("measured", "power", "derived")
                if (count := sum(figure.kind == kind for figure in table.figures))
            }
            for table in publication.tables
        }
        for publication in PUBLICATIONS
    }
    assert kinds == TABLES
    assert sum(len(publication.of_kind("measured")) for publication in PUBLICATIONS) == 113
    assert sum(len(publication.of_kind("power")) for publication in PUBLICATIONS) == 3
    assert sum(len(publication.of_kind("derived")) for publication in PUBLICATIONS) == 8


@pytest.mark.parametrize(("name", "row", "column", "machine", "printed", "value"), SPOTS)
def test_figures_are_those_of_the_tables(
    name: str, row: str, column: str, machine: str, printed: str, value: float | None
) -> None:
    found = {
        (figure.printed, figure.value)
        for figure in find_publication(name).figures
        if (" ".join(figure.labels), figure.column, figure.machine) == (row, column, machine)
    }
    assert (printed, value) in found


def as_number(printed: str) -> float | None:
    """What is printed, read anew; times of day are added up to seconds."""
    if printed == "-":
        return None
    parts = re.findall(r"(\d+)([hms])(?![a-z/])", printed)
    if parts and "." not in printed:
        return float(sum(int(number) * {"h": 3600, "m": 60, "s": 1}[unit] for number, unit in parts))
    number = float(re.match(r"[\d.]+", printed)[0])
    return number / 100 if printed.endswith("%") else number


@pytest.mark.parametrize(("publication", "table", "figure"), FIGURES)
def test_a_value_is_what_is_printed(publication: Publication, table: PublishedTable, figure: Figure) -> None:
    assert figure.value == pytest.approx(as_number(figure.printed))
    assert len(figure.labels) == len(table.headers)
    assert figure.machine in {machine.name for machine in publication.machines}


@pytest.mark.parametrize(
    ("publication", "figure"),
    [(publication, figure) for publication in PUBLICATIONS for figure in publication.of_kind("measured")],
    ids=lambda value: getattr(value, "name", None) or value.case,
)
def test_a_measured_figure_names_work_that_can_be_done_here(publication: Publication, figure: Figure) -> None:
    case = parse_case(figure.case or "")
    assert check_case(case).text == figure.case
    assert case.protocol == "as-published"
    assert case.device == publication.machine(figure.machine).device
    workload, params = find_workload(case.workload), full_params(case)
    assert figure.version == workload.version
    work = workload.work(params, Setting(case.mode, world_size=case.workers))
    if work is None:  # known only once it is prepared
        assert (figure.items, figure.item_unit) == (1, "iteration")
        return
    assert (figure.items, figure.item_unit) == (work.items, work.unit)
    assert figure.item_bytes in (None, work.bytes)


@pytest.mark.parametrize("figure", find_publication("intel-vs-m2").of_kind("measured"), ids=lambda figure: figure.case)
def test_whole_programs_have_the_steps_of_their_epochs(figure: Figure) -> None:
    case = parse_case(figure.case or "")
    params = full_params(case)
    recipe = find_workload(case.workload).recipe
    assert figure.steps == recipe.epochs * math.ceil(params.images / (params.batch * case.workers))


def test_speedups_follow_from_the_figures_next_to_them() -> None:
    for name, slow in (("intel-vs-m2", "Intel i9 CPU"), ("m1-gpu-for-ml", "M1 Pro CPU")):
        measured = {(each.labels, each.machine): each.value for each in find_publication(name).of_kind("measured")}
        for figure in find_publication(name).of_kind("derived"):
            ratio = measured[figure.labels, slow] / measured[figure.labels, figure.machine]
            assert figure.value == pytest.approx(ratio, rel=0.03)  # they were made from more digits than were printed


@pytest.mark.parametrize("publication", PUBLICATIONS, ids=lambda publication: publication.name)
def test_every_note_is_used_and_there_and_helps(publication: Publication) -> None:
    used = {kind for machine in publication.machines for kind in machine.notes}
    used |= {kind for table in publication.tables for kind in table.notes}
    used |= {kind for figure in publication.figures for kind in figure.notes}
    assert used == set(publication.notes)
    assert all(note.cause and note.fix for note in publication.notes.values())
    assert len({machine.name for machine in publication.machines}) == len(publication.machines)
    assert {figure.machine for figure in publication.figures} == {machine.name for machine in publication.machines}


@pytest.mark.parametrize(("publication", "table", "figure"), FIGURES)
def test_a_figure_with_few_digits_says_so(publication: Publication, table: PublishedTable, figure: Figure) -> None:
    """Half of the last digit is 2% of the figure or more."""
    del publication, table
    digits = re.match(r"[\d.]+", figure.printed)
    decimals = len(digits[0].partition(".")[2]) if digits else 0
    coarse = figure.kind == "measured" and figure.value is not None and 0.5 * 10**-decimals / figure.value >= 0.02
    assert ("rounded" in figure.notes) == coarse


@pytest.mark.parametrize(
    ("name", "machine", "case", "kind"),
    [
        ("m1-chips", "Xeon Gold", "mlp/infer", "thread-oversubscription"),
        ("m1-chips", "M1 CPU", "resnet50/infer", "slow-convolutions"),
        ("m1-chips", "M1 GPU", "mlp/infer", "no-sync"),
        ("m1-chips", "M1 GPU", "mlp/infer", "model-move-counted"),
        ("m1-chips", "M1 CPU", "mlp/infer", "autograd-graph"),
        ("m1-chips", "M1 Ultra GPU", "venv-ppo/train", "not-comparable"),
        ("apple-silicon-bert", "M1 Max GPU", "bert-classify/train:batch=256", "swapping"),
        ("apple-silicon-bert", "M1 Max GPU", "bert-classify/infer", "slows-down"),
        ("intel-vs-m2", "M2 Max CPU", "mnist-cnn/train", "cpu-only"),
        ("intel-vs-m2", "Intel i9 CPU", "cifar-cnn/train", "whole-process"),
        ("simple-add", "Nvidia 3090 GPU", "tensor-add/infer", "folded"),
        ("simple-add", "Nvidia 3090 GPU", "tensor-add/infer", "wrong-claim"),
        ("simple-add", "Server GPU (Overheat)", "tensor-add/infer", "overheated"),
        ("m1-gpu-for-ml", "T4", "bert-encode/infer", "two-names"),
        ("m1-gpu-for-ml", "M1 Pro GPU", "stable-diffusion/infer", "progress-bar"),
    ],
)
def test_what_is_doubtful_is_said(name: str, machine: str, case: str, kind: str) -> None:
    (run,) = as_runs(find_publication(name), machine, repeats=True)
    cautions = [each.cautions for each in run.results if each.case.text.startswith(case)]
    assert any(kind == caution.kind for several in cautions for caution in several)


def test_a_field_that_no_one_knows_is_refused() -> None:
    content = msgspec.to_builtins(find_publication("simple-add"))
    assert msgspec.convert(content, Publication) == find_publication("simple-add")
    content["tables"][0]["figures"][0]["colour"] = "green"
    with pytest.raises(msgspec.ValidationError, match="colour"):
        msgspec.convert(content, Publication)


def test_a_name_that_is_almost_right_is_helped() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'm1-chips'"):
        find_publication("m1-chip")


def test_every_kind_of_note_is_known_to_be_a_flaw_or_not() -> None:
    kinds = {kind for publication in PUBLICATIONS for kind in publication.notes}
    assert kinds == set(grades._ADDED) | set(grades._ADDED_ONCE)


def test_hardware_that_is_not_named_or_not_sound_is_joined_with_nothing() -> None:
    machines = [machine for publication in PUBLICATIONS for machine in publication.machines]
    assert [machine.name for machine in machines if not machine.known_as] == [
        "Server CPU", "Server GPU (Overheat)", "Tencent Cloud",
    ]  # fmt: skip
