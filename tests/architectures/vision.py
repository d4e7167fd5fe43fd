"""Image classifiers of timm: transformers, convolutional networks, mixers."""

from .inputs import image
from .registry import Network, architecture

classifier = architecture(batch=(2, 3))


def network(name: str, side: int = 64, **settings) -> Network:
    import timm

    return pictures(timm.create_model(name, num_classes=10, **settings), side)


def pictures(module, side: int = 64) -> Network:
    return Network(module, image(side, name="x"))


@classifier
def vit():
    return network("vit_tiny_patch16_224", 32, img_size=32, patch_size=8, depth=2, embed_dim=48)


@classifier
def deit_distilled():
    return network(
        "deit_tiny_distilled_patch16_224", 32, img_size=32, patch_size=8, depth=2, embed_dim=48
    )


@classifier
def swin():
    return network(
        "swin_tiny_patch4_window7_224", img_size=64, embed_dim=24, depths=(2, 2), num_heads=(2, 4),
        window_size=4,
    )  # fmt: skip


@classifier
def swin_v2():
    return network(
        "swinv2_tiny_window8_256", img_size=64, embed_dim=24, depths=(2, 2), num_heads=(2, 4),
        window_size=4,
    )  # fmt: skip


@classifier
def beit():
    return network("beit_base_patch16_224", 32, img_size=32, patch_size=8, depth=2, embed_dim=48,
                   num_heads=4)  # fmt: skip


@classifier
def eva02():
    return network("eva02_tiny_patch14_224", 28, img_size=28, patch_size=7, depth=2, embed_dim=48)


@classifier
def cait():
    return network("cait_xxs24_224", 32, img_size=32, patch_size=8, depth=2, embed_dim=48)


@classifier
def xcit():
    return network("xcit_nano_12_p16_224", 32, img_size=32, depth=2, embed_dim=48)


@classifier
def pvt_v2():
    return network("pvt_v2_b0", embed_dims=(16, 32, 48, 64), depths=(1, 1, 1, 1),
                   num_heads=(1, 2, 4, 4))  # fmt: skip


@classifier
def twins_svt():
    return network("twins_svt_small", img_size=64, embed_dims=(16, 32, 48, 64), depths=(1, 1, 1, 1),
                   num_heads=(1, 2, 3, 4), wss=(4, 4, 2, 2))  # fmt: skip


@classifier
def coat():
    return network("coat_lite_tiny", img_size=64, embed_dims=(16, 32, 48, 64),
                   serial_depths=(1, 1, 1, 1))  # fmt: skip


@classifier
def crossvit():
    return network("crossvit_9_240", 240)


@classifier
def maxvit():
    return network("maxvit_rmlp_pico_rw_256", img_size=64, embed_dim=(32, 32, 64, 64),
                   depths=(1, 1, 1, 1))  # fmt: skip


@classifier
def coatnet():
    return network("coatnet_pico_rw_224", img_size=64, depths=(1, 1, 1, 1))


@classifier
def hiera():
    return network("hiera_tiny_224", img_size=64, embed_dim=24, num_heads=1, stages=(1, 1, 1, 1))


@classifier
def levit():
    return network("levit_128s", img_size=64, depth=(1, 1, 1))


@classifier
def mobilevit():
    return network("mobilevit_xxs")


@classifier
def mobilevit_v2():
    return network("mobilevitv2_050")


@classifier
def edgenext():
    return network("edgenext_xx_small")


@classifier
def efficientformer():
    return network("efficientformer_l1", 224, embed_dims=(16, 24, 32, 48), depths=(1, 1, 1, 2))


@classifier
def fastvit():
    return network("fastvit_t8", embed_dims=(16, 32, 64, 128), layers=(1, 1, 1, 1))


@classifier
def focalnet():
    from timm.models.focalnet import FocalNet

    return pictures(FocalNet(num_classes=10, embed_dim=24, depths=(1, 1, 1, 1)))


@classifier
def davit():
    return network(
        "davit_tiny", embed_dims=(16, 32, 48, 64), depths=(1, 1, 1, 1), num_heads=(1, 2, 3, 4)
    )


@classifier
def poolformer():
    from timm.models.metaformer import GroupNorm1, MetaFormer
    from torch.nn import GELU

    return pictures(
        MetaFormer(
            num_classes=10, dims=(16, 32, 48, 64), depths=(1, 1, 1, 1), downsample_norm=None,
            mlp_act=GELU, mlp_bias=True, norm_layers=GroupNorm1, layer_scale_init_values=1e-5,
            res_scale_init_values=None, use_mlp_head=False,
        )
    )  # fmt: skip


@classifier
def caformer():
    from timm.models.metaformer import (
        Attention,
        LayerNorm2dNoBias,
        LayerNormNoBias,
        MetaFormer,
        SepConv,
    )

    return pictures(
        MetaFormer(
            num_classes=10, dims=(16, 32, 64, 64), depths=(1, 1, 1, 1),
            token_mixers=[SepConv, SepConv, Attention, Attention],
            norm_layers=[LayerNorm2dNoBias] * 2 + [LayerNormNoBias] * 2,
        )
    )  # fmt: skip


def mixer(**settings) -> Network:
    from timm.models.mlp_mixer import MlpMixer

    module = MlpMixer(
        num_classes=10, img_size=32, patch_size=8, num_blocks=2, embed_dim=48, **settings
    )
    return pictures(module, 32)


@classifier
def mlp_mixer():
    return mixer()


@classifier
def gmlp():
    from timm.layers import GatedMlp
    from timm.models.mlp_mixer import SpatialGatingBlock

    return mixer(mlp_ratio=6, block_layer=SpatialGatingBlock, mlp_layer=GatedMlp)


@classifier
def sequencer2d():
    return network("sequencer2d_s", img_size=64, embed_dims=(16, 32, 32, 48), layers=(1, 1, 1, 1),
                   hidden_sizes=(8, 16, 16, 16))  # fmt: skip


@classifier
def volo():
    from timm.models.volo import VOLO

    return pictures(
        VOLO(num_classes=10, img_size=64, layers=(1, 1, 1, 1), embed_dims=(24, 48, 48, 48),
             num_heads=(2, 4, 4, 4))
    )  # fmt: skip


@architecture(batch=(2, 3), side=(64, 96))
def resnet():
    return network("resnet18", layers=(1, 1, 1, 1), channels=(16, 24, 32, 48))


@classifier
def resnest():
    return network("resnest14d", layers=(1, 1, 1, 1))


@architecture(batch=(2, 3), side=(64, 96))
def convnext():
    return network("convnext_atto", depths=(1, 1, 1, 1), dims=(16, 24, 32, 48))


@architecture(batch=(2, 3), side=(64, 96))
def convnext_v2():
    return network("convnextv2_atto", depths=(1, 1, 1, 1), dims=(16, 24, 32, 48))


@architecture(batch=(2, 3), side=(64, 96))
def regnet():
    return network("regnety_002")


@architecture(batch=(2, 3), side=(64, 96))
def mobilenet_v3():
    return network("mobilenetv3_small_050")


@architecture(batch=(2, 3), side=(64, 96))
def mobilenet_v4():
    return network("mobilenetv4_conv_small_050")


@classifier
def efficientnet():
    return network("test_efficientnet")


@classifier
def tf_efficientnet():
    return network("tf_efficientnetv2_b0")


@classifier
def ghostnet():
    return network("ghostnet_050")


@classifier
def densenet():
    return network(
        "densenet121",
        growth_rate=8,
        block_config=(2, 2, 2, 2),
    )


@classifier
def dpn():
    return network("dpn48b", k_sec=(1, 1, 1, 1))


@classifier
def hrnet():
    return network("hrnet_w18_small")


@classifier
def inception_v3():
    return network("inception_v3", 96)


@classifier
def nf_regnet():
    return network("nf_regnet_b0")


@classifier
def repvgg():
    return network("repvgg_a0")


@classifier
def res2net():
    return network("res2net50_26w_4s", layers=(1, 1, 1, 1))


@classifier
def rexnet():
    return network("rexnetr_100")


@classifier
def selecsls():
    return network("selecsls42b")


@classifier
def vovnet():
    return network("ese_vovnet19b_slim_dw")


@classifier
def xception():
    return network("xception41p")


@classifier
def halonet():
    from timm.models.byobnet import ByoBlockCfg, ByobNet, ByoModelCfg

    config = ByoModelCfg(
        blocks=(
            ByoBlockCfg(type="bottle", d=1, c=32, s=2, gs=0, br=0.5),
            ByoBlockCfg(type="self_attn", d=1, c=64, s=2, gs=0, br=0.5),
        ),
        stem_chs=16, stem_type="tiered", stem_pool="maxpool", self_attn_layer="halo",
        self_attn_kwargs={"block_size": 2, "halo_size": 1},
    )  # fmt: skip
    return pictures(ByobNet(config, num_classes=10))


@classifier
def gcvit():
    return network("gcvit_xxtiny", 224)
