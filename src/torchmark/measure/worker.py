"""What a child process does: one order from its parent, after which it ends and leaves nothing behind."""

from __future__ import annotations

import importlib

from msgspec import Raw
from msgspec.json import decode

from torchmark.devices import diagnose, find_devices, forbid_fallback, open_device
from torchmark.errors import TorchmarkError
from torchmark.measure import messages
from torchmark.measure.lifecycle import end_group, lead_own_group
from torchmark.measure.machine import describe_machine
from torchmark.measure.pipeline import measure, measure_in_turns
from torchmark.meters.process import count_stops
from torchmark.records import Remark


def serve(orders_from: int, replies_to: int) -> None:
    """Obey what comes over one pipe and answer over the other, until the first of them closes."""
    lead_own_group()
    forbid_fallback()
    count_stops()
    channel = messages.Channel(orders_from, replies_to, end_group)
    order, say = channel.receive(), channel.say
    match order:
        case messages.SurveyJob():
            say(survey(order))
        case messages.Call(name, arguments):
            module, _, function = name.partition(":")
            for record in getattr(importlib.import_module(module), function)(say, *decode(arguments)):
                say(messages.Found(Raw(messages.encode(record))))
        case messages.MeasureJob() if order.turns is not None:
            measure_in_turns(order, channel)
            channel.receive()  # only the end is still to come
        case messages.MeasureJob() if order.case.workers > 1:
            from torchmark.measure.ranks import measure_ranks

            say(messages.Measured(measure_ranks(order, say)))
        case messages.MeasureJob():
            say(messages.Measured(measure(order, say)))


def survey(job: messages.SurveyJob) -> messages.Message:
    """The machine with its devices. One that was named must work; one that was only found may fail, with a caution."""
    devices = job.devices
    infos, cautions = [], list(diagnose() if devices is None else ())
    for name in find_devices() if devices is None else devices:
        try:
            infos.append(open_device(name).info())
        except TorchmarkError as error:
            if devices is not None:
                return messages.Refused(error.cause, error.fix, error.detail)
            cautions.append(Remark("device-broken", ": ".join(filter(None, (error.cause, error.detail))), error.fix))
    return messages.Surveyed(describe_machine(infos), tuple(cautions))
