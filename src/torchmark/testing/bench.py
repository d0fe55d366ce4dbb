"""What a test is given: times steps under the test's name, and checks the numbers of a model file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchmark.errors import TorchmarkError
from torchmark.measure.timing import time_step
from torchmark.records import Result
from torchmark.store import machine_lock
from torchmark.testing.messages import failure
from torchmark.testing.recorder import Recorder


class Bench:
    """The fixture of one test."""

    def __init__(self, recorder: Recorder, node: str) -> None:
        self._recorder, self._node = recorder, node
        self._file, self._name = _named(node)
        self._timed: set[tuple[str, str]] = set()

    def __call__(
        self,
        step: Callable[[], object],
        device: str = "cpu",
        *,
        name: str | None = None,
        items: float = 1.0,
        unit: str = "step",
        budget_s: float | None = None,
        **more: Any,
    ) -> Result:
        """Time the step, keep the result, and fail the test where the stored run was faster.

        `items` and `unit` say what one call is worth, so that the result has a rate. A test that times several steps
        gives each a `name`.
        """
        count = f"-{len(self._timed) + 1}" if self._timed else ""
        case = f"{_word(self._file)}:{_word(self._name)}{f'.{_word(name)}' if name else count}"
        if (case, device) in self._timed or not self._recorder.claim(case, device, self._node):
            raise failure(f"{case} was timed already: give this step a name of its own")
        self._timed.add((case, device))
        with machine_lock(wait=True):  # tests side by side would disturb one another
            result = time_step(
                step, device, name=case, items=items, unit=unit, budget_s=budget_s or self._recorder.budget_s, **more
            )
        slower = self._recorder.add(result)
        if slower:
            raise failure(slower)
        return result

    def check(self, file: str | Path, **params: Any) -> None:
        """Fail the test where a model file does not run, or computes the wrong numbers, in any of its modes."""
        from torchmark.testing.checking import check_file

        try:
            check_file(Path(file), params)
        except TorchmarkError as error:
            raise failure(str(error)) from None


def _named(node: str) -> tuple[str, str]:
    """The file and the test inside it, by which a result is found again.

    Results are shared: folders are left out, and parameters that may hold a path are replaced by a hash.
    """
    file, _, inside = node.partition("::")
    path, bracket, values = inside.partition("[")
    if "/" in values or "\\" in values:
        values = hashlib.sha256(values.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return file.rpartition("/")[2], path.replace("::", ".") + bracket + values


def _word(text: str) -> str:
    """What a case can be called: parametrised tests have brackets in their names."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-")
