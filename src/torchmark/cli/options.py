"""A command's options: one frozen record per command, whose fields are the click options; types and groups they share.

class Show(Formatted):
    run: str = argument()
    details: bool = flag("Every case in full.")

@command(Show, epilog=EXAMPLES)
def show(options: Show) -> None: ...
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, dataclass_transform

import click

from torchmark.errors import EXIT_CHECK_FAILED, EXIT_FINE, EXIT_INCONCLUSIVE, UsageError
from torchmark.records import AXES
from torchmark.report import FORMATS
from torchmark.store import check_label

if TYPE_CHECKING:
    from torchmark.analyze.efficiency import Prices

Record = TypeVar("Record", bound="Options")


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Options:
    """The options of a command or of a group that several commands share; a command inherits from its groups.

    In help, a command's own options come first, then those of its groups in the order of its bases.
    """

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)

    @classmethod
    def parameters(cls) -> list[click.Parameter]:
        """The click options and arguments of all fields."""
        names = [name for base in cls.__mro__ for name in vars(base).get("__annotations__", ())]
        fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]  # it is a dataclass
        return [each for name in dict.fromkeys(names) for each in fields[name].metadata["make"](name)]

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        """The record of what click has parsed."""
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # it is a dataclass
        return cls(**{field.name: field.metadata["read"](field.name, given) for field in fields})


def option(*flags: str, help: str, default: Any = None, **settings: Any) -> Any:  # noqa: A002
    """A field that is an option; a default of text is converted like what a user types."""
    if settings.get("multiple"):
        default = ()
    kind = settings.get("type")
    converted = kind.convert(default, None, None) if isinstance(default, str) and kind else default
    shown = {} if settings.get("multiple") else {"default": default, "show_default": default is not None}
    return _field(converted, lambda name: [click.Option([name, *flags], help=help, **shown, **settings)])


def flag(help: str, *flags: str) -> Any:  # noqa: A002
    """A field that is false unless its option is given: --dry-run for `dry_run`, or the given flags."""
    return _field(
        False,
        lambda name: [click.Option([name, *(flags or [f"--{name.replace('_', '-')}"])], is_flag=True, help=help)],
    )


def argument(**settings: Any) -> Any:
    """A field that is a positional argument."""
    default = () if settings.get("nargs") == -1 else None
    return _field(default, lambda name: [click.Argument([name], **settings)])


def _field(
    default: Any,
    make: Callable[[str], list[click.Parameter]],
    read: Callable[[str, Mapping[str, Any]], Any] = lambda name, given: given[name],
) -> Any:
    return dataclasses.field(default=default, metadata={"make": make, "read": read})


def command(
    record: type[Record], name: str | None = None, epilog: str = ""
) -> Callable[[Callable[[Record], int | None]], click.Command]:
    """Make a function of an options record a click command; its docstring is the help."""

    def make(function: Callable[[Record], int | None]) -> click.Command:
        def call(**given: Any) -> int | None:
            return function(record.read(given))

        return click.Command(
            name or function.__name__,
            callback=call,
            params=record.parameters(),
            help=inspect.getdoc(function),
            epilog=epilog,
        )

    return make


# Types: how people write times, shares and sizes.

_UNITS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = r"\d+(?:\.\d+)?"
_PART = re.compile(rf"({_NUMBER})(ms|s|m|h|$)")
_WHOLE = re.compile(rf"(?:{_NUMBER}(?:ms|s|m|h))*(?:{_NUMBER})?")
LONGEST_S = 30 * 24 * 3600.0
_MOST_BYTES = 1 << 60


class Duration(click.ParamType[float]):
    """A time span above zero, in seconds: 90s, 5m, 1h30m."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        text = str(value).strip().lower()
        if not text or not _WHOLE.fullmatch(text):
            self.fail(f"'{value}' is not a time. Write 30s, 5m or 1h30m", param, ctx)
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
        if not 0 < seconds <= LONGEST_S:
            self.fail(f"'{value}' must be above 0 and at most 30 days. Write 30s, 5m or 1h30m", param, ctx)
        return seconds


class Bytes(click.ParamType[int]):
    """An amount of memory above zero, in bytes: 1 GiB is 1024³ of them, 1 GB 1000³."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(rf"({_NUMBER})\s*([kmgt]?)(i?)b?", str(value).strip().lower())
        size = float(found[1]) * (1024 if found[3] else 1000) ** " kmgt".index(found[2] or " ") if found else 0.0
        if found and found[0] == found[1]:
            self.fail(f"'{value}' has no unit. Write {value}GiB, {value}MB or {value}B", param, ctx)
        if not 1 <= size <= _MOST_BYTES:
            self.fail(f"'{value}' is not an amount of memory. Write 8GiB or 500MB", param, ctx)
        return int(size)


class Share(click.ParamType[float]):
    """A share between 0 and 1, such as 1% or 0.01; 1 itself only where `whole` allows it."""

    name = "SHARE"

    def __init__(self, whole: bool = False) -> None:
        self._whole = whole

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", str(value).strip())
        share = float(found[1]) / (100 if found[2] else 1) if found else 0.0
        if not (0 < share < 1 or (self._whole and share == 1)):
            self.fail(f"'{value}' is not a share between 0 and 1. Write 1% or 0.01", param, ctx)
        return share


# Groups of options that several commands share.

EXISTING_FOLDER = click.Path(exists=True, file_okay=False)
FILE = click.Path(dir_okay=False, path_type=Path)
SEED = click.IntRange(0, 2**31 - 1)
_PRICE = click.FloatRange(min=0.0, max=1e9)
_TINY_BATCH = 2


def _checked_label(context: click.Context, parameter: click.Parameter, label: str | None) -> str | None:
    del context, parameter
    if label is not None:
        check_label(label)
    return label


def label_field(help: str, default: str | None = None) -> Any:  # noqa: A002
    """--label; refuses a name that could not be found again."""
    return option("--label", help=help, default=default, callback=_checked_label)


class FormatOptions(Options):
    """How a command prints its results."""

    format: str = option("--format", type=click.Choice(FORMATS), default="table", help="How to print.")


class PriceOptions(Options):
    """Prices, for commands that turn results into cost. They are never stored with a run."""

    price_per_hour: float | None = option(
        "--price-per-hour", type=_PRICE, metavar="PRICE", help="Your price of an hour: adds costs."
    )
    watt_price: float | None = option(
        "--watt-price", type=_PRICE, metavar="PRICE", help="Your price of a kilowatt-hour, likewise."
    )

    @property
    def prices(self) -> Prices | None:
        """None if no price is given."""
        if self.price_per_hour is None and self.watt_price is None:
            return None
        from torchmark.analyze.efficiency import Prices

        return Prices(self.price_per_hour, self.watt_price)


class GateOptions(Options):
    """The exit code where something is slower."""

    limit: float | None = option("--fail-if-slower", type=Share(), help="Exit 1 if slower by more, failed or missing.")
    allow: bool = flag("With --fail-if-slower: exit 0 instead of 5 if inconclusive.", "--allow-inconclusive")

    def gate_code(self, word: str) -> int:
        """PASS 0, FAIL 1, INCONCLUSIVE 5 unless that is allowed."""
        codes = {"PASS": EXIT_FINE, "FAIL": EXIT_CHECK_FAILED, "INCONCLUSIVE": EXIT_INCONCLUSIVE}
        return EXIT_FINE if word == "INCONCLUSIVE" and self.allow else codes[word]


def axes_field() -> Any:
    """A field with the values of every axis as typed, by its name; the options derive from the table of axes."""
    typed = [axis for axis in AXES if axis.help]

    def make(name: str) -> list[click.Parameter]:
        del name
        more = {"--option": "Another way to do the same work: layout=channels-last, attention=eager.", "--way": ""}
        return [
            *(
                click.Option([axis.name, f"--{axis.name}"], multiple=True, metavar=axis.metavar, help=axis.help)
                for axis in typed
            ),
            *(
                click.Option([flag], multiple=True, metavar="NAME=HOW,…", help=about, hidden=not about)
                for flag, about in more.items()  # --way is the old name of --option
            ),
        ]

    def read(name: str, given: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
        del name
        from torchmark.measure.cases import split_settings

        options = split_settings((*given["option"], *given["way"]), "--option layout=channels-last")
        return {axis.name: given[axis.name] for axis in typed if given[axis.name]} | options

    return dataclasses.field(default_factory=dict, metadata={"make": make, "read": read})


class ParamOptions(Options):
    """The parameters of workloads, and what describes a model of the user's own: these become parameters, too."""

    params: tuple[str, ...] = option(
        "-p", "--param", multiple=True, metavar="KEY=V,…", help="A parameter of the workload: -p batch=16,64 or 1..8."
    )
    inputs: tuple[str, ...] = option(
        "--input", multiple=True, metavar="SHAPE", help="Of your own model: 'float32[8,10]'."
    )
    loss: str | None = option(
        "--loss", metavar="FILE:FUNC", help="Loss function for training; default: a mean of squares."
    )
    task: str | None = option(
        "--task", metavar="TASK", help="What a config.json is built for: sequence-classification, …"
    )

    def read_params(self, is_named: bool = True, tiny: bool = False) -> dict[str, tuple[str, ...]]:
        """All parameters with their values as typed; `is_named` says that a model is named at all."""
        from torchmark.measure.cases import split_settings

        given = [*self._inputs(tiny)]
        if self.loss:
            from torchmark.workloads.own.models import write_loss

            given.append(f"loss={write_loss(self.loss)}")
        if self.task:
            given.append(f"task={self.task}")
        if given and not is_named:
            raise UsageError("--input, --loss and --task describe a model of your own", "Name its file")
        return split_settings((*self.params, *given))

    def _inputs(self, tiny: bool) -> list[str]:
        """The sizes of one row are one parameter, the number of rows is another, which can be swept."""
        if not self.inputs:
            return []
        from torchmark.workloads.own.shapes import read_tensor, split_batch, write_tensors

        batch, tensors = split_batch([read_tensor(typed) for typed in self.inputs])
        is_swept = any(text.partition("=")[0] == "batch" for text in self.params)
        if is_swept and not batch:
            raise UsageError("the inputs do not begin with the same size", "Leave -p batch out")
        rows = [] if is_swept or not batch else [f"batch={_TINY_BATCH if tiny else batch}"]
        return [*rows, f"input={write_tensors(tensors)}"]


class SeedOptions(Options):
    """How to repeat a measurement."""

    seed: int = option("--seed", type=SEED, default=0, help="For weights, inputs and order.")


class DataOptions(SeedOptions):
    """What workloads compute with."""

    data: str | None = option("--data", type=EXISTING_FOLDER, help="Folder with the real MNIST and CIFAR-10 files.")


class MeasureOptions(Options):
    """Where a measurement is stored, and whether it waits for another one."""

    label: str | None = label_field("A name for this run.")
    out: Path | None = option("--out", type=FILE, help="File to save the run in; default: with the other runs.")
    dry_run: bool = flag("Show what would be measured; measure nothing.")
    wait: bool = flag("Wait until no other run is active on this machine.")
    share: bool = flag("Run even if another run is active.")
