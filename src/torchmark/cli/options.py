"""One frozen record of options per command, whose fields are the click options; shared types and groups."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, dataclass_transform

import click

from torchmark.analyze.efficiency import Prices
from torchmark.case import AXES, CASE_OPTIONS
from torchmark.cli import split_help
from torchmark.cli.output import say
from torchmark.errors import EXIT_CHECK_FAILED, EXIT_FINE, EXIT_INCONCLUSIVE, UnknownName, UsageError
from torchmark.report import FORMATS
from torchmark.store import check_label

if TYPE_CHECKING:
    from torchmark.analyze.comparison import Gate

Record = TypeVar("Record", bound="Options")


@dataclass_transform(kw_only_default=True, frozen_default=True)
@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a command, or of a group that commands inherit; help shows the command's own first."""

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)

    @classmethod
    def parameters(cls) -> list[click.Parameter]:
        names = [name for base in cls.__mro__ for name in vars(base).get("__annotations__", ())]
        makers = {field.name: field.metadata["make"] for field in dataclasses.fields(cls)}
        return [each for name in dict.fromkeys(names) for each in makers[name](name)]

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        return cls(**{field.name: field.metadata["read"](field.name, given) for field in dataclasses.fields(cls)})


def option(about: str, *flags: str, default: Any = None, read: Any = None, **settings: Any) -> Any:
    """A field that is an option: without `flags`, --dry-run for `dry_run`. `read` converts what was typed."""
    if not settings.get("multiple"):
        settings |= {"default": default, "show_default": default is not None and default is not False}
    if isinstance(default, str) and (kind := settings.get("type")):
        default = kind.convert(default, None, None)
    if read:
        settings["callback"] = lambda _context, _parameter, given: read(given)

    def make(name: str) -> list[click.Parameter]:
        return [click.Option([name, *(flags or [f"--{name.replace('_', '-')}"])], help=about, **settings)]

    return _field(default, make)


flag = partial(option, default=False, is_flag=True)


def several(about: str, metavar: str | None, *flags: str, **settings: Any) -> Any:
    return option(about, *flags, default=(), multiple=True, metavar=metavar, **settings)


def argument(**settings: Any) -> Any:
    return _field(() if settings.get("nargs") == -1 else None, lambda name: [click.Argument([name], **settings)])


def axes_field(*single: str) -> Any:
    """The values of axes as typed, by name: one for each of these axes, or several for all axes."""
    axes = {axis.name: axis for axis in AXES if axis.help and (not single or axis.name in single)}

    def make(_: str) -> list[click.Parameter]:
        made: list[click.Parameter] = []
        for name, axis in axes.items():
            metavar = axis.metavar.removesuffix(",…") if single else axis.metavar
            about = axis.help.replace("every", "the first") if single else axis.help
            made.append(click.Option([f"--{name}"], multiple=not single, metavar=metavar, help=about))
        if not single:
            about = "Another way to do the same work: layout=channels-last, attention=eager."
            made.append(click.Option(["--option"], multiple=True, metavar="NAME=HOW,…", help=about))
            made.append(click.Option(["--way"], multiple=True, hidden=True))  # the old name of --option
        return made

    def read(_: str, given: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
        from torchmark.measure.cases import split_settings

        typed = {name: given[name] for name in axes if given[name]}
        if single:
            return {name: (value,) for name, value in typed.items()}
        options = split_settings((*given["option"], *given["way"]), "--option layout=channels-last")
        for name in options:
            if name not in CASE_OPTIONS:
                raise UnknownName("option", name, CASE_OPTIONS)
        return typed | options

    return dataclasses.field(default_factory=dict, metadata={"make": make, "read": read})


def _field(default: Any, make: Callable[[str], list[click.Parameter]]) -> Any:
    return dataclasses.field(default=default, metadata={"make": make, "read": lambda name, given: given[name]})


def command(record: type[Record], epilog: str = "") -> Callable[[Callable[[Record], int | None]], click.Command]:
    """Make a function of an options record a click command; its docstring is the help."""

    def make(function: Callable[[Record], int | None]) -> click.Command:
        about, examples = split_help(function.__doc__ or "")
        made = click.Command(function.__name__, params=record.parameters(), help=about, epilog=examples or epilog)
        made.callback = lambda **given: function(record.read(given))
        return made

    return make


# How people write times, sizes and shares.

_NUMBER = r"\d+(?:\.\d+)?"
_UNITS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
LONGEST_S = 30 * 24 * 3600.0


def _seconds(text: str) -> float:
    if not re.fullmatch(rf"(?=.)(?:{_NUMBER}(?:ms|s|m|h))*(?:{_NUMBER})?", text.lower()):
        raise click.BadParameter(f"'{text}' is not a time. Write 30s, 5m or 1h30m")
    parts = re.findall(rf"({_NUMBER})(ms|s|m|h|$)", text.lower())
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not 0 < seconds <= LONGEST_S:
        raise click.BadParameter(f"'{text}' must be above 0 and at most 30 days. Write 30s, 5m or 1h30m")
    return seconds


def _bytes(text: str) -> int:
    found = re.fullmatch(rf"({_NUMBER})\s*([kmgt]?)(i?)b?", text.lower())
    size = float(found[1]) * (1024 if found[3] else 1000) ** " kmgt".index(found[2] or " ") if found else 0.0
    if found and found[0] == found[1]:
        raise click.BadParameter(f"'{text}' has no unit. Write {text}GiB, {text}MB or {text}B")
    if not 1 <= size <= 1 << 60:
        raise click.BadParameter(f"'{text}' is not an amount of memory. Write 8GiB or 500MB")
    return int(size)


def _share(text: str, whole: bool = False) -> float:
    found = re.fullmatch(rf"({_NUMBER})(%?)", text)
    share = float(found[1]) / (100 if found[2] else 1) if found else 0.0
    if not (0 < share < 1 or (whole and share == 1)):
        raise click.BadParameter(f"'{text}' is not a share between 0 and 1. Write 1% or 0.01")
    return share


def _quantity(name: str, read: Callable[[str], float]) -> click.ParamType[float]:
    kind: click.types.FuncParamType[str, float] = click.types.FuncParamType(lambda text: read(text.strip()))
    kind.name = name
    return kind


DURATION, SIZE = _quantity("TIME", _seconds), _quantity("SIZE", _bytes)
SHARE, WHOLE_SHARE = _quantity("SHARE", _share), _quantity("SHARE", partial(_share, whole=True))
EXISTING_FOLDER, FOLDER = click.Path(exists=True, file_okay=False), click.Path(file_okay=False, path_type=Path)
PATH, FILE = click.Path(path_type=Path), click.Path(dir_okay=False, path_type=Path)
_PRICE = click.FloatRange(min=0.0, max=1e9)


def split_names(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for text in texts for name in text.split(",") if name)


# Groups of options that several commands share.


def label_field(about: str, default: str | None = None) -> Any:
    """--label, which refuses a name that could not be found again."""

    def read(label: str | None) -> str | None:
        if label is not None:
            check_label(label)
        return label

    return option(about, default=default, read=read)


class FormatOptions(Options):
    format: str = option("How to print.", type=click.Choice(FORMATS), default="table")


class ListingOptions(Options):
    format: str = option("How to print.", type=click.Choice(("table", "json")), default="table")


class PriceOptions(Options):
    price_per_hour: float | None = option("Your price of an hour: adds costs.", type=_PRICE, metavar="PRICE")
    watt_price: float | None = option("Your price of a kilowatt-hour, likewise.", type=_PRICE, metavar="PRICE")

    @property
    def prices(self) -> Prices | None:
        given = self.price_per_hour, self.watt_price
        return None if given == (None, None) else Prices(*given)


class GateOptions(Options):
    limit: float | None = option("Exit 1 if slower by more, failed or missing.", "--fail-if-slower", type=SHARE)
    allow: bool = flag("With --fail-if-slower: exit 0 instead of 5 if inconclusive.", "--allow-inconclusive")

    def judge(self, gate: "Gate", complaints: Sequence[str] = ()) -> int:
        from torchmark.report.comparison import gate_lines

        for line in gate_lines(gate, complaints):
            say(f"torchmark: {line}")
        inconclusive = EXIT_FINE if self.allow else EXIT_INCONCLUSIVE
        return {"PASS": EXIT_FINE, "FAIL": EXIT_CHECK_FAILED, "INCONCLUSIVE": inconclusive}[gate.word]


class ParamOptions(Options):
    params: tuple[str, ...] = several("A workload's parameter: -p batch=16,64 or 1..8.", "KEY=V,…", "-p", "--param")
    inputs: tuple[str, ...] = several("Of your own model: 'float32[8,10]'.", "SHAPE", "--input")
    loss: str | None = option("Loss function for training; default: a mean of squares.", metavar="FILE:FUNC")
    task: str | None = option("What a config.json is built for: sequence-classification, …", metavar="TASK")

    def read_params(self, is_named: bool = True, tiny: bool = False) -> dict[str, tuple[str, ...]]:
        """All parameters with their values as typed; `is_named`: there is a model."""
        from torchmark.measure.cases import split_settings

        given = [f"task={self.task}"] if self.task else []
        if self.inputs:  # the sizes of a row are one parameter; the number of rows is another, which can be swept
            from torchmark.workloads.own.models import read_tensor, split_batch, write_tensors

            batch, tensors = split_batch([*map(read_tensor, self.inputs)])
            is_swept = any(text.partition("=")[0] == "batch" for text in self.params)
            if is_swept and not batch:
                raise UsageError("the inputs do not begin with the same size", "Leave -p batch out")
            given += [f"batch={2 if tiny else batch}"] if batch and not is_swept else []
            given.append(f"input={write_tensors(tensors)}")
        if self.loss:
            from torchmark.workloads.own.models import write_loss

            given.append(f"loss={write_loss(self.loss)}")
        if given and not is_named:
            raise UsageError("--input, --loss and --task describe a model of your own", "Name its file")
        return split_settings((*self.params, *given))


class SeedOptions(Options):
    seed: int = option("For weights, inputs and order.", type=click.IntRange(0, 2**31 - 1), default=0)


class DataOptions(SeedOptions):
    data: str | None = option("Folder with the real MNIST and CIFAR-10 files.", type=EXISTING_FOLDER)


class HoldOptions(Options):
    dry_run: bool = flag("Show what would be measured; measure nothing.")
    wait: bool = flag("Wait until no other run is active on this machine.")
    share: bool = flag("Run even if another run is active.")


class MeasureOptions(HoldOptions):
    label: str | None = label_field("A name for this run.")
    out: Path | None = option("File to save the run in; default: with the other runs.", type=FILE)
