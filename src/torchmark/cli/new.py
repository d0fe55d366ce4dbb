"""`torchmark new`: writes a commented starter file for a model or a workload of the user's own."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from torchmark.cli.options import Options, argument, command, flag, option
from torchmark.cli.output import emit
from torchmark.errors import UsageError
from torchmark.report.text import clean
from torchmark.store.files import explained, write_whole

_STEM = "my_model"  # in the starters


class NewOptions(Options):
    name: str = argument()
    workload: bool = flag("A Workload, which also says what its work is worth.")
    out: str | None = option("Where to write it; - for stdout; default: NAME.py.", "-o", "--out", metavar="FILE")


@command(NewOptions)
def new(options: NewOptions) -> None:
    """Write a commented starter file for a model of your own.

    It runs as it is: `torchmark run my_model.py`, `pytest my_model.py`. Replace the model in it with yours.

    Examples:
      torchmark new my-model                my_model.py, with a model to replace
      torchmark new my-model --out -        show it, write nothing
      torchmark new my-kernel --workload    with full control
    """
    stem = options.name.removesuffix(".py").replace("-", "_")
    if not re.fullmatch(r"[A-Za-z_]\w*", stem, re.ASCII):
        fix = "Use letters, digits and dashes, as in my-model"
        raise UsageError(f"'{options.name}' is not a name for a Python file", fix)
    starter = files("torchmark.cli") / "starters" / ("workload.txt" if options.workload else "model.txt")
    text = starter.read_text("utf-8")
    if options.out == "-":
        emit(text.replace(_STEM, stem))
        return
    path = Path(options.out or f"{stem}.py")
    try:
        is_module = find_spec(path.stem) is not None
    except ValueError:  # of a module that was not found by its name, such as __main__
        is_module = True
    if (keyword.iskeyword(path.stem) or is_module) and not path.exists():
        kind = "keyword" if keyword.iskeyword(path.stem) else "module"
        raise UsageError(f"'{path.stem}' is already a Python {kind}", "Choose another name")
    try:
        write_whole(path, [text.replace(_STEM, path.stem).encode()], replace=False)
    except FileExistsError as error:
        raise UsageError(f"{path} already exists", "Choose another name") from error
    except OSError as error:
        raise explained(path, error, "Choose another place with -o") from error
    name = clean(str(path))
    emit(f"Wrote {name}. Try it:\n  torchmark run {name}\n  torchmark list {name}\n  pytest {name}")
