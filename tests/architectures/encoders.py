"""Text encoders of transformers."""

from .inputs import text
from .registry import Network, architecture

VOCABULARY = 97
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
}
encoder = architecture(batch=(2, 3), sequence=(9, 14))


def network(kind: str, head: str = "Model", **settings) -> Network:
    """``kind`` with a head; settings that are None are left to the package."""
    import transformers

    sizes = {name: size for name, size in {**SIZES, **settings}.items() if size is not None}
    config = getattr(transformers, f"{kind}Config")(**sizes)
    return Network(getattr(transformers, f"{kind}{head}")(config), text(VOCABULARY))


@encoder
def bert():
    return network("Bert", type_vocab_size=2)


@encoder
def roberta():
    return network("Roberta", "ForTokenClassification", pad_token_id=1)


@encoder
def xlm_roberta():
    return network("XLMRoberta", "ForSequenceClassification")


@encoder
def distilbert():
    return network(
        "DistilBert", "ForQuestionAnswering", dim=48, n_layers=2, n_heads=4, hidden_dim=96
    )


@encoder
def albert():
    return network("Albert", embedding_size=24)


@encoder
def electra():
    return network("Electra", "ForMaskedLM", embedding_size=24)


@encoder
def deberta():
    return network("Deberta", relative_attention=True, pos_att_type=["c2p", "p2c"])


@encoder
def deberta_v2():
    return network(
        "DebertaV2",
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        position_buckets=8,
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        conv_kernel_size=3,
    )


@encoder
def mpnet():
    return network("MPNet")


@encoder
def convbert():
    return network("ConvBert", embedding_size=24, conv_kernel_size=3)


@encoder
def squeezebert():
    return network("SqueezeBert", embedding_size=48)


@encoder
def mobilebert():
    return network("MobileBert", embedding_size=24, intra_bottleneck_size=32, true_hidden_size=32)


@encoder
def modernbert():
    return network("ModernBert", pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1,
                   sep_token_id=2, local_attention=4)  # fmt: skip


@encoder
def roformer():
    return network("RoFormer", embedding_size=48)


@encoder
def nystromformer():
    return network("Nystromformer", num_landmarks=32, segment_means_seq_len=32)


@encoder
def layoutlm():
    import torch

    base = network("LayoutLM")

    def inputs(batch, sequence):
        corners = torch.randint(500, (batch, sequence, 2))
        boxes = torch.cat([corners, corners + torch.randint(500, (batch, sequence, 2))], -1)
        return {**base.inputs(batch, sequence), "bbox": boxes}

    return Network(base.module, inputs)


@encoder
def esm():
    return network("Esm", pad_token_id=1, mask_token_id=2, position_embedding_type="rotary")


@encoder
def ibert():
    return network("IBert", quant_mode=False)


@encoder
def megatron_bert():
    return network("MegatronBert")


@encoder
def data2vec_text():
    return network("Data2VecText")


@encoder
def xlnet():
    return network(
        "XLNet", d_head=12, d_inner=96, use_mems_eval=False, max_position_embeddings=None
    )


@encoder
def funnel():
    return network(
        "Funnel",
        block_sizes=[1, 1],
        d_model=48,
        n_head=4,
        d_head=12,
        d_inner=96,
        num_decoder_layers=1,
        num_hidden_layers=None,
    )


@architecture(batch=(2, 3))
def fnet():
    import transformers

    config = transformers.FNetConfig(**{**SIZES, "max_position_embeddings": 16})
    base = text(VOCABULARY, mask=None)
    return Network(transformers.FNetModel(config), lambda batch: base(batch, 16))


@architecture(batch=(2, 3))
def canine():
    import transformers

    config = transformers.CanineConfig(
        **{**SIZES, "max_position_embeddings": 64}, num_hash_buckets=64, local_transformer_stride=16
    )
    base = text(VOCABULARY)
    return Network(transformers.CanineModel(config), lambda batch: base(batch, 32))


@architecture(batch=(2, 3))
def longformer():
    import transformers

    config = transformers.LongformerConfig(**SIZES, attention_window=4, pad_token_id=1)
    base = text(VOCABULARY)
    return Network(transformers.LongformerModel(config), lambda batch: base(batch, 16))
