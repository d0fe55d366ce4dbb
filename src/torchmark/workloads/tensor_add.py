"""Adds large square tensors: memory bandwidth, in the three readings of a published benchmark."""

from typing import Literal

from msgspec import Struct

from torchmark.records import Work
from torchmark.workloads.contract import Count, Setting, Step, Tensors, Workload

_CHECKED_ROWS = 16
# Of each variant: tensors that a step must read or write, and additions per element. `as-written` fills two, reads both
# and the sum so far, and writes the sum.
_AMOUNTS = {"as-written": (6, 2), "as-run": (2, 1), "resident": (3, 1)}


class Params(Struct, frozen=True):
    size: Count = 12288  # tensors are size × size
    # The source code of the published figures is `as-written`, but ran `as-run`.
    variant: Literal["as-written", "as-run", "resident"] = "resident"


class TensorAdd(Workload):
    """`resident` adds two tensors into a third one, all on the device: a plain bandwidth probe.
    `as-run` doubles one tensor in place: what a compiler made of the published code. Its values are infinite after some
    127 doublings, as they were then; that takes no longer, as only subnormal numbers are slow.
    `as-written` fills two tensors on the host, moves them, adds them, and adds the sum to a running total."""

    name = "tensor-add"
    tiny = Params(size=32)

    def work(self, params: Params, setting: Setting) -> Work:
        elements, (traffic, additions) = params.size**2, _AMOUNTS[params.variant]
        return Work(1, "iteration", flops=additions * elements, bytes=traffic * elements * setting.item_bytes)

    def prepare(self, params: Params, setting: Setting) -> Step:
        import torch

        shape, dtype, drain = (params.size, params.size), setting.torch_dtype, setting.drain
        generator, state = setting.generator(), None  # steps change the state, and a check restores it
        # A tensor repeats one row, as drawing all its values would take seconds.
        rows = [torch.rand(params.size, generator=generator).to(dtype) for _ in range(2)]
        one, other = (row.double().numpy() for row in rows)
        if params.variant == "resident":
            first, second = (setting.feed(row.repeat(params.size, 1)) for row in rows)
            result, expected = setting.place(torch.zeros(shape)), one + other
            add = setting.compiled(lambda x, y: torch.add(x, y, out=result))

            def run() -> torch.Tensor:
                return drain(add(first(), second()))
        elif params.variant == "as-run":
            host = torch.full(shape, 2.0, dtype=dtype)
            feed = setting.feed(host)
            state, expected = feed() if setting.transfer == "resident" else host, 2 * one
            double = setting.compiled(lambda values: values.add_(values))

            def run() -> torch.Tensor:
                return drain(double(feed()))
        else:
            total = state = setting.place(torch.zeros(shape))
            expected = 2 + one
            accumulate = setting.compiled(lambda total, x, y: total.add_(x + y))

            def run() -> torch.Tensor:
                x, y = torch.ones(shape, dtype=dtype), torch.ones(shape, dtype=dtype)
                return drain(accumulate(total, x.to(setting.device), y.to(setting.device)))

        def outputs() -> Tensors:
            """Of a step with known values in the first rows, which are restored."""
            if state is None:
                return (run()[:_CHECKED_ROWS],)
            kept = state[:_CHECKED_ROWS].clone()
            state[:_CHECKED_ROWS] = rows[0]
            found = run()[:_CHECKED_ROWS].clone()
            state[:_CHECKED_ROWS] = kept
            return (found,)

        known = torch.from_numpy(expected).expand(min(_CHECKED_ROWS, params.size), -1)
        return Step(run, self.work(params, setting), outputs, lambda: (known,))
