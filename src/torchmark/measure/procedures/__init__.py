"""How each publication timed its work: one file for each, found by the publication's name."""

from __future__ import annotations

import importlib

from torchmark.measure.procedures.contract import Procedure


def make_procedure(publication: str) -> Procedure:
    """A new procedure of the publication of that name."""
    module = importlib.import_module(f"{__name__}.{publication.replace('-', '_')}")
    procedure = module.PROCEDURE()
    assert isinstance(procedure, Procedure)
    return procedure
