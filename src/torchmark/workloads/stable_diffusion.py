"""Stable Diffusion turns noise into an image: seconds per denoising iteration."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct

from torchmark.records import Work
from torchmark.workloads.contract import Setting, Stage, Step, Tensors, Workload
from torchmark.workloads.model import count_flops
from torchmark.workloads.reference import exact_model, exactly, fill, recorded, without_drawing

if TYPE_CHECKING:
    from torch import Tensor

_GUIDANCE = 7.5
_TOKENS = 77
_CHANNELS = 4  # of a latent
_PIXELS_PER_LATENT = 8
_LATENT_SCALE = 0.18215
_TRAINED_STEPS, _FIRST_BETA, _LAST_BETA = 1000, 0.00085, 0.012
_CHECKED_LATENTS, _CHECKED_DECODED, _CHECKED_TOKENS = 8, 2, 8
# Of one iteration of version 1.5 at 512 × 512, from `count_iteration`.
_FLOPS_512, _VALUES_512 = 1_606_546_882_560, 859_672_004


class Params(Struct, frozen=True):
    size: Annotated[int, Meta(ge=64, le=4096, multiple_of=8)] = 512  # width and height in pixels
    steps: Annotated[int, Meta(ge=1, le=999)] = 50  # of the scheduler
    model: Literal["v1.5", "tiny"] = "v1.5"
    decode: bool = True


class Shape(Struct, frozen=True):
    unet: tuple[int, ...]  # widths of its blocks
    decoder: tuple[int, ...]
    groups: int  # of the norms of both
    text: int  # width of the text encoder
    text_layers: int
    vocabulary: int
    weights: int = 0  # of text encoder and UNet
    decoder_weights: int = 0


SHAPES = {
    "v1.5": Shape((320, 640, 1280, 1280), (128, 256, 512, 512), 32, 768, 12, 49_408, 982_581_444, 83_653_863),
    "tiny": Shape((32, 32, 64, 64), (16, 16, 32, 32), 8, 32, 2, 1000),
}


class StableDiffusion(Workload):
    """One step is a denoising iteration: the UNet for two prompts at once, guidance 7.5, and the PNDM scheduler, which
    makes one iteration more than its number of steps. Steps repeat the real timesteps. The job is one image: text
    encoding, all iterations, decoding. Weights are random. Only the UNet is compiled."""

    name = "stable-diffusion"
    tiny = Params(size=64, steps=4, model="tiny")
    imports = ("transformers.models.clip.modeling_clip", "diffusers.models.unets.unet_2d_condition",
               "diffusers.models.autoencoders.autoencoder_kl", "diffusers.schedulers.scheduling_pndm")  # fmt: skip
    dtypes = ("float32", "bfloat16", "float16")

    def work(self, params: Params, setting: Setting) -> Work | None:
        """Known for the published size, so that its time can be estimated."""
        published = (params.model, params.size) == ("v1.5", 512)
        return Work(1, "iteration", _FLOPS_512, _VALUES_512 * setting.item_bytes) if published else None

    def memory_bytes(self, params: Params, setting: Setting) -> float:
        """Weights, and for each pixel the widest layers, which are those that decode."""
        shape = SHAPES[params.model]
        weights = shape.weights + (shape.decoder_weights if params.decode else 0)
        per_pixel = (10 if params.decode else 2) * shape.decoder[0]
        return float((weights + per_pixel * params.size**2) * setting.item_bytes)

    def prepare(self, params: Params, setting: Setting) -> Step:
        makers = {"text": make_text_encoder, "unet": make_unet} | ({"decoder": make_decoder} if params.decode else {})
        with without_drawing(setting.torch_dtype):
            models = {name: make(SHAPES[params.model]) for name, make in makers.items()}
        copies = recorded(*(fill(model, setting) for model in models.values()))
        job = _Job(params, setting, {name: model.to(setting.device) for name, model in models.items()})
        flops, values = count_iteration(params)
        decoding = Stage("image decoding", 1, lambda: job.decode(job.latents.to(setting.device)))
        return Step(
            job.iterate,
            Work(1, "iteration", flops, values * setting.item_bytes),
            job.outputs,
            job.reference,
            copies,
            job_steps=len(job.timesteps),
            stages=(Stage("text encoding", 1, job.encode), *([decoding] if params.decode else [])),
            metrics=lambda: {
                "unet_calls": len(job.timesteps) * job.calls / max(job.iterations, 1),  # of an image
                "parameters": float(sum(weight.numel() for weight in models["unet"].parameters())),
            },
            notes={"attention": "sdpa"},
        )


class _Job:
    def __init__(self, params: Params, setting: Setting, models: dict[str, Any]) -> None:
        import torch

        self._params, self._setting, self._models = params, setting, models
        self._predict = setting.compiled(models["unet"])
        self._scheduler = make_scheduler(params)
        self.timesteps = [int(step) for step in self._scheduler.timesteps]
        # On the device beforehand: a lookup during the steps would wait for it.
        self._placed = [setting.place(step) for step in self._scheduler.timesteps]
        size = params.size // _PIXELS_PER_LATENT
        self.latents = self._noise = setting.place(torch.randn(1, _CHANNELS, size, size, generator=setting.generator()))
        self._done = self.calls = self.iterations = 0
        # An empty prompt, and one of the greatest length.
        end = SHAPES[params.model].vocabulary - 1
        empty = torch.tensor([end - 1] + [end] * (_TOKENS - 1))
        words = torch.randint(end - 1, (_TOKENS - 2,), generator=setting.generator())
        self._ids = setting.place(torch.stack((empty, torch.cat((empty[:1], words, empty[-1:])))))
        self._embeddings = self.encode()

    def encode(self) -> Tensor:
        """The empty prompt and the prompt, one after the other as in the usual pipeline."""
        import torch

        with torch.inference_mode():
            return torch.cat([self._models["text"](input_ids=ids).last_hidden_state for ids in self._ids.chunk(2)])

    def iterate(self) -> Tensor:
        """The next iteration, after the last one of the next image."""
        with self._setting.without_gradients():
            if self._done == len(self.timesteps):
                self._scheduler.set_timesteps(self._params.steps)
                self.latents, self._done = self._noise, 0
            latents, step = self.latents.to(self._setting.device), self.timesteps[self._done]
            predicted = self._predict_noise(latents, self._done, self._embeddings)
            self.iterations += 1
            latents = self._scheduler.step(_guided(predicted), step, latents, return_dict=False)[0]
            self.latents, self._done = self._setting.drain(latents), self._done + 1
        return self.latents

    def _predict_noise(self, latents: Tensor, index: int, embeddings: Tensor) -> Tensor:
        import torch

        self.calls += 1
        doubled, given = torch.cat((latents, latents)), {"encoder_hidden_states": embeddings, "return_dict": False}
        return self._predict(doubled, self._placed[index], **given)[0]  # type: ignore[no-any-return]

    def decode(self, latents: Tensor) -> Tensor:
        with self._setting.without_gradients():
            return self._models["decoder"].decode(latents / _LATENT_SCALE, return_dict=False)[0]  # type: ignore[no-any-return]

    def _few(self) -> Tensors:
        """Small latents for the UNet, smaller ones to decode, embeddings of two short prompts."""
        import torch

        latents = ((1, _CHANNELS, size, size) for size in (_CHECKED_LATENTS, _CHECKED_DECODED))
        shapes = (*latents, (2, _CHECKED_TOKENS, SHAPES[self._params.model].text))
        return [torch.randn(shape, generator=self._setting.generator()) for shape in shapes]

    def outputs(self) -> Tensors:
        """Of every part for a small input, and of the scheduler's first step."""
        latents, small, embeddings = map(self._setting.place, self._few())
        calls, first = self.calls, self.timesteps[0]
        with self._setting.without_gradients():
            text = self._models["text"](input_ids=self._ids[:, :_CHECKED_TOKENS]).last_hidden_state
            predicted = self._predict_noise(latents, 0, embeddings)
            moved = make_scheduler(self._params).step(_guided(predicted), first, latents, return_dict=False)[0]
        self.calls = calls  # without that of the check
        return (text, predicted, moved, *([self.decode(small)] if self._params.decode else []))

    def reference(self) -> Tensors:
        """The scheduler's first step by another formula: to the image the noise points at, and back."""
        import torch

        latents, small, embeddings = (host.to(self._setting.torch_dtype).double() for host in self._few())
        exact: dict[str, Any] = {name: exact_model(each, by_layer=True) for name, each in self._models.items()}
        first = self.timesteps[0]
        with torch.inference_mode(), exactly():
            text = exact["text"](input_ids=self._ids[:, :_CHECKED_TOKENS].cpu()).last_hidden_state
            predicted = exact["unet"](torch.cat((latents, latents)), first, embeddings).sample
            betas = torch.linspace(_FIRST_BETA**0.5, _LAST_BETA**0.5, _TRAINED_STEPS, dtype=torch.float64) ** 2
            kept = (1 - betas).cumprod(0)
            now, then = kept[first], kept[max(0, first - _TRAINED_STEPS // self._params.steps)]
            noise = _guided(predicted)
            image = (latents - (1 - now).sqrt() * noise) / now.sqrt()
            moved = then.sqrt() * image + (1 - then).sqrt() * noise
            decoded = [exact["decoder"].decode(small / _LATENT_SCALE).sample] if self._params.decode else []
        return (text, predicted, moved, *decoded)


def _guided(predicted: Tensor) -> Tensor:
    """From the prediction for the empty prompt past that for the prompt."""
    empty, prompted = predicted.chunk(2)
    return empty + _GUIDANCE * (prompted - empty)


@cache
def count_iteration(params: Params) -> tuple[float, int]:
    """FLOPs of the UNet, and numbers read and written: weights, prompts and latents."""
    import torch

    shape, latents = SHAPES[params.model], params.size // _PIXELS_PER_LATENT
    with without_drawing(torch.float32), torch.device("meta"):
        unet = make_unet(shape).requires_grad_(False)
        doubled = torch.empty(2, _CHANNELS, latents, latents)
        text, timestep = torch.empty(2, _TOKENS, shape.text), torch.zeros(())
    values = sum(weight.numel() for weight in unet.parameters()) + text.numel() + doubled.numel()
    return count_flops(lambda: unet(doubled, timestep, text)), values


def make_text_encoder(shape: Shape) -> Any:
    from transformers import CLIPTextConfig, CLIPTextModel

    width, words = shape.text, shape.vocabulary
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "projection_dim": width, "vocab_size": words}
    sizes |= {"num_hidden_layers": shape.text_layers, "num_attention_heads": width // 64 or 2}
    ends = {"bos_token_id": words - 2, "eos_token_id": words - 1}
    return CLIPTextModel(CLIPTextConfig(**sizes, **ends, attn_implementation="sdpa"))


def make_unet(shape: Shape) -> Any:
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=64, block_out_channels=shape.unet, norm_num_groups=shape.groups, cross_attention_dim=shape.text
    )


def make_decoder(shape: Shape) -> Any:
    from diffusers import AutoencoderKL

    options: dict[str, Any] = {"sample_size": 512, "layers_per_block": 2, "norm_num_groups": shape.groups}
    options |= {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
    return AutoencoderKL(block_out_channels=shape.decoder, **options)


def make_scheduler(params: Params) -> Any:
    from diffusers import PNDMScheduler

    betas: dict[str, Any] = {"beta_start": _FIRST_BETA, "beta_end": _LAST_BETA, "beta_schedule": "scaled_linear"}
    scheduler = PNDMScheduler(**betas, skip_prk_steps=True, steps_offset=1)
    scheduler.set_timesteps(params.steps)
    return scheduler
