"""Text encoders of transformers, and what is put on top of them."""

import torch

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


class Sentence(torch.nn.Module):
    """The mean of the tokens that are not padding, at unit length (sentence-transformers)."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        tokens = self.model(input_ids, attention_mask).last_hidden_state
        mask = attention_mask[..., None].expand(tokens.shape).float()
        mean = (tokens * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, dim=1)


@encoder
def sentence_transformer():
    base = network("Bert", type_vocab_size=2)
    return Network(Sentence(base.module), base.inputs)


class Sparse(torch.nn.Module):
    """A weight for each word of the vocabulary (SPLADE, Formal et al. 2021)."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        found = self.model(input_ids, attention_mask).logits
        return (torch.log1p(found.relu()) * attention_mask[..., None]).amax(1)


@encoder
def splade():
    base = network("DistilBert", "ForMaskedLM", dim=48, n_layers=2, n_heads=4, hidden_dim=96)
    return Network(Sparse(base.module), base.inputs)


@encoder
def nomic_bert():
    return network("NomicBert", type_vocab_size=2)


@encoder
def rembert():
    return network("RemBert", "ForSequenceClassification", input_embedding_size=24)


@encoder
def big_bird():
    return network("BigBird", attention_type="original_full")


@encoder
def xlm():
    return network("XLM", emb_dim=48, n_layers=2, n_heads=4)


@encoder
def lilt():
    import transformers

    boxes = layoutlm()
    config = transformers.LiltConfig(**SIZES, channel_shrink_ratio=4)
    return Network(transformers.LiltModel(config), boxes.inputs)


@encoder
def bert_crf():
    """Tags by their best path: scores of transitions, a maximum for each token."""

    class Tagger(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = network("Bert", "ForTokenClassification", num_labels=5).module
            self.transitions = torch.nn.Parameter(torch.randn(5, 5))

        def forward(self, input_ids, attention_mask):
            emitted = self.model(input_ids, attention_mask).logits
            score, best = emitted[:, 0], []
            for k in range(1, 9):
                reached, where = (score[:, :, None] + self.transitions).max(1)
                score = reached + emitted[:, k]
                best.append(where)
            tag = score.argmax(-1, keepdim=True)
            path = [tag]
            for where in best[::-1]:
                tag = where.gather(1, tag)
                path.append(tag)
            return torch.cat(path[::-1], 1), score.amax(-1)

    return Network(Tagger(), text(VOCABULARY))
