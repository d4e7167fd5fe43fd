"""Speech and sound."""

import torch

from .inputs import audio
from .registry import Network, architecture

waves = architecture(batch=(2, 3), samples=(400, 560))
CONVOLUTIONAL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": (16, 16, 16),
    "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 3),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "vocab_size": 20,
}


def network(kind: str, head: str = "ForCTC", **settings) -> Network:
    import transformers

    config = getattr(transformers, f"{kind}Config")(**{**CONVOLUTIONAL, **settings})
    return Network(getattr(transformers, f"{kind}{head}")(config), audio())


@waves
def wav2vec2():
    return network("Wav2Vec2")


@waves
def wav2vec2_layer_norm():
    return network("Wav2Vec2", feat_extract_norm="layer", do_stable_layer_norm=True)


@waves
def wav2vec2_conformer():
    return network("Wav2Vec2Conformer", conv_depthwise_kernel_size=5)


@waves
def hubert():
    return network("Hubert")


@waves
def wavlm():
    return network("WavLM", num_buckets=16, max_bucket_distance=32)


@waves
def sew():
    return network("SEW", squeeze_factor=2)


@waves
def sew_d():
    return network("SEWD", squeeze_factor=2, position_buckets=8)


@waves
def unispeech():
    return network("UniSpeech")


@waves
def data2vec_audio():
    return network("Data2VecAudio", conv_pos_kernel_size=3)


@architecture(batch=(2, 3), target=(4, 7))
def whisper():
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    from .decoders import Logits

    config = WhisperConfig(
        vocab_size=97, num_mel_bins=16, d_model=32, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
        decoder_ffn_dim=64, max_source_positions=24, max_target_positions=32,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip

    def inputs(batch, target):
        return {
            "input_features": torch.randn(batch, 16, 48),
            "decoder_input_ids": torch.randint(3, 97, (batch, target)),
        }

    return Network(Logits(WhisperForConditionalGeneration(config)), inputs)


@architecture(batch=(2, 3), frames=(24, 40), target=(4, 7))
def speech_to_text():
    from transformers import Speech2TextConfig, Speech2TextForConditionalGeneration

    from .decoders import Logits

    config = Speech2TextConfig(
        vocab_size=97, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, conv_channels=32,
        input_feat_per_channel=16, max_source_positions=64, max_target_positions=32,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip

    def inputs(batch, frames, target):
        return {
            "input_features": torch.randn(batch, frames, 16),
            "decoder_input_ids": torch.randint(3, 97, (batch, target)),
        }

    return Network(Logits(Speech2TextForConditionalGeneration(config)), inputs)


@architecture(batch=(2, 3))
def audio_spectrogram_transformer():
    from transformers import ASTConfig, ASTForAudioClassification

    config = ASTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_length=32, num_mel_bins=16, patch_size=8, frequency_stride=4, time_stride=4,
    )  # fmt: skip
    return Network(
        ASTForAudioClassification(config),
        lambda batch: {"input_values": torch.randn(batch, 32, 16)},
    )


@architecture(batch=(2, 3), frames=(12, 20))
def hifi_gan():
    from transformers import SpeechT5HifiGan, SpeechT5HifiGanConfig

    config = SpeechT5HifiGanConfig(
        model_in_dim=16, upsample_initial_channel=32, upsample_rates=[4, 4],
        upsample_kernel_sizes=[8, 8], resblock_kernel_sizes=[3, 5],
        resblock_dilation_sizes=[[1, 3], [1, 3]],
    )  # fmt: skip
    return Network(
        SpeechT5HifiGan(config),
        lambda batch, frames: {"spectrogram": torch.randn(batch, frames, 16)},
    )


@architecture(batch=(2, 3), samples=(320, 480))
def moonshine():
    from transformers import MoonshineConfig, MoonshineForConditionalGeneration

    from .decoders import Logits

    config = MoonshineConfig(
        vocab_size=97, hidden_size=32, intermediate_size=64, encoder_num_hidden_layers=2,
        decoder_num_hidden_layers=2, encoder_num_attention_heads=4, decoder_num_attention_heads=4,
        encoder_num_key_value_heads=4, decoder_num_key_value_heads=4, max_position_embeddings=64,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip

    def inputs(batch, samples):
        return {
            "input_values": torch.randn(batch, samples * 8),
            "decoder_input_ids": torch.randint(3, 97, (batch, 4)),
        }

    return Network(Logits(MoonshineForConditionalGeneration(config)), inputs)


@architecture(samples=(640, 960))
def encodec():
    from transformers import EncodecConfig, EncodecModel

    config = EncodecConfig(
        target_bandwidths=[1.5], num_filters=4, hidden_size=16, codebook_size=16, codebook_dim=16,
        num_lstm_layers=1, upsampling_ratios=[4, 2], normalize=False, sampling_rate=2400,
    )  # fmt: skip
    model = EncodecModel(config)

    class Decoded(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = model.encoder, model.decoder

        def forward(self, input_values):
            return self.decoder(self.encoder(input_values))

    return Network(Decoded(), lambda samples: {"input_values": torch.randn(1, 1, samples)})
