"""Decoders of transformers with a KV cache, state-space models, and encoder-decoders."""

import torch
from torch import nn

from .inputs import padding_mask, text
from .registry import Network, architecture

VOCABULARY = 97
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
decoder = architecture(batch=(2, 3), sequence=(4, 1), past=(5, 8))
without_cache = architecture(batch=(2, 3), sequence=(9, 14))
translator = architecture(batch=(2, 3), sequence=(9, 14), target=(4, 7))


class WithCache(nn.Module):
    """A decoder step: tokens and past keys and values in, logits and present ones out."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, **past):
        from transformers import DynamicCache

        cache = DynamicCache()
        for layer in range(len(past) // 2):
            cache.update(past[f"key_{layer}"], past[f"value_{layer}"], layer)
        length = past["key_0"].shape[2]
        positions = torch.arange(length, length + input_ids.shape[1])
        result = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=positions.expand(input_ids.shape[0], -1),
            past_key_values=cache,
            use_cache=True,
        )
        return result.logits, [(layer.keys, layer.values) for layer in cache.layers]


def with_cache(
    kind: str, heads: int = 2, head_size: int = 12, value_size: int | None = None, **settings
) -> Network:
    """``kind`` as a causal language model whose cache holds ``heads`` of ``head_size``.

    Its values are of ``value_size``, where that is another.
    """
    import transformers

    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **settings})
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config)

    def inputs(batch, sequence, past):
        made = {
            "input_ids": torch.randint(3, VOCABULARY, (batch, sequence)),
            "attention_mask": torch.ones(batch, past + sequence, dtype=torch.int64),
        }
        for layer in range(SIZES["num_hidden_layers"]):
            made[f"key_{layer}"] = torch.randn(batch, heads, past, head_size)
            made[f"value_{layer}"] = torch.randn(batch, heads, past, value_size or head_size)
        return made

    return Network(WithCache(model), inputs)


class Logits(nn.Module):
    """A language model without its cache."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, **inputs):
        return self.model(**inputs, use_cache=False).logits


def logits(kind: str, head: str = "ForCausalLM", **settings) -> Network:
    import transformers

    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **settings})
    return Network(Logits(getattr(transformers, f"{kind}{head}")(config)), text(VOCABULARY, None))


def sequence_to_sequence(kind: str, **settings) -> Network:
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        **{**SIZES, "decoder_start_token_id": 1, **settings}
    )
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config)

    def inputs(batch, sequence, target):
        return {
            "input_ids": torch.randint(3, VOCABULARY, (batch, sequence)),
            "attention_mask": padding_mask(batch, sequence),
            "decoder_input_ids": torch.randint(3, VOCABULARY, (batch, target)),
        }

    return Network(Logits(model), inputs)


@decoder
def gpt2():
    return with_cache("GPT2", heads=4, n_embd=48, n_layer=2, n_head=4, n_positions=64)


@decoder
def llama():
    return with_cache("Llama")


@decoder
def mistral():
    return with_cache("Mistral", sliding_window=6)


@decoder
def qwen2():
    return with_cache("Qwen2")


@decoder
def qwen3():
    return with_cache("Qwen3", head_dim=12)


@decoder
def gemma():
    return with_cache("Gemma", head_dim=12)


@decoder
def gemma2():
    return with_cache("Gemma2", head_dim=12, sliding_window=64)


@decoder
def phi():
    return with_cache("Phi")


@decoder
def phi3():
    return with_cache("Phi3")


@decoder
def opt():
    return with_cache("OPT", heads=4, ffn_dim=96, word_embed_proj_dim=48)


@decoder
def gpt_neox():
    return with_cache("GPTNeoX", heads=4)


@decoder
def gptj():
    return with_cache("GPTJ", heads=4, n_embd=48, n_layer=2, n_head=4, n_positions=64, rotary_dim=8)


@decoder
def falcon():
    return with_cache("Falcon", heads=1, multi_query=True, new_decoder_architecture=False)


@decoder
def starcoder2():
    return with_cache("Starcoder2")


@decoder
def stablelm():
    return with_cache("StableLm", partial_rotary_factor=0.5)


@decoder
def olmo2():
    return with_cache("Olmo2")


@decoder
def cohere():
    return with_cache("Cohere")


@decoder
def granite():
    return with_cache("Granite", embedding_multiplier=2.0, attention_multiplier=0.3)


@decoder
def mixtral():
    return with_cache("Mixtral", num_local_experts=4, num_experts_per_tok=2)


@decoder
def qwen3_moe():
    return with_cache(
        "Qwen3Moe", head_dim=12, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32
    )


@decoder
def deepseek_v3():
    return with_cache(
        "DeepseekV3", heads=1, head_size=16, value_size=8, num_key_value_heads=4, q_lora_rank=24,
        kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=12,
        n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, n_group=1,
        topk_group=1, first_k_dense_replace=1,
    )  # fmt: skip


@decoder
def gpt_oss():
    return with_cache(
        "GptOss", head_dim=12, num_local_experts=4, num_experts_per_tok=2, sliding_window=64
    )


@decoder
def gpt_neo():
    return with_cache(
        "GPTNeo", heads=4, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]],
        window_size=6,
    )  # fmt: skip


@decoder
def gpt_bigcode():
    return with_cache("GPTBigCode", heads=1, n_embd=48, n_layer=2, n_head=4, n_positions=64)


@decoder
def codegen():
    return with_cache("CodeGen", heads=4, n_embd=48, n_layer=2, n_head=4, n_positions=64,
                      rotary_dim=8)  # fmt: skip


@decoder
def olmo():
    return with_cache("Olmo", clip_qkv=8.0)


@decoder
def nemotron():
    return with_cache("Nemotron", head_dim=12)


@decoder
def glm4():
    return with_cache("Glm4", head_dim=12)


@decoder
def smollm3():
    return with_cache("SmolLM3", no_rope_layer_interval=2)


@decoder
def cohere2():
    return with_cache("Cohere2", sliding_window=64)


@decoder
def xglm():
    return with_cache("XGLM", heads=4, d_model=48, ffn_dim=96, num_layers=2, attention_heads=4)


@decoder
def biogpt():
    return with_cache("BioGpt", heads=4)


@decoder
def persimmon():
    return with_cache("Persimmon", heads=4)


@decoder
def exaone4():
    return with_cache("Exaone4", sliding_window=64)


@decoder
def minicpm3():
    return with_cache(
        "MiniCPM3", heads=1, head_size=16, value_size=8, num_key_value_heads=4, q_lora_rank=24,
        kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=12, v_head_dim=12,
    )  # fmt: skip


@without_cache
def mpt():
    return logits("Mpt", d_model=48, n_heads=4, n_layers=2, max_seq_len=64, expansion_ratio=2)


@without_cache
def diff_llama():
    return logits("DiffLlama")


@without_cache
def falcon_mamba():
    return logits("FalconMamba", state_size=8, expand=2, conv_kernel=4, time_step_rank=4)


@without_cache
def lfm2():
    return logits("Lfm2", layer_types=["conv", "full_attention"])


@without_cache
def bloom():
    return logits("Bloom", n_layer=2, n_head=4)


@without_cache
def gemma3():
    import transformers

    config = transformers.Gemma3TextConfig(**SIZES, head_dim=12, sliding_window=6)
    return Network(Logits(transformers.Gemma3ForCausalLM(config)), text(VOCABULARY, None))


@without_cache
def mamba():
    return logits("Mamba", state_size=8, expand=2, conv_kernel=4, time_step_rank=4)


@without_cache
def mamba2():
    return logits("Mamba2", state_size=8, num_heads=8, head_dim=12, chunk_size=4, n_groups=1)


@without_cache
def rwkv():
    return logits("Rwkv", attention_hidden_size=48, context_length=64)


@without_cache
def recurrent_gemma():
    return logits("RecurrentGemma", lru_width=48, attention_window_size=8)


@translator
def t5():
    return sequence_to_sequence(
        "T5",
        d_model=48,
        d_kv=12,
        d_ff=96,
        num_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
    )


@translator
def bart():
    return sequence_to_sequence(
        "Bart", d_model=48, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96,
    )  # fmt: skip


@translator
def pegasus():
    return sequence_to_sequence(
        "Pegasus", d_model=48, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96,
    )  # fmt: skip


@translator
def m2m_100():
    return sequence_to_sequence(
        "M2M100", d_model=48, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96,
    )  # fmt: skip


@translator
def switch_transformers():
    return sequence_to_sequence(
        "SwitchTransformers", d_model=48, d_kv=12, d_ff=96, num_layers=2, num_decoder_layers=2,
        num_heads=4, num_experts=4, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1,
    )  # fmt: skip


@translator
def mbart():
    return sequence_to_sequence(
        "MBart", d_model=48, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96,
    )  # fmt: skip


@translator
def blenderbot():
    return sequence_to_sequence(
        "Blenderbot", d_model=48, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96,
    )  # fmt: skip


@translator
def long_t5():
    return sequence_to_sequence(
        "LongT5", d_model=48, d_kv=12, d_ff=96, num_layers=2, num_heads=4,
        encoder_attention_type="transient-global", local_radius=4, global_block_size=4,
    )  # fmt: skip


class TranslatorStep(nn.Module):
    """A step of T5's decoder: past keys and values of itself and of the encoder's states."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input_ids, encoder_attention_mask, encoder_hidden_states, **past):
        from transformers import DynamicCache, EncoderDecoderCache

        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        for layer in range(len(past) // 4):
            own, other = (
                [past[f"{whose}_{part}_{layer}"] for part in ("key", "value")]
                for whose in ("decoder", "encoder")
            )
            cache.self_attention_cache.update(*own, layer)
            cache.cross_attention_cache.update(*other, layer)
            cache.is_updated[layer] = True
        decoded = self.model.decoder(
            input_ids=input_ids,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            past_key_values=cache,
            use_cache=True,
        )
        found = self.model.lm_head(decoded.last_hidden_state)
        return found, [(layer.keys, layer.values) for layer in cache.self_attention_cache.layers]


@architecture(batch=(2, 3), sequence=(9, 14), past=(5, 8))
def t5_step():
    made = sequence_to_sequence("T5", d_model=48, d_kv=12, d_ff=96, num_layers=2, num_heads=4)

    def inputs(batch, sequence, past):
        lengths = {"decoder": past, "encoder": sequence}
        return {
            "input_ids": torch.randint(3, VOCABULARY, (batch, 1)),
            "encoder_attention_mask": padding_mask(batch, sequence),
            "encoder_hidden_states": torch.randn(batch, sequence, 48),
            **{
                f"{whose}_{part}_{layer}": torch.randn(batch, 4, length, 12)
                for layer in range(2)
                for whose, length in lengths.items()
                for part in ("key", "value")
            },
        }

    return Network(TranslatorStep(made.module.model), inputs)
