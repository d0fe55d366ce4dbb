"""`python -m torchmark` is `torchmark`."""

from torchmark.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
