"""The first file that runs in a new interpreter: reports what is missing, or makes this torchmark importable, so that
both sides of a comparison run the same code. Python 3.7 must be able to parse it, to report that it is too old."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys

OLDEST = (3, 11)


def main() -> None:
    """Keep the pipes to the parent apart from what libraries print, then serve; the arguments are needed modules."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path.pop(0)  # this file's own folder
    orders, replies = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.write(replies, b"\n")  # ends what the interpreter may have printed at its start
    refusal = find_refusal(sys.argv[1:])
    if refusal:
        os.write(replies, json.dumps({"type": "refused", **refusal}).encode() + b"\n")
        return
    lend_package()
    from torchmark.measure.pipeline import serve

    serve(orders, replies)


def find_refusal(needed: list[str]) -> dict[str, str]:
    """Why nothing can be measured with this interpreter; empty if all is well."""
    if sys.version_info < OLDEST:
        found, oldest = (".".join(map(str, version[:2])) for version in (sys.version_info, OLDEST))
        fix = f"Make an environment with Python {oldest} or later for it"
        return {"cause": f"it is Python {found}, too old to measure with", "fix": fix}
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if not missing:
        return {}
    fix = f"Install what is missing there: {sys.executable} -m pip install {' '.join(missing)}"
    return {"cause": f"it has no {', no '.join(missing)}", "fix": fix}


def lend_package() -> None:
    """Make torchmark importable from here, but nothing from the folder next to it, such as our own torch."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    start = os.path.join(folder, "__init__.py")  # noqa: PTH118
    spec = importlib.util.spec_from_file_location("torchmark", start, submodule_search_locations=[folder])
    assert spec
    assert spec.loader
    sys.modules["torchmark"] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)


def request_death_signal(name: str) -> None:
    """On Linux, receive this signal when the parent dies: a watching thread may be too late."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.Signals[name])  # PR_SET_PDEATHSIG


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":  # in a process that a data loader has spawned, which imports torchmark
    lend_package()
