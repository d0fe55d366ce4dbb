"""A session: rounds over all cases in fresh processes, and a failure that harms no other case."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from torchmark.measure.cases import memory_needed
from torchmark.measure.session import Event, Finished, Plan, Session, Started, results_so_far
from torchmark.records import DeviceInfo, Machine, Result, Run, parse_case

FIRST, SECOND = (parse_case(f"null/infer@fake/float32+threads={number}") for number in (1, 2))
PLAN = Plan((FIRST, SECOND), budget_s=30.0)


def events(plan: Plan = PLAN, done=None, machine: Machine | None = None) -> list[Event]:
    return list(Session(plan, machine, lambda _: None).events(done or {}))


def latest(seen: list[Event]) -> dict[str, Result]:
    return {event.result.case.text: event.result for event in seen if isinstance(event, Finished)}


def test_processes_take_turns_over_the_cases(play) -> None:
    play("stream=iid2,step=0.01")
    seen = events(replace(PLAN, budget_s=300.0))  # on a busy machine, a process may take long to start
    started = [(event.case, event.process) for event in seen if isinstance(event, Started)]
    assert started == [(case, process) for process in range(3) for case in (FIRST, SECOND)]
    finished = [event for event in seen if isinstance(event, Finished)]
    assert [(event.result.case, event.process) for event in finished] == started
    assert [len(event.result.processes) for event in finished] == [1, 1, 2, 2, 3, 3]
    assert all(len(event.samples_s) == event.result.processes[-1].sample_count for event in finished)


def test_the_last_word_on_a_case_is_over_all_its_processes(play) -> None:
    play("stream=iid2,step=0.01")
    seen = events()
    found = latest(seen)[FIRST.text]
    assert (found.status, found.rigor, len(found.processes)) == ("ok", "default", 3)
    assert found.estimate is not None
    assert "single-process" not in found.estimate.flags
    assert found.estimate.sample_count == sum(process.sample_count for process in found.processes)
    first = next(event.result.budget_s for event in seen if isinstance(event, Finished))
    assert first is not None
    assert first <= 1.0  # processes before samples
    assert found.budget_s is not None
    assert found.budget_s > first


@pytest.mark.parametrize("changes", [{"rigor": "quick"}, {"steps": 4}], ids=["quick", "steps"])
def test_one_process_is_enough_where_no_more_was_asked_for(play, changes) -> None:
    play("stream=iid2,step=0.01")
    plan = Plan((FIRST,), budget_s=60.0, **changes)
    found = latest(events(plan))[FIRST.text]
    assert plan.processes == len(found.processes) == 1
    assert found.rigor == plan.rigor
    assert found.processes[0].sample_count == (plan.steps or found.processes[0].sample_count)


def test_rigor_sets_the_number_of_processes() -> None:
    assert [Plan((FIRST,), rigor=rigor).processes for rigor in ("quick", "default", "rigorous")] == [1, 3, 5]


def test_a_case_that_fails_is_tried_once_and_the_others_go_on(play) -> None:
    play("fault=crash")
    seen = events()
    assert [(event.case, event.process) for event in seen if isinstance(event, Started)] == [(FIRST, 0), (SECOND, 0)]
    assert {found.status for found in latest(seen).values()} == {"crashed"}
    assert "SIGABRT" in (latest(seen)[SECOND.text].reason or "")


@pytest.mark.parametrize(("fault", "status", "timeout_s"), [("oom", "oom", 60.0), ("hang", "timeout", 1.0)])
def test_every_fault_has_its_status(play, fault: str, status: str, timeout_s: float) -> None:
    play(f"fault={fault}")
    found = latest(events(replace(PLAN, cases=(FIRST,), timeout_s=timeout_s)))[FIRST.text]
    assert (found.status, found.estimate, found.version) == (status, None, 1)
    assert found.reason


def test_a_device_that_is_not_here_is_unsupported_and_harms_no_other_case(play) -> None:
    play("stream=iid2,step=0.01")
    absent = parse_case("null/infer@xpu:7/float32")
    found = latest(events(Plan((absent, FIRST), rigor="quick", budget_s=60.0)))
    assert found[absent.text].status == "unsupported"
    assert "xpu" in (found[absent.text].reason or "")
    assert found[FIRST.text].status == "ok"


def test_what_the_budget_has_no_time_for_is_skipped_with_the_reason(play) -> None:
    play("stream=iid2,step=0.02,sleep=on")
    seen = events(Plan((FIRST, SECOND), budget_s=0.3, rigor="quick", steps=20))
    found = latest(seen)
    assert [found[case.text].status for case in (FIRST, SECOND)] == ["ok", "skipped"]
    assert [event.case for event in seen if isinstance(event, Started)] == [FIRST]
    reason = found[SECOND.text].reason or ""
    assert re.fullmatch(
        r"it needs about \d+ s, and 0 s of the budget of 0\.3 s are left for it\. "
        "Give it more time with --budget, or run it by itself",
        reason,
    )


def test_what_does_not_fit_into_memory_is_left_out_of_a_suite_all_ranks_on_a_cpu_counted(full_run) -> None:
    one = parse_case("bert-classify/train@cpu/float32")
    four = replace(one, workers=4)
    needed = memory_needed(one)
    assert needed is not None
    assert (memory_needed(four), memory_needed(four, nodes=2)) == (4 * needed, 2 * needed)
    assert memory_needed(replace(four, device="cuda:0")) == needed
    cpu = DeviceInfo("cpu", "cpu", int(2 * needed))
    machine = replace(full_run.header.machine, devices=(cpu,))
    seen = events(Plan((four,), budget_s=10.0, guarded=True), machine=machine)
    assert not [event for event in seen if isinstance(event, Started)]
    (found,) = latest(seen).values()
    assert found.status == "skipped"
    assert "GiB where there are" in (found.reason or "")


def test_a_noisy_case_with_much_time_is_not_ended_for_being_late(play) -> None:
    play("stream=iid10,step=0.02")
    found = latest(events(Plan((FIRST,), budget_s=3600.0, target=1e-6, timeout_s=60.0, rigor="quick")))[FIRST.text]
    assert found.status == "ok"
    assert found.estimate is not None
    assert 0 < found.estimate.duration_s < 60.0


def test_a_case_keeps_what_it_has_when_the_time_for_more_processes_is_gone(play) -> None:
    play("stream=iid10,step=0.02,sleep=on")
    found = latest(events(Plan((FIRST,), budget_s=1.5, target=1e-6)))[FIRST.text]
    assert found.status == "ok"
    assert 1 <= len(found.processes) <= 3


def test_a_later_process_that_fails_leaves_the_figure_as_it_is(play) -> None:
    play("stream=iid2,step=0.01")
    under_way = Session(replace(PLAN, cases=(FIRST,)), None, lambda _: None).events()
    seen = [next(under_way), next(under_way)]  # the first process
    play("fault=oom")
    seen += list(under_way)
    assert [event.process for event in seen if isinstance(event, Started)] == [0, 1]  # and it is not tried again
    found = latest(seen)[FIRST.text]
    assert found.status == "ok"
    assert found.estimate is not None
    assert found.estimate.center_s == pytest.approx(0.01, rel=0.05)
    assert "out of memory" in (found.reason or "")
    assert "process-failed" in {caution.kind for caution in found.cautions}


def test_more_is_measured_only_when_asked_for(play, make_header) -> None:
    play("stream=iid2,step=0.01")
    done = results_so_far(stored(events(), make_header))
    assert not [event for event in events(done=done) if isinstance(event, Started)]
    more = events(replace(PLAN, more=True, budget_s=5.0), done)
    assert latest(more)
    assert all(len(result.processes) > 3 for result in latest(more).values())


def stored(seen: list[Event], make_header) -> Run:
    return Run(make_header(tuple(case.text for case in PLAN.cases)), tuple(latest(seen).values()))


def test_a_resumed_session_does_only_what_is_missing(play, make_header) -> None:
    play("stream=iid2,step=0.01")
    before = events()[:11]  # two whole rounds, the word that all are covered, and the third of the first case
    session = Session(PLAN, None, lambda _: None)
    seen = list(session.events(results_so_far(stored(before, make_header))))
    assert [(event.case, event.process) for event in seen if isinstance(event, Started)] == [(SECOND, 2)]
    (found,) = latest(seen).values()
    assert len(found.processes) == 3
    assert found.phases_s["steps"] > latest(before)[SECOND.text].phases_s["steps"]


def test_resuming_counts_no_time_twice(make_result, make_estimate, make_header) -> None:
    kept = make_result(processes=(make_estimate(), make_estimate(), make_estimate()), phases_s={"steps": 3.0})
    again = results_so_far(Run(make_header(), (kept,)))[kept.case.text]
    assert [result.processes for result in again] == [(each,) for each in kept.processes]
    assert sum(result.phases_s.get("steps", 0.0) for result in again) == 3.0


def test_what_failed_stays_and_what_was_dropped_is_done_again(make_result, make_header) -> None:
    texts = ("null/infer@cpu/float32", "mlp/infer@cpu/float32", "matmul/infer@cpu/float32")
    statuses = ("crashed", "interrupted", "skipped")
    run = Run(
        make_header(),
        tuple(make_result(text, status=status, estimate=None) for text, status in zip(texts, statuses, strict=True)),
    )
    assert list(results_so_far(run)) == ["null/infer@cpu/float32"]


def test_an_interrupt_names_the_case_that_it_dropped_or_left_out(play) -> None:
    play("stream=iid2,step=0.01")
    session = Session(PLAN, None, lambda _: None)
    under_way = session.events()
    next(under_way)
    (dropped,) = session.interrupted()
    assert (dropped.case, dropped.status) == (FIRST, "interrupted")
    assert dropped.reason == "the run was stopped while it was being measured"
    next(under_way)
    (left_out,) = session.interrupted()
    assert (left_out.case, left_out.reason) == (PLAN.cases[1], "the run was stopped before its turn")
    for _ in range(3):
        next(under_way)
    assert session.interrupted() == ()
    under_way.close()


def test_a_battery_is_flagged_and_cautioned(play, full_run) -> None:
    play("stream=iid2,step=0.01")
    machine = replace(full_run.header.machine, on_battery=True)
    found = latest(events(Plan((FIRST,), rigor="quick", budget_s=10.0), machine=machine))[FIRST.text]
    assert found.estimate is not None
    assert "on-battery" in found.estimate.flags
    assert [caution.kind for caution in found.cautions] == ["on-battery"]
