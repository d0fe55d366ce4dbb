"""`python -m torchmark` is `torchmark`."""

import signal


def main() -> int:
    """Run the command line. An interrupt while Python imports or shuts down prints no traceback either."""
    try:
        from torchmark.cli import main

        return main()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    raise SystemExit(main())
