"""The audit believes an honest device and catches each way in which a device can mislead."""

import pytest

from torchmark.devices import open_device
from torchmark.measure.check import audit_device, check_outputs, prove_times


def failures(monkeypatch, script):
    monkeypatch.setenv("TORCHMARK_FAKE", script)
    return {proof.name for proof in prove_times(open_device("fake")) if proof.passed is False}


def test_an_honest_device_passes(monkeypatch):
    assert failures(monkeypatch, "step=0.01") == set()


def test_a_device_with_a_slow_synchronisation_is_still_honest(monkeypatch):
    assert failures(monkeypatch, "step=0.01,sync=0.0001") == set()


def test_missing_synchronisation_is_caught(monkeypatch):
    assert "synchronisation is real" in failures(monkeypatch, "fault=no-sync")


@pytest.mark.parametrize("fault", ["nan", "scaled", "cached"])
def test_wrong_outputs_are_caught_in_every_dtype_that_gives_any(monkeypatch, fault):
    monkeypatch.setenv("TORCHMARK_FAKE", f"fault={fault}")
    proofs = list(check_outputs(lambda _: None, "fake", ("float64", "float32")))
    assert [proof.passed for proof in proofs] == [False, False]


def test_the_cpu_computes_rightly_and_reports_its_clock_and_cost():
    proofs = {proof.name: proof for proof in audit_device(open_device("cpu"))}
    for name in ("outputs are right in float32", "outputs are right in float64", "the clock is fine and steady"):
        assert proofs[name].passed, proofs[name]
    assert "ns for an empty step" in proofs["the harness is cheap"].figure
    # How times compare is not asserted on a machine that other tests keep busy; that they were compared is.
    assert "times as long" in proofs["time grows with work"].figure


def test_events_that_agree_are_a_proof_of_their_own(monkeypatch):
    from torchmark.records import Block

    monkeypatch.setenv("TORCHMARK_FAKE", "")
    device = open_device("fake")
    plain = device.timer
    device.timer = lambda run: lambda count: Block(total := plain(run)(count).total_s, (total / count,) * count)
    proofs = {proof.name: proof.passed for proof in prove_times(device)}
    assert proofs["events agree with the clock"] is True
