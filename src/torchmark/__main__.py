"""The entry of the command line: `torchmark`, and `python -m torchmark`."""

import os
import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    # `python -m` imports from the current folder first, torchmark only if it is installed there.
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 -- no imports before this
    if os.path.abspath(sys.path[0]) != home:  # noqa: PTH100
        del sys.path[0]

import signal


def main() -> int:
    """Run the command line. An interrupt at any moment prints no traceback and leaves no temporary files."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end)
    try:
        from torchmark.cli import main

        return main()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _end(number: int, _: object) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    raise SystemExit(main())
