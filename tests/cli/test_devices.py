"""`torchmark devices` shows what is here, and its audit answers with an exit code."""

import json

import pytest

from torchmark import cli


@pytest.fixture
def invoke(capsys):
    def call(*arguments):
        code = cli.main(["devices", *arguments])
        return code, *capsys.readouterr()

    return call


def test_the_table_names_device_threads_torch_and_dtypes(invoke):
    code, out, _ = invoke()
    assert code == 0, out
    for word in (
        "cpu",
        "torch 2.",
        "Threads:",
        "cores allowed",
        "float64",
        "bfloat16",
        "GiB",
        "Meters of cpu: energy ",
    ):
        assert word in out


def test_json_is_one_object_in_base_units(invoke):
    found = json.loads(invoke("--format", "json", "--device", "cpu")[1])
    assert found["machine"]["devices"][0]["name"] == "cpu"
    assert found["machine"]["devices"][0]["memory_bytes"] > 2**28
    assert len(found["dtypes"]) == 4
    assert found["threads"]["cores_allowed"] >= 1
    assert all(caution["cause"] and caution["cure"] for caution in found["cautions"])
    sources = found["meters"]["cpu"]
    assert set(sources) == {"energy", "clock", "temperature", "throttling"}
    assert all(source.startswith(("measured by ", "unavailable because ")) for source in sources.values())


@pytest.mark.parametrize(("fault", "code"), [("none", 0), ("no-sync", 1), ("cached", 1)])
def test_the_audit_fails_where_a_proof_fails(invoke, monkeypatch, fault, code):
    monkeypatch.setenv("TORCHMARK_FAKE", f"fault={fault}")
    got, out, _ = invoke("--audit", "--device", "fake")
    assert got == code, out
    assert ("FAIL" in out) == bool(code)
    assert "tests passed." in out


def test_the_audit_speaks_json(invoke, monkeypatch):
    monkeypatch.setenv("TORCHMARK_FAKE", "fault=nan")
    code, out, _ = invoke("--audit", "--device", "fake", "--format", "json")
    assert code == 1
    proofs = json.loads(out)["proofs"]
    assert {proof["device"] for proof in proofs} == {"fake"}
    assert any(proof["passed"] is False for proof in proofs)


def test_an_unknown_device_gets_the_nearest(invoke):
    code, _, err = invoke("--device", "cup")
    assert code == 2
    assert "'cpu'" in err
