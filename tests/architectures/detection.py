"""Detectors: with queries, with anchors and NMS, with regions."""

import torch
from torch import nn

from .inputs import image
from .registry import Network, architecture

images = architecture(batch=(2, 3))
one_image = architecture()
LABELS = {"num_labels": 5}


class Boxes(nn.Module):
    """What a detector of transformers finds, without its inner states."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, pixel_values):
        found = self.model(pixel_values)
        return found.logits, found.pred_boxes


class Torchvision(nn.Module):
    """A detector of torchvision on one image [3, height, width]."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model([x])[0]


def backbone() -> dict:
    """Settings of a small ResNet."""
    from transformers import ResNetConfig

    return {
        "backbone_config": ResNetConfig(
            embedding_size=16, hidden_sizes=[16, 24, 32, 48], depths=[1, 1, 1, 1],
            layer_type="basic", out_features=["stage2", "stage3", "stage4"],
        ),
        "use_timm_backbone": False,
        "use_pretrained_backbone": False,
        "backbone": None,
    }  # fmt: skip


def transformer(kind: str, side: int = 64, backbone_config: dict | None = None, **settings):
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        **{**LABELS, **(backbone_config or {}), **settings}
    )
    return Network(Boxes(getattr(transformers, f"{kind}ForObjectDetection")(config)), image(side))


DETR = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_queries": 10,
}  # fmt: skip


@images
def detr():
    settings = backbone()
    settings["backbone_config"].out_features = ["stage4"]
    return transformer("Detr", 96, settings, **DETR)


@images
def conditional_detr():
    settings = backbone()
    settings["backbone_config"].out_features = ["stage4"]
    return transformer("ConditionalDetr", 96, settings, **DETR)


@images
def deformable_detr():
    return transformer(
        "DeformableDetr", 96, backbone(), **{**DETR, "decoder_layers": 2}, num_feature_levels=3
    )


@images
def rt_detr():
    from transformers import RTDetrConfig, RTDetrForObjectDetection, RTDetrResNetConfig

    config = RTDetrConfig(
        backbone_config=RTDetrResNetConfig(
            embedding_size=16, hidden_sizes=[16, 24, 32, 48], depths=[1, 1, 1, 1],
            layer_type="basic", out_features=["stage2", "stage3", "stage4"],
        ),
        encoder_hidden_dim=32, encoder_in_channels=[24, 32, 48], feat_strides=[8, 16, 32],
        encoder_ffn_dim=64, encoder_attention_heads=4, d_model=32, num_queries=10,
        decoder_in_channels=[32, 32, 32], decoder_ffn_dim=64, decoder_layers=1,
        decoder_attention_heads=4, num_denoising=0, **LABELS,
    )  # fmt: skip
    return Network(Boxes(RTDetrForObjectDetection(config)), image(96))


@images
def yolos():
    return transformer(
        "Yolos", 64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, image_size=[64, 64], patch_size=16, num_detection_tokens=8,
    )  # fmt: skip


@images
def yolo_v8():
    from examples import EXAMPLES

    return Network(EXAMPLES["detector"].build("small"), image(64, name="image"), calibrated=True)


def torchvision_detector(name: str, side: int = 64, **settings) -> Network:
    from torchvision.models import detection

    model = getattr(detection, name)(
        weights=None, weights_backbone=None, num_classes=5, min_size=side, max_size=side, **settings
    )
    return Network(Torchvision(model), lambda: {"x": torch.rand(3, side, side)})


@one_image
def faster_rcnn():
    return torchvision_detector(
        "fasterrcnn_mobilenet_v3_large_320_fpn", rpn_pre_nms_top_n_test=50,
        rpn_post_nms_top_n_test=20, box_detections_per_img=10,
    )  # fmt: skip


@one_image
def mask_rcnn():
    return torchvision_detector(
        "maskrcnn_resnet50_fpn", rpn_pre_nms_top_n_test=50, rpn_post_nms_top_n_test=20,
        box_detections_per_img=5,
    )  # fmt: skip


@one_image
def retinanet():
    return torchvision_detector("retinanet_resnet50_fpn", topk_candidates=20, detections_per_img=10)


@one_image
def fcos():
    return torchvision_detector("fcos_resnet50_fpn", topk_candidates=20, detections_per_img=10)


@one_image
def ssdlite():
    from torchvision.models import detection

    model = detection.ssdlite320_mobilenet_v3_large(
        weights=None,
        weights_backbone=None,
        num_classes=5,
        topk_candidates=20,
        detections_per_img=10,
    )
    return Network(Torchvision(model), lambda: {"x": torch.rand(3, 320, 320)})
