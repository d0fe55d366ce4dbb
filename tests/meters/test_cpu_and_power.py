"""Clocks, heat, batteries and power modes are read from recorded system trees."""

import os

import pytest

from torchmark.meters.cpu import open_vitals, read_pmset, read_power
from torchmark.meters.process import allowed_cores

CORE = "sys/devices/system/cpu/cpu0"


def tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert {0, 1} <= allowed_cores()


def test_a_laptop_reports_clock_heat_and_throttling(tmp_path):
    tree(
        tmp_path,
        {
            f"{CORE}/cpufreq/scaling_cur_freq": 2_000_000,
            "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": 3_000_000,
            f"{CORE}/thermal_throttle/core_throttle_count": 4,
            f"{CORE}/thermal_throttle/package_throttle_count": 10,
            "sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count": 1,
            "sys/devices/system/cpu/cpu1/thermal_throttle/package_throttle_count": 10,
            "sys/class/thermal/thermal_zone0/type": "acpitz",
            "sys/class/thermal/thermal_zone0/temp": 20_000,
            "sys/class/thermal/thermal_zone7/type": "x86_pkg_temp",
            "sys/class/thermal/thermal_zone7/temp": 81_500,
        },
    )
    meters = open_vitals(tmp_path)
    assert [meters[name].read() for name in ("clock", "temperature", "throttling")] == [2.5e9, 81.5, 15]


def test_an_amd_machine_reports_its_temperature_through_its_sensor(tmp_path):
    tree(tmp_path, {"sys/class/hwmon/hwmon2/name": "k10temp", "sys/class/hwmon/hwmon2/temp1_input": 55_000})
    assert open_vitals(tmp_path)["temperature"].read() == 55.0


def test_a_file_that_vanishes_or_lies_gives_none(tmp_path):
    tree(tmp_path, {f"{CORE}/cpufreq/scaling_cur_freq": 2_000_000})
    meter = open_vitals(tmp_path)["clock"]
    tree(tmp_path, {f"{CORE}/cpufreq/scaling_cur_freq": "<unknown>"})
    assert meter.read() is None
    assert open_vitals(tmp_path)["temperature"].provenance.startswith("unavailable because")


@pytest.mark.parametrize(
    ("files", "on_battery"),
    [
        ({"AC/type": "Mains", "AC/online": 1, "BAT0/type": "Battery", "BAT0/status": "Full"}, False),
        ({"AC/type": "Mains", "AC/online": 0, "BAT0/type": "Battery", "BAT0/status": "Discharging"}, True),
        ({"mouse/type": "Battery", "mouse/status": "Discharging", "mouse/scope": "Device"}, None),
        ({}, None),
    ],
)
def test_battery(tmp_path, files, on_battery):
    tree(tmp_path, {f"sys/class/power_supply/{name}": text for name, text in files.items()})
    assert read_power(tmp_path, "linux").on_battery is on_battery


@pytest.mark.parametrize(
    ("governor", "driver", "preference", "profile", "saving"),
    [
        ("powersave", "acpi-cpufreq", "", "", True),
        ("powersave", "intel_pstate", "balance_performance", "balanced", False),
        ("powersave", "intel_pstate", "power", "balanced", True),
        ("performance", "intel_pstate", "performance", "low-power", True),
        ("performance", "intel_pstate", "performance", "performance", False),
    ],
)
def test_power_saving_is_distinguished_from_a_driver_that_only_calls_it_so(
    tmp_path, governor, driver, preference, profile, saving
):
    files = {
        f"{CORE}/cpufreq/scaling_governor": governor,
        f"{CORE}/cpufreq/scaling_driver": driver,
        f"{CORE}/cpufreq/energy_performance_preference": preference,
        "sys/firmware/acpi/platform_profile": profile,
    }
    power = read_power(tree(tmp_path, files), "linux")
    assert power.saving is saving
    assert governor in power.mode


def test_macos_low_power_mode_and_battery():
    settings = "Currently in use:\n standby              1\n lowpowermode         1\n"
    power = read_pmset(settings, "Now drawing from 'Battery Power'\n -InternalBattery-0 (id=1)\t80%; discharging;\n")
    assert (power.saving, power.on_battery, power.mode) == (True, True, "low power")
    assert read_pmset("", "").on_battery is None
    assert read_pmset(" lowpowermode 0\n", "Now drawing from 'AC Power'\n").saving is False
