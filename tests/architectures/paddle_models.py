"""PaddlePaddle's models, by paddle2onnx."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx

from .registry import Converted, architecture

pictures = architecture(("converter",), batch=(2, 3))
sentences = architecture(("converter",), batch=(2, 3), sequence=(9, 14))


def converted(layer, inputs) -> Converted:
    """By ``paddle.onnx.export``; every input keeps its last axes and may vary in ``sizes``."""
    import onnx_graphsurgeon  # noqa: F401  else paddle2onnx has it installed
    import paddle

    layer.eval()

    def model(**sizes):
        small = {name: size or 2 for name, size in sizes.items()}
        example, other = inputs(**small), inputs(**{k: n + 1 for k, n in small.items()})
        specification = [
            paddle.static.InputSpec(
                [
                    None if a != b and None in sizes.values() else a
                    for a, b in zip(value.shape, other[name].shape, strict=True)
                ],
                value.dtype.name,
                name,
            )
            for name, value in example.items()
        ]
        with TemporaryDirectory() as folder:
            path = str(Path(folder, "model"))
            paddle.onnx.export(layer, path, specification, opset_version=16)
            return onnx.load(path + ".onnx")

    return Converted(model, inputs)


def paddle():
    """The package, its weights drawn from one seed."""
    import paddle as package

    package.seed(0)
    return package


def picture(side: int, channels: int = 3):
    def inputs(batch):
        generator = np.random.default_rng(1)
        return {"x": generator.normal(size=(batch, channels, side, side)).astype(np.float32)}

    return inputs


def words(batch: int, sequence: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).integers(1, 50, (batch, sequence))}


def application(name: str, side: int = 64, **settings) -> Converted:
    return converted(getattr(paddle().vision.models, name)(num_classes=10, **settings),
                     picture(side))  # fmt: skip


@pictures
def paddle_le_net():
    return converted(paddle().vision.models.LeNet(), picture(28, 1))


@pictures
def paddle_resnet():
    return application("resnet18")


@pictures
def paddle_mobilenet_v2():
    return application("mobilenet_v2", scale=0.25)


@pictures
def paddle_mobilenet_v3():
    return application("mobilenet_v3_small", scale=0.5)


@pictures
def paddle_shufflenet():
    return application("shufflenet_v2_x0_25")


@pictures
def paddle_squeezenet():
    return application("squeezenet1_1")


@pictures
def paddle_text_recogniser():
    """Convolutions, then LSTMs along the columns, as PaddleOCR reads lines of text."""
    nn = paddle().nn

    class Recogniser(nn.Layer):
        def __init__(self):
            super().__init__()
            self.columns = nn.Sequential(
                nn.Conv2D(3, 16, 3, 2, 1), nn.BatchNorm2D(16), nn.Hardswish(),
                nn.Conv2D(16, 24, 3, (2, 1), 1), nn.ReLU(), nn.MaxPool2D((8, 1)),
            )  # fmt: skip
            self.rows = nn.LSTM(24, 16, 2, direction="bidirect")
            self.last = nn.Linear(32, 20)

        def forward(self, x):
            columns = self.columns(x).squeeze(2).transpose([0, 2, 1])
            return nn.functional.softmax(self.last(self.rows(columns)[0]), -1)

    return converted(Recogniser(), picture(32))


@pictures
def paddle_text_detector():
    """A feature pyramid and its probability map, as PaddleOCR finds lines of text."""
    nn = paddle().nn

    def block(inputs, outputs, stride):
        return nn.Sequential(
            nn.Conv2D(inputs, outputs, 3, stride, 1), nn.BatchNorm2D(outputs), nn.ReLU()
        )

    class Detector(nn.Layer):
        def __init__(self):
            super().__init__()
            self.first, self.second = block(3, 8, 2), block(8, 16, 2)
            self.third = block(16, 16, 2)
            self.side = nn.Conv2D(8, 16, 1)
            self.last = nn.Sequential(
                block(16, 8, 1), nn.Conv2DTranspose(8, 8, 2, 2), nn.BatchNorm2D(8), nn.ReLU(),
                nn.Conv2DTranspose(8, 1, 2, 2), nn.Sigmoid(),
            )  # fmt: skip

        def forward(self, x):
            first = self.first(x)
            second = self.second(first)
            third = self.third(second)
            # By sizes: paddle2onnx exports no factors.
            up = second + nn.functional.interpolate(third, size=second.shape[2:], mode="nearest")
            finest = nn.functional.interpolate(up, size=first.shape[2:], mode="bilinear")
            return self.last(nn.functional.avg_pool2d(finest + self.side(first), 2))

    return converted(Detector(), picture(64))


@sentences
def paddle_transformer():
    nn = paddle().nn

    class Encoder(nn.Layer):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(50, 32)
            layer = nn.TransformerEncoderLayer(32, 4, 64, activation="gelu")
            self.layers, self.last = nn.TransformerEncoder(layer, 2), nn.Linear(32, 5)

        def forward(self, x):
            return self.last(self.layers(self.embed(x)).mean(1))

    return converted(Encoder(), words)


@sentences
def paddle_gru():
    nn = paddle().nn

    class Tagger(nn.Layer):
        def __init__(self):
            super().__init__()
            self.embed, self.rows = nn.Embedding(50, 16), nn.GRU(16, 12, direction="bidirect")
            self.last = nn.Linear(24, 7)

        def forward(self, x):
            return self.last(self.rows(self.embed(x))[0]).argmax(-1)

    return converted(Tagger(), words)


@pictures
def paddle_yolo():
    """A head of boxes, decoded, and NMS over all classes."""
    package = paddle()
    nn = package.nn

    class Yolo(nn.Layer):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2D(3, 16, 3, 4, 1), nn.LeakyReLU(0.1), nn.Conv2D(16, 24, 3, 4, 1),
                nn.LeakyReLU(0.1), nn.Conv2D(24, 3 * 9, 1),
            )  # fmt: skip

        def forward(self, x):
            size = package.full([x.shape[0], 2], 64, "int32")
            return package.vision.ops.yolo_box(
                self.body(x), size, [10, 13, 16, 30, 33, 23], 4, 0.01, 16
            )

    return converted(Yolo(), picture(64))
