"""Images read by ImageDecoder: those of lossless formats are what was written."""

from io import BytesIO

import numpy as np
import pytest
from onnx import parser
from PIL import Image

from tvm_ext import convert_and_build
from tvm_ext.errors import ConversionError, RunError

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 3), "uint8")


def decoder(pixel_format):
    return parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 20]>
        g (uint8[n] x) => (uint8[h,w,c] y) {{
      y = ImageDecoder<pixel_format = "{pixel_format}">(x)
    }}"""
    )


def written(pixels, name):
    file = BytesIO()
    Image.fromarray(pixels).save(file, name)
    return np.frombuffer(file.getvalue(), "uint8")


@pytest.mark.parametrize("pixel_format", ["RGB", "BGR", "Grayscale"])
def test_lossless_images(pixel_format):
    compiled = convert_and_build(decoder(pixel_format), "llvm", opt_level=0)
    grey = PIXELS @ np.array([299, 587, 114]) / 1000
    want = {"RGB": PIXELS, "BGR": PIXELS[:, :, ::-1], "Grayscale": grey[:, :, None]}[pixel_format]
    for name in ("png", "bmp", "tiff"):
        got = compiled(written(PIXELS, name))
        np.testing.assert_allclose(got, want, atol=0.51 if pixel_format == "Grayscale" else 0)
    alpha = np.concatenate([PIXELS, PIXELS[:, :, :1]], 2)
    assert compiled(written(alpha, "png")).shape == want.shape


def test_what_is_no_image_is_an_error():
    compiled = convert_and_build(decoder("RGB"), "llvm", opt_level=0)
    for wrong in (np.zeros(9, "uint8"), written(PIXELS, "png")[:60]):
        with pytest.raises(RunError, match=r"ImageDecoder-20 'y' .*: no image"):
            compiled(wrong)
    with pytest.raises(ConversionError, match=r"ImageDecoder-20 'y' .*pixel_format is 'CMYK'"):
        convert_and_build(decoder("CMYK"), "llvm", opt_level=0)
