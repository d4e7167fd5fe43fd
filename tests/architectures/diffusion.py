"""Parts of diffusion pipelines: UNets, transformers, autoencoders, control networks."""

import torch
from torch import nn

from .inputs import image
from .registry import Network, architecture

latents = architecture(batch=(2, 3), side=(16, 24))
UNET = {
    "block_out_channels": (16, 32),
    "layers_per_block": 1,
    "norm_num_groups": 8,
    "cross_attention_dim": 24,
    "attention_head_dim": 8,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
}


class Denoise(nn.Module):
    """The prediction of a denoiser whose results come as a tuple."""

    def __init__(self, model: nn.Module, **fixed):
        super().__init__()
        self.model = model
        self.fixed = fixed

    def forward(self, **inputs):
        return self.model(**inputs, **self.fixed, return_dict=False)


def conditioned(batch: int, side: int) -> dict[str, torch.Tensor]:
    return {
        "sample": torch.randn(batch, 4, side, side),
        "timestep": torch.tensor([10] * batch),
        "encoder_hidden_states": torch.randn(batch, 6, 24),
    }


@latents
def unet_2d():
    from diffusers import UNet2DModel

    model = UNet2DModel(
        in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(16, 32),
        norm_num_groups=8, attention_head_dim=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip

    def inputs(batch, side):
        return {
            "sample": torch.randn(batch, 4, side, side),
            "timestep": torch.tensor([10] * batch),
        }

    return Network(Denoise(model), inputs)


@latents
def stable_diffusion_unet():
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        **UNET, sample_size=16, up_block_types=("UpBlock2D", "CrossAttnUpBlock2D")
    )
    return Network(Denoise(model), conditioned)


@latents
def stable_diffusion_xl_unet():
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        **UNET, sample_size=16, up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        use_linear_projection=True, transformer_layers_per_block=(1, 2),
    )  # fmt: skip
    return Network(Denoise(model), conditioned)


@latents
def control_net():
    from diffusers import ControlNetModel

    model = ControlNetModel(**UNET, conditioning_embedding_out_channels=(8, 16))

    def inputs(batch, side):
        return {
            **conditioned(batch, side),
            "controlnet_cond": torch.randn(batch, 3, 2 * side, 2 * side),
        }

    return Network(Denoise(model), inputs)


def autoencoder():
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(16, 32), norm_num_groups=8, latent_channels=4,
    )  # fmt: skip


@latents
def vae_decoder():
    model = autoencoder()
    return Network(
        nn.Sequential(model.post_quant_conv, model.decoder), image(16, name="input", channels=4)
    )


@latents
def vae_encoder():
    model = autoencoder()
    return Network(nn.Sequential(model.encoder, model.quant_conv), image(16, name="input"))


@latents
def tiny_autoencoder():
    from diffusers import AutoencoderTiny

    model = AutoencoderTiny(
        encoder_block_out_channels=(16, 16), decoder_block_out_channels=(16, 16),
        num_encoder_blocks=(1, 1), num_decoder_blocks=(1, 1), upsampling_scaling_factor=2,
    )  # fmt: skip
    return Network(model.decoder, image(16, name="x", channels=4))


@architecture(batch=(2, 3))
def dit():
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=16, in_channels=4, num_layers=2, sample_size=8,
        num_embeds_ada_norm=10, norm_num_groups=4,
    )  # fmt: skip

    def inputs(batch):
        return {
            "hidden_states": torch.randn(batch, 4, 8, 8),
            "timestep": torch.tensor([10] * batch),
            "class_labels": torch.arange(batch),
        }

    return Network(Denoise(model), inputs)


@architecture(batch=(2, 3))
def pixart():
    from diffusers import PixArtTransformer2DModel

    model = PixArtTransformer2DModel(
        num_attention_heads=2, attention_head_dim=16, in_channels=4, num_layers=2, sample_size=8,
        cross_attention_dim=32, caption_channels=24,
    )  # fmt: skip

    def inputs(batch):
        return {
            "hidden_states": torch.randn(batch, 4, 8, 8),
            "timestep": torch.tensor([10] * batch),
            "encoder_hidden_states": torch.randn(batch, 6, 24),
        }

    return Network(
        Denoise(model, added_cond_kwargs={"resolution": None, "aspect_ratio": None}), inputs
    )


@architecture(batch=(2, 3))
def stable_diffusion_3():
    from diffusers import SD3Transformer2DModel

    model = SD3Transformer2DModel(
        sample_size=8, num_layers=2, attention_head_dim=16, num_attention_heads=2, in_channels=4,
        out_channels=4, joint_attention_dim=24, caption_projection_dim=32,
        pooled_projection_dim=20, pos_embed_max_size=8,
    )  # fmt: skip

    def inputs(batch):
        return {
            "hidden_states": torch.randn(batch, 4, 8, 8),
            "encoder_hidden_states": torch.randn(batch, 6, 24),
            "pooled_projections": torch.randn(batch, 20),
            "timestep": torch.tensor([10] * batch),
        }

    return Network(Denoise(model), inputs)


@architecture(batch=(2, 3), tokens=(16, 25))
def flux():
    from diffusers import FluxTransformer2DModel

    model = FluxTransformer2DModel(
        in_channels=8, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=24, pooled_projection_dim=20,
        axes_dims_rope=(4, 6, 6),
    )  # fmt: skip

    def inputs(batch, tokens):
        return {
            "hidden_states": torch.randn(batch, tokens, 8),
            "encoder_hidden_states": torch.randn(batch, 6, 24),
            "pooled_projections": torch.randn(batch, 20),
            "timestep": torch.tensor([0.5] * batch),
            "img_ids": torch.arange(tokens * 3).reshape(tokens, 3).float() % 5,
            "txt_ids": torch.zeros(6, 3),
        }

    return Network(Denoise(model), inputs)


@architecture(batch=(2, 3))
def vq_decoder():
    from diffusers import VQModel

    model = VQModel(
        block_out_channels=(16, 32), down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=8, num_vq_embeddings=16,
        latent_channels=4,
    )  # fmt: skip

    class Reconstructed(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, sample):
            latents = self.model.encode(sample).latents
            quantised, _, (_, _, codes) = self.model.quantize(latents)
            return codes, self.model.decoder(self.model.post_quant_conv(quantised))

    return Network(Reconstructed(), image(32, name="sample"))


@architecture(batch=(2, 3))
def unet_1d():
    from diffusers import UNet1DModel

    model = UNet1DModel(
        sample_size=64, in_channels=2, out_channels=2, extra_in_channels=64,
        block_out_channels=(32, 32), down_block_types=("DownBlock1DNoSkip", "AttnDownBlock1D"),
        up_block_types=("AttnUpBlock1D", "UpBlock1DNoSkip"),
    )  # fmt: skip

    def inputs(batch):
        return {"sample": torch.randn(batch, 2, 64), "timestep": torch.tensor([10] * batch)}

    return Network(Denoise(model), inputs)
