"""Recipe in the shape of DreamBooth (Ruiz et al., CVPR 2023): a small diffusion model learns a subject and its class.

`--set data.path=FOLDER` names a folder with images of one subject in `subject/`, and other images of its class in
`class/`. Images are scaled to `data.image_size` pixels. The UNet and the text encoder are both trained, from random
weights; the loss on the class's images preserves what the model knows of the class.
"""

from typing import TYPE_CHECKING

from evergreen import (
    Accelerate,
    DataSettings,
    Denoising,
    ImageFolder,
    ImageShape,
    Recipe,
    ScalingSettings,
    Settings,
)

if TYPE_CHECKING:
    from torch import nn

    from evergreen import TrainingLoop

PROMPTS = ("a picture of a thing", "a picture of a sks thing")  # of class and subject
PRIOR_WEIGHT = 1.0
SUBJECT = 1


def prompt_tokens() -> tuple[list[list[int]], int]:
    """The prompts as rows of token numbers of equal length, and the token that ends a prompt and fills shorter ones."""
    words = sorted({word for prompt in PROMPTS for word in prompt.split()})
    longest = max(len(prompt.split()) for prompt in PROMPTS)
    end = len(words)
    tokens = [[words.index(word) for word in prompt.split()] for prompt in PROMPTS]
    return [ids + [end] * (longest + 1 - len(ids)) for ids in tokens], end


def build_model(shape: ImageShape, classes: int) -> "nn.Module":
    """A UNet (widths 32 and 64) with cross-attention to a CLIP text encoder (2 layers of width 32)."""
    import torch
    from diffusers import DDPMScheduler, UNet2DConditionModel
    from torch import nn
    from transformers import CLIPTextConfig, CLIPTextModel

    rows, end = prompt_tokens()

    class Upsample(nn.Module):
        """Doubles height and width. That of diffusers asks for the number of rows, which torch.export refuses."""

        def __init__(self, conv: nn.Module) -> None:
            super().__init__()
            self.conv = conv

        def forward(self, rows: torch.Tensor, size: tuple[int, int] | None = None) -> torch.Tensor:
            larger = nn.functional.interpolate(rows, size=size, scale_factor=None if size else 2.0)
            result: torch.Tensor = self.conv(larger)
            return result

    class DreamBooth(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.text_encoder = CLIPTextModel(
                CLIPTextConfig(
                    vocab_size=end + 1,
                    hidden_size=32,
                    intermediate_size=64,
                    num_hidden_layers=2,
                    num_attention_heads=2,
                    max_position_embeddings=len(rows[0]),
                    bos_token_id=0,
                    eos_token_id=end,
                )
            )
            self.unet = UNet2DConditionModel(
                sample_size=shape[1:],
                in_channels=shape[0],
                out_channels=shape[0],
                down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
                up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
                block_out_channels=(32, 64),
                layers_per_block=1,
                norm_num_groups=8,
                attention_head_dim=2,
                cross_attention_dim=32,
            )
            for block in self.unet.up_blocks:
                if block.upsamplers is not None:
                    block.upsamplers = nn.ModuleList(Upsample(each.conv) for each in block.upsamplers)
            self.register_buffer("prompts", torch.tensor(rows[:classes]))
            self.register_buffer("alphas_cumprod", DDPMScheduler().alphas_cumprod)

        def forward(self, noisy: torch.Tensor, steps: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
            texts = self.text_encoder(self.prompts).last_hidden_state
            noise: torch.Tensor = self.unet(noisy, steps, texts[classes]).sample
            return noise

    return DreamBooth()


def train(loop: "TrainingLoop") -> None:
    """Train both parts with AdamW on the sum of the subject's loss and the class's."""
    import torch
    from accelerate import Accelerator
    from diffusers import DDPMScheduler

    accelerator, scheduler = Accelerator(), DDPMScheduler()
    model = loop.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    loop.register(model=model, optimizer=optimizer)
    for _ in loop.epochs():
        for images, classes in loop.batches():
            noise = torch.randn_like(images)
            steps = torch.randint(len(scheduler), (len(images),), device=images.device)
            predicted = model(scheduler.add_noise(images, noise, steps), steps, classes)
            errors = (predicted - noise).square().flatten(1).mean(1)
            is_subject = classes == SUBJECT
            loss = errors[is_subject].mean() + PRIOR_WEIGHT * errors[~is_subject].mean()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            loop.finish_step(errors[:, None].expand(-1, len(PROMPTS)), prior_loss=errors[~is_subject].mean())


recipe = Recipe(
    name="dreambooth",
    summary="Images of a subject and of its class: small diffusion model with a text encoder",
    source=ImageFolder(classes=("class", "subject")),
    problem=Denoising(),
    build_model=build_model,
    trainer=Accelerate(train, epochs=40, global_batch_size=64, balance_classes=True),
    settings=Settings(data=DataSettings(image_size=32), scaling=ScalingSettings(num_workers=2)),
)
