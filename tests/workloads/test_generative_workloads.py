"""Image and language models are the ones they claim to be, do the work they count, and hold good numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch

from torchmark.errors import WrongResultError
from torchmark.measure.check import check_step
from torchmark.records import Work
from torchmark.workloads import find_workload, llama, llm_decode, llm_prefill, stable_diffusion
from torchmark.workloads.contract import Setting, Step
from torchmark.workloads.model import count_flops
from torchmark.workloads.reference import fill, without_drawing
from torchmark.workloads.stable_diffusion import SHAPES

NAMES = ["stable-diffusion", "llm-prefill", "llm-decode"]
INFER = Setting(mode="infer")


def prepare_tiny(name: str, **settings: Any) -> Step:
    workload = find_workload(name)
    return workload.prepare(workload.tiny, Setting(mode="infer", **settings))


def build_on_meta(make: Any) -> Any:
    with without_drawing(torch.float32), torch.device("meta"):
        return make().requires_grad_(False)


def build_filled(make: Any, setting: Setting) -> torch.nn.Module:
    with without_drawing(setting.torch_dtype):
        model = make()
    return fill(model, setting)


def count_weights(make: Any) -> int:
    return sum(weight.numel() for weight in build_on_meta(make).parameters())


def test_stable_diffusion_has_the_parameters_of_version_1_5() -> None:
    shape = SHAPES["v1.5"]
    unet = count_weights(lambda: stable_diffusion.make_unet(shape))
    text = count_weights(lambda: stable_diffusion.make_text_encoder(shape))
    assert unet == 859_520_964
    assert text == 123_060_480
    assert shape.weights == unet + text
    assert shape.decoder_weights == count_weights(lambda: stable_diffusion.make_decoder(shape)) == 83_653_863


@pytest.mark.parametrize(
    ("size", "millions"), [("tiny", 0.03), ("5m", 5.4), ("30m", 30), ("125m", 134), ("350m", 374), ("1b", 1100)]
)
def test_language_models_have_about_the_parameters_that_name_them(size: str, millions: float) -> None:
    shape = llama.SHAPES[size]
    assert shape.parameters == count_weights(lambda: llama.make(shape))
    assert shape.parameters / 1e6 == pytest.approx(millions, rel=0.11)


def test_flops_of_an_iteration_agree_with_a_count_layer_by_layer() -> None:
    from diffusers.models.attention_processor import Attention

    counted = 0.0

    def count(module: Any, given: tuple[Any, ...], named: dict[str, Any], result: torch.Tensor) -> None:
        nonlocal counted
        if isinstance(module, Attention):
            hidden, seen = given[0], named.get("encoder_hidden_states")
            inner, earlier = module.to_q.out_features, hidden if seen is None else seen
            counted += 4 * hidden.shape[0] * hidden.shape[1] * earlier.shape[1] * inner
        else:
            counted += 2 * result.numel() * module.weight[0].numel()

    unet = build_on_meta(lambda: stable_diffusion.make_unet(SHAPES["v1.5"]))
    for module in unet.modules():
        if isinstance(module, torch.nn.Conv2d | torch.nn.Linear | Attention):
            module.register_forward_hook(count, with_kwargs=True)
    with torch.device("meta"):
        unet(torch.empty(2, 4, 64, 64), torch.zeros(()), torch.empty(2, 77, 768))
    flops, values = stable_diffusion.count_iteration(stable_diffusion.Params())
    assert flops == pytest.approx(counted, rel=0.02)
    assert flops == pytest.approx(1.6e12, rel=0.05)
    assert values == pytest.approx(859_520_964, rel=0.01)


@pytest.mark.parametrize("size", ["125m", "1b"])
def test_flops_of_language_models_agree_with_what_torch_counts(size: Any) -> None:
    from transformers import DynamicCache

    shape = llama.SHAPES[size]
    model = build_on_meta(lambda: llama.make(shape))
    ids = torch.zeros(1, 128, dtype=torch.int64, device="meta")
    cache = DynamicCache()
    prefill = count_flops(lambda: model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1))
    decode = count_flops(lambda: model(input_ids=ids[:, :1], past_key_values=cache, use_cache=True))
    assert llm_prefill.LlmPrefill().work(llm_prefill.Params(size=size), INFER).flops == pytest.approx(prefill, rel=0.02)
    assert llm_decode.LlmDecode().work(llm_decode.Params(size=size), INFER).flops == pytest.approx(decode, rel=0.02)


def test_an_image_is_the_one_that_the_usual_pipeline_makes() -> None:
    from diffusers import PNDMScheduler, StableDiffusionPipeline

    params = find_workload("stable-diffusion").tiny
    assert isinstance(params, stable_diffusion.Params)
    step, shape = prepare_tiny("stable-diffusion"), SHAPES["tiny"]
    embeddings = step.stages[0].run()
    latents = [step.run() for _ in range(2 * step.job_steps)]
    unet = build_filled(lambda: stable_diffusion.make_unet(shape), INFER)
    decoder = build_filled(lambda: stable_diffusion.make_decoder(shape), INFER)
    calls: list[int] = []
    unet.register_forward_hook(lambda *_: calls.append(1))
    scheduler = PNDMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", skip_prk_steps=True, steps_offset=1
    )
    pipeline = StableDiffusionPipeline(decoder, None, None, unet, scheduler, None, None, requires_safety_checker=False)
    pipeline.set_progress_bar_config(disable=True)
    given = {"negative_prompt_embeds": embeddings[:1], "prompt_embeds": embeddings[1:]}  # type: ignore[index]
    noise = torch.randn(1, 4, 8, 8, generator=INFER.generator())
    made = pipeline(**given, latents=noise, num_inference_steps=params.steps, guidance_scale=7.5, output_type="latent")
    assert len(calls) == params.steps + 1 == step.job_steps
    assert step.metrics is not None
    assert step.metrics()["unet_calls"] == len(calls)
    for last in (latents[step.job_steps - 1], latents[-1]):
        torch.testing.assert_close(last, made.images, rtol=1e-3, atol=1e-3)


def test_calls_of_the_unet_are_counted_and_not_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    predict = stable_diffusion._Job._predict_noise
    monkeypatch.setattr(stable_diffusion._Job, "_predict_noise", lambda *given: (predict(*given), predict(*given))[0])
    step = prepare_tiny("stable-diffusion")
    step.run()
    check_step(step, "float32")
    assert step.metrics is not None
    assert step.metrics()["unet_calls"] == 2 * step.job_steps


def test_a_job_encodes_iterates_and_decodes_unless_reported_not_to() -> None:
    workload = find_workload("stable-diffusion")
    whole = prepare_tiny("stable-diffusion")
    short = workload.prepare(msgspec.structs.replace(workload.tiny, decode=False), INFER)
    assert [(stage.name, stage.steps) for stage in whole.stages] == [("text encoding", 1), ("image decoding", 1)]
    assert [stage.name for stage in short.stages] == ["text encoding"]
    assert whole.stages[1].run().shape == (1, 3, 64, 64)  # type: ignore[attr-defined]
    assert whole.copies is not None
    assert short.copies is not None
    assert len(short.copies()) < len(whole.copies())
    default = workload.params()
    assert workload.memory_bytes(default, INFER) == pytest.approx(5.6e9, rel=0.1)


def test_decoding_stays_at_its_context_however_many_steps_are_measured() -> None:
    step = prepare_tiny("llm-decode")
    assert step.metrics is not None
    tokens = [step.run() for _ in range(5)]
    assert step.metrics()["cached_tokens"] == 12 + 1
    assert all(bool((token == tokens[0]).all()) for token in tokens)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_one_weight_that_is_a_hundredth_off_is_caught(name: str, dtype: str) -> None:
    move, models = torch.nn.Module.to, list[torch.nn.Module]()

    def spy(model: torch.nn.Module, *where: Any) -> Any:
        models.append(model)
        return move(model, *where)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.Module, "to", spy)
        step = prepare_tiny(name, dtype=dtype)
    check_step(step, dtype)
    weights = [*models[-1].parameters()]
    weights[len(weights) // 2].view(-1)[0] += 0.01 * weights[len(weights) // 2].abs().max()
    with pytest.raises(WrongResultError):
        check_step(step, dtype)


@pytest.mark.parametrize("name", NAMES)
def test_outputs_that_are_a_hundredth_off_are_caught(name: str, rounded_once: Callable[[Step], Step]) -> None:
    step = rounded_once(prepare_tiny(name))
    assert step.outputs is not None
    for wrong in range(len(step.outputs())):
        outputs = [output * (1.01 if index == wrong else 1) for index, output in enumerate(step.outputs())]
        with pytest.raises(WrongResultError):
            check_step(msgspec.structs.replace(step, outputs=lambda made=outputs: made), "float32")


def test_a_filled_model_holds_well_scaled_numbers_and_right_tables() -> None:
    shape = llama.SHAPES["5m"]
    model = build_filled(lambda: llama.make(shape), Setting(mode="infer", dtype="bfloat16"))
    for name, weight in model.named_parameters():
        assert weight.dtype == torch.bfloat16
        size = 1.0 if "embed" in name or "norm" in name else weight.shape[-1] ** -0.5
        assert float(weight.double().square().mean().sqrt()) == pytest.approx(size, rel=0.05)
        assert float(weight.double().abs().max()) < 8 * size
    rows = model.get_parameter("lm_head.weight")
    assert len(torch.unique(rows, dim=0)) == len(rows)
    frequencies = model.get_buffer("model.rotary_emb.inv_freq")
    width = shape.hidden_size // shape.num_attention_heads
    places = torch.arange(0, width, 2) / width
    torch.testing.assert_close(frequencies, 10_000.0**-places)


def test_filling_repeats_itself_for_a_seed_and_keeps_norms_and_biases_neutral() -> None:
    def make() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.GroupNorm(2, 8), torch.nn.Linear(4, 2000, False))

    first, again, other = (build_filled(make, Setting(mode="infer", seed=seed)) for seed in (1, 1, 2))
    for one, same, another in zip(first.parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, same)
        assert one.dim() == 1 or not torch.equal(one, another)
    weights = dict(first.named_parameters())
    assert bool((weights["0.bias"] == 0).all())
    assert bool((weights["1.weight"] == 1).all())
    assert bool((weights["1.bias"] == 0).all())
    assert math.isclose(float(weights["2.weight"].std()), 0.5, rel_tol=0.05)
    smallest = torch.finfo(torch.float32).tiny
    assert bool((weights["2.weight"].abs() > smallest).all())


def test_the_work_that_is_foreseen_for_an_image_is_what_its_network_counts() -> None:
    foreseen = stable_diffusion.StableDiffusion().work(stable_diffusion.Params(), INFER)
    flops, values = stable_diffusion.count_iteration(stable_diffusion.Params())
    assert foreseen == Work(items=1, unit="iteration", flops=flops, bytes=4 * values)
    assert stable_diffusion.StableDiffusion().work(stable_diffusion.Params(size=256), INFER) is None


def test_a_truncated_normal_draw_ends_although_nothing_is_drawn() -> None:
    import torch

    weights = torch.full((4,), 9.0)  # as memory may hold, beyond the bounds of the draw
    with without_drawing(torch.float32):
        torch.nn.init.trunc_normal_(weights)
    assert weights.tolist() == [9.0] * 4
