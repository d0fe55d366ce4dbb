"""A model that fails on request with a message that contains private data. `canaries.py` puts it next to HELPER.py."""

import logging
import warnings

import HELPER
import torch
from leaking import leak, message

from torchmark.errors import UnsupportedError, WrongResultError

LARGE = 8


class CLASSError(ValueError):
    """Its name is one of those that must not be shared."""


def fail(fault: str) -> None:
    """What goes wrong where the model is built."""
    if fault == "class":
        raise CLASSError(message(fault))
    if fault == "chained":
        try:
            torch.load("clients/PARAMETER.pt")
        except OSError as error:
            raise KeyError(message(fault)) from error
    if fault == "note":
        error = TypeError(message(fault))
        error.add_note(message(fault))
        raise error
    if fault == "file":
        torch.load("clients/PARAMETER.pt")
    if fault == "module":
        __import__("PARAMETER")
    if fault == "helper":
        HELPER.fail()
    if fault == "group":
        raise ExceptionGroup(message(fault), [OSError(message(fault))])
    kinds = {"build": RuntimeError, "ours": UnsupportedError, "wrong": WrongResultError, "exit": SystemExit}
    if fault in kinds:
        leak(fault, kinds[fault])
    if fault == "half":
        raise RuntimeError(f"\"{message(fault)}\" not implemented for 'Half' {message(fault)}")
    if fault == "operator":
        raise NotImplementedError(f"The operator 'aten::PARAMETER' is not currently implemented {message(fault)}")
    if fault == "memory":
        raise RuntimeError(f"{message(fault)} out of memory {message(fault)}")
    if fault == "talk":
        print(message(fault))
        warnings.warn(message(fault), stacklevel=1)
        logging.getLogger(message(fault)).error(message(fault))


class Failing(torch.utils.data.Dataset):
    """Fails in a process of its own."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        leak("loader")


class Net(torch.nn.Module):
    """Fails in a step."""

    def __init__(self, fault: str, width: int) -> None:
        super().__init__()
        self.fault, self.calls, self.layer = fault, 0, torch.nn.Linear(width, width)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        due = {
            "first": True,
            "steps": self.calls > 3,
            "dtype": rows.dtype != torch.float32,
            "large": len(rows) > LARGE,
            "rank": torch.distributed.is_initialized() and torch.distributed.get_rank() == 1,
        }
        if due.get(self.fault, False):
            leak(f"{self.fault}: could not create a primitive")
        if self.fault == "talk" and self.calls == 1:  # in the words of torch
            warnings.warn("The operator 'PARAMETER::CLASS' will fall back to run on the CPU", stacklevel=1)
        if self.fault == "loader":
            next(iter(torch.utils.data.DataLoader(Failing(), num_workers=1)))
        return self.layer(rows)


def build(fault: str = "none", customer: str = "PARAMETER", width: int = 4):
    """The defaults of other arguments are not shared."""
    del customer
    fail(fault)
    return Net(fault, width), torch.ones(2, width)
