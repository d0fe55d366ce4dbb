"""The command `torchmark devices`: what is here, whether it is set up well, and whether it can be believed."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import fill
from typing import TYPE_CHECKING

import click

from torchmark.cli.output import emit, terminal_width
from torchmark.report.json import pretty

if TYPE_CHECKING:
    from torchmark.measure.audit import Proof
    from torchmark.measure.dtypes import DtypeSupport
    from torchmark.measure.inventory import Inventory


_MARKS = {True: "pass", False: "FAIL", None: "  --"}


@click.command("devices")
@click.option("--device", "names", metavar="NAME,…", help="Only these devices, such as cpu or cuda:0.")
@click.option("--audit", is_flag=True, help="Prove that times and numbers can be believed; takes up to a minute.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
def command(names: str | None, audit: bool, form: str) -> None:
    """Show the devices of this machine, what torch makes of them, and what is wrong with its cure."""
    from torchmark import devices
    from torchmark.cli.beginning import avoid_missing_instructions

    chosen = tuple(devices.check_device(name.strip()) for name in names.split(",")) if names else None
    avoid_missing_instructions(chosen)
    if audit:
        _audit(chosen or devices.find_devices(), form)
    else:
        _show(chosen, form)


def _show(names: tuple[str, ...] | None, form: str) -> None:
    from torchmark.measure.inventory import take_inventory

    inventory = take_inventory(names)
    if form == "json":
        emit(pretty(inventory))
    else:
        emit("\n".join(map(_folded, _inventory_lines(inventory))))


def _audit(names: tuple[str, ...], form: str) -> None:
    from torchmark.devices import open_device
    from torchmark.errors import EXIT_CHECK_FAILED
    from torchmark.measure.audit import audit_device

    proofs: list[Proof] = []
    for name in names:
        for proof in audit_device(open_device(name)):
            proofs.append(proof)
            if form == "table":
                emit(f"{_MARKS[proof.passed]}  {proof.device}  {proof.name}: {proof.figure}")
    failed = sum(proof.passed is False for proof in proofs)
    if form == "json":
        emit(pretty({"proofs": proofs}))
    else:
        held = sum(proof.passed is True for proof in proofs)
        emit(f"{held} of {held + failed} proofs hold.")
    if failed:
        click.get_current_context().exit(EXIT_CHECK_FAILED)


def _inventory_lines(inventory: Inventory) -> Iterable[str]:
    machine, threads = inventory.machine, inventory.threads
    yield f"{machine.cpu}, {machine.physical_cores} cores, {machine.memory_gib} GiB, {machine.os}"
    yield f"torch {machine.torch}, built for {machine.torch_build}; Python {machine.python}"
    yield (
        f"Threads: {threads.within_operators} within operators, {threads.between_operators} between them;"
        f" {threads.cores_allowed} cores allowed; OMP_NUM_THREADS {threads.omp_num_threads or 'not set'}"
    )
    if machine.power_mode:
        yield f"Power: {machine.power_mode}{', on battery' if machine.on_battery else ''}"
    yield ""
    yield from _device_lines(inventory)
    yield ""
    yield from _dtype_lines(inventory)
    yield ""
    for name, sources in inventory.meters.items():
        yield f"Meters of {name}: {'; '.join(f'{quantity} {source}' for quantity, source in sources.items())}."
    yield ""
    for caution in inventory.cautions:
        yield f"! {caution.cause}. {caution.cure}."
    if not inventory.cautions:
        yield "Nothing stands in the way of a good figure."


def _device_lines(inventory: Inventory) -> Iterable[str]:
    rows: list[tuple[str, ...]] = [("device", "model", "memory", "driver", "capability", "cores")]
    for info in inventory.machine.devices:
        memory = f"{info.memory_bytes / 1024**3:.1f} GiB" if info.memory_bytes else "—"
        rows.append((info.name, info.model, memory, info.driver or "—", info.capability or "—", str(info.cores or "—")))
    return _aligned(rows)


def _dtype_lines(inventory: Inventory) -> Iterable[str]:
    """One line for each device and one column for each number format."""
    support = {(found.device, found.dtype): found for found in inventory.dtypes}
    dtypes = tuple(dict.fromkeys(found.dtype for found in inventory.dtypes))
    rows = [
        (info.name, *(_support_text(support[info.name, dtype]) for dtype in dtypes))
        for info in inventory.machine.devices
    ]
    return _aligned([("matmul time", *dtypes), *rows])


def _support_text(support: DtypeSupport) -> str:
    if not support.runs:
        return "crashes" if support.crashed else "does not run"
    times = f"{support.slowdown or 1.0:.2g}×" if (support.slowdown or 1.0) < 99.5 else f"{support.slowdown:.0f}×"
    return times if support.fast else f"{times}, no fast path"


def _folded(line: str) -> str:
    """A sentence on as many lines as the terminal makes of it; tables are left as they are."""

    return line if "  " in line else fill(line, terminal_width(), subsequent_indent="  ", break_long_words=False)


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
