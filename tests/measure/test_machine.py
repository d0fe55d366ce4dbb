"""The machine is described by published names: those of a company's own systems and builds stay here."""

from __future__ import annotations

import importlib.metadata
import platform

import pytest

from torchmark.measure import machine
from torchmark.records import DeviceInfo


@pytest.mark.parametrize(
    ("release", "name"),
    [
        ({"ID": "debian", "VERSION_ID": "12"}, "Debian 12"),
        ({"ID": "opensuse-leap", "VERSION_ID": "15.6"}, "Opensuse-leap 15"),
        ({"ID": "arch"}, "Arch"),
        ({"ID": "ubuntu", "VERSION_ID": "bigbank"}, "Ubuntu"),
        ({"ID": "bigbank-linux", "VERSION_ID": "7"}, "Linux"),
        ({"ID": "bigbank-linux", "ID_LIKE": "bigbase rhel fedora", "VERSION_ID": "7"}, "Rhel"),
        ({}, "Linux"),
    ],
)
def test_a_distribution_is_named_if_it_is_a_published_one(
    monkeypatch: pytest.MonkeyPatch, release: dict[str, str], name: str
) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: release)
    assert machine.describe_machine().os == name


def test_a_private_build_and_a_renamed_processor_are_described_without_their_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Private:
        version = "2.6.0+acme.internal.git123"

        def locate_file(self, name: str) -> str:
            return name

    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: Private())
    monkeypatch.setattr(machine, "cpu_model", lambda: "host7.bigbank.de /home/x")
    found = machine.describe_machine([DeviceInfo("cuda:0", "GPU of host7.bigbank.de")])
    assert (found.torch, found.cpu, found.devices[0].model) == ("2.6.0+local", "unknown CPU", "GPU of")


def test_a_build_keeps_its_kind_and_a_version() -> None:
    assert machine.read_build("cuda = '12.6'\n") == "CUDA 12.6"
    assert machine.read_build("cuda = '12.6-bigbank'\n") == "CUDA"
