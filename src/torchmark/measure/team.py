"""Who measures a case: this process alone. Ranks that share the work are a team of another kind."""

from __future__ import annotations

from msgspec.structs import replace

from torchmark.devices import open_device
from torchmark.devices.contract import Device
from torchmark.records import Estimate, Memory, NumericCheck, Value
from torchmark.workloads.contract import Step


class Team:
    """One process that does everything by itself."""

    rank = 0
    world_size = 1
    local_size = 1  # on this machine

    def open(self, name: str) -> Device:
        """The device of that name; what it times, the whole team runs."""
        return open_device(name)

    def take(self, step: Step) -> None:
        """The step is built: from now on it is what the team runs."""

    def check(self, step: Step, device: Device, dtype: str) -> NumericCheck | None:
        """Compare the step's numbers with another computation, wherever it runs."""
        from torchmark.measure.check import check_step

        return check_step(as_seen(step, device), dtype)

    def memory(self, own: Memory) -> Memory:
        """What all of the team took, from what this process took."""
        return own

    def is_seen_by(self, device: Device) -> bool:
        """Whether the meters of this one device on this one machine see all that the team takes."""
        return self.world_size == 1 or (self.local_size == self.world_size and device.kind == "cpu")

    def settings(self) -> dict[str, Value | None]:
        """What about the team changes the speed."""
        return {}

    def metrics(self, step: Step, device: Device, estimate: Estimate) -> dict[str, float]:
        """What working together costs; asked for last, as it may leave the members with different weights."""
        del step, device, estimate
        return {}


ALONE = Team()


def as_seen(step: Step, device: Device) -> Step:
    """The step with its outputs as the device tells them."""
    outputs = step.outputs
    return replace(step, outputs=lambda: [device.observe(tensor) for tensor in outputs()]) if outputs else step
