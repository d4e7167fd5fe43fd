"""Segmentation and depth."""

import torch
from torch import nn

from .detection import backbone
from .inputs import image
from .registry import Network, architecture

images = architecture(batch=(2, 3))


class Only(nn.Module):
    """Some of the results of a model."""

    def __init__(self, model: nn.Module, *names: str):
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, **inputs):
        results = self.model(**inputs)
        return [results[name] for name in self.names]


@images
def segformer():
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(
        depths=[1, 1, 1, 1], hidden_sizes=[16, 24, 32, 48], num_attention_heads=[1, 2, 2, 4],
        decoder_hidden_size=32, num_labels=5,
    )  # fmt: skip
    return Network(SegformerForSemanticSegmentation(config), image(64))


@images
def upernet():
    from transformers import ConvNextConfig, UperNetConfig, UperNetForSemanticSegmentation

    config = UperNetConfig(
        backbone_config=ConvNextConfig(
            depths=[1, 1, 1, 1], hidden_sizes=[16, 24, 32, 48],
            out_features=["stage1", "stage2", "stage3", "stage4"],
        ),
        hidden_size=32, auxiliary_in_channels=32, auxiliary_channels=16, num_labels=5,
    )  # fmt: skip
    return Network(UperNetForSemanticSegmentation(config), image(192))  # pooled to 6 x 6


@images
def mask2former():
    from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation, SwinConfig

    config = Mask2FormerConfig(
        backbone_config=SwinConfig(
            image_size=64, embed_dim=16, depths=[1, 1, 1, 1], num_heads=[2, 2, 2, 2], window_size=2,
            out_features=["stage1", "stage2", "stage3", "stage4"],
        ),
        feature_size=32, mask_feature_size=32, hidden_dim=32, encoder_feedforward_dim=64,
        encoder_layers=1, decoder_layers=2, num_attention_heads=4, dim_feedforward=64,
        num_queries=8, num_labels=5,
    )  # fmt: skip
    model = Mask2FormerForUniversalSegmentation(config)
    return Network(Only(model, "class_queries_logits", "masks_queries_logits"), image(64))


@images
def maskformer():
    from transformers import (
        DetrConfig,
        MaskFormerConfig,
        MaskFormerForInstanceSegmentation,
        SwinConfig,
    )

    config = MaskFormerConfig(
        backbone_config=SwinConfig(
            image_size=64, embed_dim=16, depths=[1, 1, 1, 1], num_heads=[2, 2, 2, 2], window_size=2,
            out_features=["stage1", "stage2", "stage3", "stage4"],
        ),
        decoder_config=DetrConfig(
            **backbone(), d_model=32, decoder_layers=1, decoder_attention_heads=4,
            decoder_ffn_dim=64, num_queries=8,
        ),
        fpn_feature_size=32, mask_feature_size=32, num_labels=5,
    )  # fmt: skip
    model = MaskFormerForInstanceSegmentation(config)
    return Network(Only(model, "class_queries_logits", "masks_queries_logits"), image(64))


@images
def mobilenet_v2_deeplab():
    from transformers import MobileNetV2Config, MobileNetV2ForSemanticSegmentation

    config = MobileNetV2Config(depth_multiplier=0.35, num_labels=5)
    return Network(MobileNetV2ForSemanticSegmentation(config), image(64))


@images
def mobilevit_deeplab():
    from transformers import MobileViTConfig, MobileViTForSemanticSegmentation

    config = MobileViTConfig(
        image_size=64, hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 16, 24, 24, 32, 48],
        num_labels=5,
    )  # fmt: skip
    return Network(MobileViTForSemanticSegmentation(config), image(64))


@images
def dpt():
    from transformers import DPTConfig, DPTForDepthEstimation

    config = DPTConfig(
        image_size=64, patch_size=16, hidden_size=32, num_hidden_layers=4, num_attention_heads=4,
        intermediate_size=64, backbone_out_indices=[0, 1, 2, 3], is_hybrid=False,
        neck_hidden_sizes=[16, 16, 24, 24], fusion_hidden_size=24,
    )  # fmt: skip
    return Network(Only(DPTForDepthEstimation(config), "predicted_depth"), image(64))


@images
def glpn():
    from transformers import GLPNConfig, GLPNForDepthEstimation

    config = GLPNConfig(
        depths=[1, 1, 1, 1], hidden_sizes=[16, 24, 32, 48], num_attention_heads=[1, 2, 2, 4],
        decoder_hidden_size=16,
    )  # fmt: skip
    return Network(GLPNForDepthEstimation(config), image(64))


@architecture()
def sam():
    from transformers import SamConfig, SamModel, SamVisionConfig

    config = SamConfig(
        vision_config=SamVisionConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=64,
            patch_size=8, output_channels=32, window_size=3, global_attn_indexes=[1], mlp_dim=64,
            num_pos_feats=16,
        ).to_dict(),
        mask_decoder_config={
            "hidden_size": 32, "mlp_dim": 64, "num_attention_heads": 4, "iou_head_hidden_dim": 32,
        },
        prompt_encoder_config={"hidden_size": 32, "image_size": 64, "patch_size": 8,
                               "mask_input_channels": 4},
    )  # fmt: skip

    def inputs():
        return {
            "pixel_values": torch.randn(1, 3, 64, 64),
            "input_points": torch.rand(1, 1, 2, 2) * 64,
        }

    return Network(Only(SamModel(config), "iou_scores", "pred_masks"), inputs)


def torchvision_network(name: str, argument: str = "x") -> Network:
    from torchvision.models import segmentation

    model = getattr(segmentation, name)(weights=None, weights_backbone=None, num_classes=5)
    return Network(Only(model, "out"), image(64, name=argument))


@images
def deeplab_v3():
    return torchvision_network("deeplabv3_mobilenet_v3_large")


@images
def lraspp():
    return torchvision_network("lraspp_mobilenet_v3_large", "input")


@images
def fcn():
    return torchvision_network("fcn_resnet50")


@architecture(batch=(2, 3), side=(32, 48))
def unet():
    from examples import EXAMPLES

    example = EXAMPLES["unet"]
    (name,) = example.inputs("small")
    return Network(example.build("small"), image(32, name=name), calibrated=True)
