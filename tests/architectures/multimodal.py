"""Images and text together, of transformers."""

import torch

from .inputs import padding_mask
from .registry import Network, architecture

pairs = architecture(batch=(2, 3), sequence=(9, 14))
VOCABULARY = 97
TEXT = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
VISION = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip


def both(batch: int, sequence: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, VOCABULARY, (batch, sequence))
    ids[:, -1] = 2
    return {
        "input_ids": ids,
        "attention_mask": padding_mask(batch, sequence),
        "pixel_values": torch.randn(batch, 3, 32, 32),
    }


@pairs
def clip():
    from transformers import CLIPConfig, CLIPModel

    return Network(
        CLIPModel(CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=24)), both
    )


@architecture(batch=(2, 3))
def siglip():
    from transformers import SiglipConfig, SiglipModel

    model = SiglipModel(SiglipConfig(text_config=TEXT, vision_config=VISION))
    return Network(model, lambda batch: both(batch, 16))


@pairs
def chinese_clip():
    from transformers import ChineseCLIPConfig, ChineseCLIPModel

    config = ChineseCLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=24)
    return Network(ChineseCLIPModel(config), both)


@pairs
def blip():
    from transformers import BlipConfig, BlipForImageTextRetrieval

    config = BlipConfig(
        text_config={**TEXT, "encoder_hidden_size": 32}, vision_config=VISION, projection_dim=24,
        image_text_hidden_size=24,
    )  # fmt: skip
    return Network(BlipForImageTextRetrieval(config), both)


@pairs
def flava():
    from transformers import FlavaConfig, FlavaModel

    config = FlavaConfig(
        text_config=TEXT, image_config=VISION, multimodal_config={**VISION, "hidden_size": 32},
        hidden_size=32, projection_dim=24,
    )  # fmt: skip
    return Network(FlavaModel(config), both)


@architecture(batch=(2, 3))
def dinov2():
    from transformers import Dinov2Config, Dinov2Model

    config = Dinov2Config(**{k: v for k, v in VISION.items() if k != "intermediate_size"})
    return Network(
        Dinov2Model(config), lambda batch: {"pixel_values": torch.randn(batch, 3, 32, 32)}
    )


@architecture(batch=(2, 3))
def vit_msn():
    from transformers import ViTMSNConfig, ViTMSNModel

    return Network(
        ViTMSNModel(ViTMSNConfig(**VISION)),
        lambda batch: {"pixel_values": torch.randn(batch, 3, 32, 32)},
    )


@architecture(batch=(2, 3))
def vivit():
    from transformers import VivitConfig, VivitModel

    config = VivitConfig(**VISION, num_frames=4, tubelet_size=[2, 8, 8])
    return Network(
        VivitModel(config), lambda batch: {"pixel_values": torch.randn(batch, 4, 3, 32, 32)}
    )


@architecture(batch=(2, 3))
def perceiver():
    from transformers import PerceiverConfig, PerceiverModel

    config = PerceiverConfig(
        num_latents=8, d_latents=32, d_model=16, num_blocks=1, num_self_attends_per_block=2,
        num_self_attention_heads=4, num_cross_attention_heads=4,
    )  # fmt: skip
    return Network(PerceiverModel(config), lambda batch: {"inputs": torch.randn(batch, 20, 16)})
