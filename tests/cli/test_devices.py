"""`torchmark devices` shows what is here, and its audit answers with an exit code."""

import json

import pytest
from click.testing import CliRunner

from torchmark.cli.devices import command
from torchmark.errors import UnknownName


def invoke(*arguments, **environment):
    return CliRunner().invoke(command, arguments, env=environment)


def test_the_table_names_device_threads_torch_and_dtypes():
    answer = invoke()
    assert answer.exit_code == 0, answer.output
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
        assert word in answer.output


def test_json_is_one_object_in_base_units():
    answer = invoke("--format", "json", "--device", "cpu")
    found = json.loads(answer.stdout)
    assert found["machine"]["devices"][0]["name"] == "cpu"
    assert found["machine"]["devices"][0]["memory_bytes"] > 2**28
    assert len(found["dtypes"]) == 4
    assert found["threads"]["cores_allowed"] >= 1
    assert all(caution["cause"] and caution["cure"] for caution in found["cautions"])
    told = found["meters"]["cpu"]
    assert set(told) == {"energy", "clock", "temperature", "throttling"}
    assert all(source.startswith(("measured by ", "unavailable because ")) for source in told.values())


@pytest.mark.parametrize(("fault", "code"), [("none", 0), ("no-sync", 1), ("cached", 1)])
def test_the_audit_fails_where_a_proof_fails(fault, code):
    answer = invoke("--audit", "--device", "fake", TORCHMARK_FAKE=f"fault={fault}")
    assert answer.exit_code == code, answer.output
    assert ("FAIL" in answer.output) == bool(code)
    assert "proofs hold." in answer.output


def test_the_audit_speaks_json():
    answer = invoke("--audit", "--device", "fake", "--format", "json", TORCHMARK_FAKE="fault=nan")
    assert answer.exit_code == 1
    proofs = json.loads(answer.stdout)["proofs"]
    assert {proof["device"] for proof in proofs} == {"fake"}
    assert any(proof["passed"] is False for proof in proofs)


def test_an_unknown_device_gets_the_nearest():
    answer = invoke("--device", "cup")
    assert isinstance(answer.exception, UnknownName)
    assert "'cpu'" in answer.exception.cure
