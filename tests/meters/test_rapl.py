"""The processor's energy counters: which of them count, how they begin anew, and who may read them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchmark import meters
from torchmark.meters.cpu import open_rapl

REFUSED = "unavailable because only root may read the energy counter of the processor"
FULL = 262_143_328_850  # as a server's package reports it


def zone(folder: Path, name: str, energy_uj: int, most: int = FULL) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in (("name", name), ("energy_uj", energy_uj), ("max_energy_range_uj", most)):
        (folder / file).write_text(f"{text}\n")
    return folder


def server(root: Path) -> Path:
    """Two packages with cores and memory inside, a zone of everything, and the same package by another way."""
    powercap = root / "sys/class/powercap"
    for package in (0, 1):
        own = zone(powercap / f"intel-rapl:{package}", f"package-{package}", 1_000_000)
        zone(own / f"{own.name}:0", "core", 700_000)
        zone(own / f"{own.name}:1", "dram", 500_000, most=65_712_999_613)
    zone(powercap / "intel-rapl:2", "psys", 9_000_000)
    zone(powercap / "intel-rapl-mmio:0", "package-0", 1_000_000)
    (powercap / "intel-rapl").mkdir()
    return powercap


def test_packages_and_their_memory_count_once(tmp_path: Path) -> None:
    powercap = server(tmp_path)
    meter = open_rapl(tmp_path)
    assert meter.provenance == "measured by RAPL: the whole processor and its memory"
    assert meter.read() == 0.0
    for name, joules in (("intel-rapl:0", 30), ("intel-rapl:1", 20), ("intel-rapl:2", 500), ("intel-rapl-mmio:0", 30)):
        zone(powercap / name, "package" if "rapl:2" not in name else "psys", 1_000_000 + joules * 1_000_000)
    zone(powercap / "intel-rapl:0/intel-rapl:0:0", "core", 29_000_000)
    zone(powercap / "intel-rapl:0/intel-rapl:0:1", "dram", 4_500_000)
    assert meter.read() == pytest.approx(54.0)


@given(st.lists(st.integers(0, FULL), min_size=1, max_size=20))
def test_a_counter_that_begins_anew_goes_on_counting(growths: list[int]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "sys/class/powercap/intel-rapl:0"
        zone(package, "package-0", 5_000_000)
        meter = open_rapl(Path(folder))
        assert meter.read() == 0.0
        total = 5_000_000
        for growth in growths:
            total += growth
            zone(package, "package-0", total % (FULL + 1))
            found = meter.read()
        assert found == pytest.approx((total - 5_000_000) / 1e6, abs=1e-6)


def test_a_machine_without_counters_says_so() -> None:
    assert "as in most virtual machines" in open_rapl(Path("/nowhere")).provenance


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_counters_for_root_alone_say_so_by_their_rights(tmp_path: Path) -> None:
    (server(tmp_path) / "intel-rapl:0/energy_uj").chmod(0)
    assert open_rapl(tmp_path).provenance == REFUSED


def test_a_counter_that_refuses_says_so(tmp_path: Path) -> None:
    file = server(tmp_path) / "intel-rapl:1/energy_uj"
    file.unlink()
    file.mkdir()  # it is there, and cannot be read
    assert open_rapl(tmp_path).provenance == REFUSED


def test_memory_that_cannot_be_read_is_left_out_of_all_packages(tmp_path: Path) -> None:
    (server(tmp_path) / "intel-rapl:0/intel-rapl:0:1/energy_uj").unlink()
    assert open_rapl(tmp_path).provenance == "measured by RAPL: the whole processor"


def test_energy_is_part_of_the_conditions(tmp_path: Path) -> None:
    powercap = server(tmp_path)
    read = meters.open_conditions(root=tmp_path)
    before = read()
    zone(powercap / "intel-rapl:0", "package-0", 8_000_000)
    assert (before.energy_j, read().energy_j) == (0.0, pytest.approx(7.0))
    (powercap / "intel-rapl:1/energy_uj").unlink()
    assert read().energy_j is None  # half of it would be wrong
