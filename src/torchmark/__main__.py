"""`python -m torchmark` is `torchmark`."""

import os
import sys

if __name__ == "__main__":
    # `python -m` imports from the current folder first. torchmark does not, unless it is installed there.
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 -- no imports before this
    if not sys.flags.safe_path and os.path.abspath(sys.path[0]) != home:  # noqa: PTH100
        del sys.path[0]
    from torchmark.cli import main

    raise SystemExit(main())
