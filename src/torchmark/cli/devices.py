"""`torchmark devices`: what is here, whether it is set up well, and whether it can be trusted."""

from collections.abc import Iterator, Sequence

from torchmark.cli.execution import avoid_missing_instructions
from torchmark.cli.options import ListingOptions, command, flag, option
from torchmark.cli.output import emit, print_report
from torchmark.devices import check_device, find_devices, open_device
from torchmark.errors import EXIT_CHECK_FAILED, EXIT_FINE
from torchmark.measure.check import audit_device
from torchmark.measure.machine import DtypeSupport, Inventory, take_inventory
from torchmark.report.document import Block, Column, Document, Lines, Records, Remarks, Table
from torchmark.report.units import NOTHING


class DevicesOptions(ListingOptions):
    device: str | None = option("Only these devices, such as cpu or cuda:0.", metavar="NAME,…")
    audit: bool = flag("Test whether times and numbers can be trusted; takes up to a minute.")


@command(DevicesOptions)
def devices(options: DevicesOptions) -> int:
    """Show the devices of this machine, what torch supports on them, and problems with their fixes."""
    names = tuple(check_device(name.strip()) for name in options.device.split(",")) if options.device else None
    avoid_missing_instructions(names)
    if not options.audit:
        inventory = take_inventory(names)
        print_report(Document(lambda: _inventory(inventory), Records(json=lambda: inventory)), options.format)
        return EXIT_FINE
    proofs = []
    for proof in (each for name in names or find_devices() for each in audit_device(open_device(name))):
        proofs.append(proof)
        if options.format == "table":  # each as soon as it is known
            mark = {True: "pass", False: "FAIL", None: "  --"}[proof.passed]
            emit(f"{mark}  {proof.device}  {proof.name}: {proof.figure}")
    failed, held = (sum(proof.passed is passed for proof in proofs) for passed in (False, True))
    summary = Lines([f"{held} of {held + failed} tests passed."])
    print_report(Document(lambda: [summary], Records(json=lambda: {"proofs": proofs})), options.format)
    return EXIT_CHECK_FAILED if failed else EXIT_FINE


def _inventory(inventory: Inventory) -> Iterator[Block]:
    machine, threads = inventory.machine, inventory.threads
    within = f"{threads.within_operators} within operators, {threads.between_operators} between them"
    allowed = f"{threads.cores_allowed} cores allowed; OMP_NUM_THREADS {threads.omp_num_threads or 'not set'}"
    lines = [f"{machine.cpu}, {machine.physical_cores} cores, {machine.memory_gib} GiB, {machine.os}"]
    lines += [f"torch {machine.torch}, built for {machine.torch_build}; Python {machine.python}"]
    lines += [f"Threads: {within}; {allowed}"]
    if machine.power_mode:
        lines.append(f"Power: {machine.power_mode}{', on battery' if machine.on_battery else ''}")
    yield Lines(lines)
    facts = []
    for info in machine.devices:
        memory = f"{info.memory_bytes / 1024**3:.1f} GiB" if info.memory_bytes else ""
        facts.append((info.name, info.model, memory, info.driver, info.capability, info.cores))
    yield _table(("device", "model", "memory", "driver", "capability", "cores"), facts)
    support = {(found.device, found.dtype): _text(found) for found in inventory.dtypes}
    dtypes = tuple(dict.fromkeys(found.dtype for found in inventory.dtypes))
    times = [(info.name, *(support[info.name, dtype] for dtype in dtypes)) for info in machine.devices]
    yield _table(("matmul time", *dtypes), times)
    for name, sources in inventory.meters.items():
        yield Lines([f"Meters of {name}: {'; '.join(f'{quantity} {source}' for quantity, source in sources.items())}."])
    yield Remarks(inventory.cautions) if inventory.cautions else Lines(["No problems found."])


def _table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    cells = [[NOTHING if cell is None or cell == "" else str(cell) for cell in row] for row in rows]
    return Table([Column(title, "name") for title in titles], cells, rule=False)


def _text(support: DtypeSupport) -> str:
    if not support.runs:
        return "crashes" if support.crashed else "does not run"
    slowdown = support.slowdown or 1.0
    return (f"{slowdown:.2g}×" if slowdown < 99.5 else f"{slowdown:.0f}×") + ("" if support.fast else ", no fast path")
