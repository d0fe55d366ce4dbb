"""A run cut down to what a ranking needs, one entry per result."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from torchmark.analyze.grades import grade_of, is_disturbed, with_spread
from torchmark.records import Result, Run, Status, Verdict

# These make a step another piece of work, or its time another quantity; every other option is a way to use a machine.
PROCEDURES = frozenset(("+per-step", "+pinned", "+as-published"))
LONGEST_REASON = 200


class Entry(Struct, frozen=True, array_like=True):
    """One result out of a folder of runs: what it takes to rank it, and where it comes from."""

    edition: ClassVar[int] = 2  # rises when entries are made from runs in another way

    task: str  # of the case
    version: int
    dtype: str
    procedure: str  # options of the case that make its time another quantity
    setting: str  # its other options: how the machine was used
    cpu: str
    cores: int
    memory_gib: int
    device: str  # without a number: the second GPU is no other machine
    model: str
    case: str
    status: Status
    reason: str | None
    verdict: Verdict | None
    center_s: float | None
    low_s: float | None
    high_s: float | None
    items: float | None
    unit: str
    grade: str  # as people see it; empty where there is none
    disturbed: bool  # no rank may rest on it
    file: str
    run: str
    created: str
    label: str | None
    torch: str | None

    @property
    def group(self) -> tuple[str, int, str, str]:
        """Entries that agree in this did the same work in the same way, and may be ranked."""
        return self.task, self.version, self.dtype, self.procedure

    @classmethod
    def of_run(cls, run: Run, file: str) -> tuple[Entry, ...]:
        """All results of a run that was read from `file`."""
        models = {info.name: info.model for info in run.header.machine.devices}
        return tuple(_entry(run, result, file, models.get(result.case.device, "")) for result in run.results)


def _entry(run: Run, result: Result, file: str, model: str) -> Entry:
    result = with_spread(result, run.process_spread)
    header, case, estimate, work = run.header, result.case, result.estimate, result.work
    grade = grade_of(result)
    procedure = [option for option in case.options if option in PROCEDURES]
    setting = [option for option in case.options if option not in PROCEDURES]
    return Entry(
        task=case.task,
        version=result.version,
        dtype=case.dtype,
        procedure="".join(procedure),
        setting="".join(setting),
        cpu=header.machine.cpu,
        cores=header.machine.physical_cores,
        memory_gib=header.machine.memory_gib,
        device=case.device.partition(":")[0],
        model=model,
        case=case.text,
        status=result.status,
        reason=result.reason and result.reason[:LONGEST_REASON],
        verdict=estimate.verdict if estimate else None,
        center_s=estimate.center_s if estimate else None,
        low_s=estimate.low_s if estimate else None,
        high_s=estimate.high_s if estimate else None,
        items=work.items if work else None,
        unit=work.unit if work else "",
        grade=grade.text if grade else estimate.verdict if estimate else "",
        disturbed=is_disturbed(result),
        file=file,
        run=header.id,
        created=header.created,
        label=header.label,
        torch=header.machine.torch,
    )
