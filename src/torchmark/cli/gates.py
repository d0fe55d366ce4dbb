"""What commands with a gate share: the option, and the exit code of each answer."""

from __future__ import annotations

import click

from torchmark.errors import EXIT_CHECK_FAILED, EXIT_FINE, EXIT_INCONCLUSIVE

_CODES = {"PASS": EXIT_FINE, "FAIL": EXIT_CHECK_FAILED, "INCONCLUSIVE": EXIT_INCONCLUSIVE}

allow_option = click.option(
    "--allow-inconclusive", "allow", is_flag=True, help="With --fail-if-slower: exit 0 instead of 5 if it is undecided."
)


def gate_code(word: str, allow: bool) -> int:
    """PASS 0, FAIL 1, INCONCLUSIVE 5 unless that is allowed."""
    return EXIT_FINE if word == "INCONCLUSIVE" and allow else _CODES[word]
