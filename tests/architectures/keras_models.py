"""Keras models with TensorFlow, by tf2onnx."""

import os

import numpy as np

from .registry import Converted, architecture

pictures = architecture(("converter",), batch=(2, 3))
sentences = architecture(("converter",), batch=(2, 3))


def keras():
    """The package, on TensorFlow without its messages."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    import keras as package

    package.utils.set_random_seed(0)
    return package


def converted(network, inputs) -> Converted:
    """By tf2onnx, from a function of the inputs."""

    def model(batch):
        import tensorflow
        import tf2onnx

        (example,) = inputs(batch or 1).values()
        signature = [
            tensorflow.TensorSpec((batch, *example.shape[1:]), example.dtype.name, name="x")
        ]
        function = tensorflow.function(lambda x: network(x, training=False))
        return tf2onnx.convert.from_function(function, signature, opset=17)[0]

    return Converted(model, inputs)


def picture(side: int):
    def inputs(batch):
        generator = np.random.default_rng(1)
        return {"x": generator.normal(size=(batch, side, side, 3)).astype(np.float32)}

    return inputs


def words(batch: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).integers(1, 50, (batch, 12)).astype(np.int32)}


def application(name: str, side: int = 64, **settings) -> Converted:
    network = getattr(keras().applications, name)(
        weights=None, input_shape=(side, side, 3), classes=10, **settings
    )
    return converted(network, picture(side))


@pictures
def keras_mobilenet():
    return application("MobileNet", alpha=0.25)


@pictures
def keras_mobilenet_v3():
    return application("MobileNetV3Small", minimalistic=False)


@pictures
def keras_efficientnet_v2():
    # With its preprocessing tf2onnx leaves constants out of the model.
    return application("EfficientNetV2B0", include_preprocessing=False)


@pictures
def keras_nasnet():
    return application("NASNetMobile")


@pictures
def keras_convolutions():
    layers = keras().layers
    return converted(
        keras().Sequential(
            [
                layers.Input((32, 32, 3)),
                layers.Conv2D(8, 3, padding="same", strides=2, activation="relu"),
                layers.BatchNormalization(),
                layers.SeparableConv2D(12, 3, padding="same", activation="swish"),
                layers.MaxPooling2D(3, 2, padding="same"),
                layers.Conv2DTranspose(6, 3, strides=2, padding="same"),
                layers.UpSampling2D(2, interpolation="bilinear"),
                layers.GlobalAveragePooling2D(),
                layers.Dense(5, activation="softmax"),
            ]
        ),
        picture(32),
    )


def recurrent(layer) -> Converted:
    layers = keras().layers
    return converted(
        keras().Sequential(
            [layers.Input((12,), dtype="int32"), layers.Embedding(50, 16), layer, layers.Dense(4)]
        ),
        words,
    )


@sentences
def keras_lstm():
    layers = keras().layers
    return recurrent(layers.Bidirectional(layers.LSTM(8)))


@sentences
def keras_gru():
    return recurrent(keras().layers.GRU(8, return_sequences=True))


@sentences
def keras_transformer():
    layers = keras().layers
    tokens = keras().Input((12,), dtype="int32")
    x = layers.Embedding(50, 16)(tokens)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 8)(x, x))
    # Of tanh: tf2onnx has no Erfc, of which Keras makes the other GELU.
    wide = keras().activations.gelu(layers.Dense(32)(x), approximate=True)
    x = layers.LayerNormalization()(x + layers.Dense(16)(wide))
    return converted(keras().Model(tokens, layers.GlobalMaxPooling1D()(x)), words)
