"""Converter for ImageDecoder: on the host, by Pillow."""

from importlib.util import find_spec

from tvm_ext.interface import TensorType

from .. import host
from ..table import converter


@converter("ImageDecoder", 20)
def image_decoder(bb, encoded, *, pixel_format="RGB"):
    if pixel_format not in ("RGB", "BGR", "Grayscale"):
        raise NotImplementedError(f"pixel_format {pixel_format}")
    if find_spec("PIL") is None:
        raise NotImplementedError("needs Pillow: pip install 'tvm-ext[images]'")
    kind = TensorType("uint8", ("H", "W", 1 if pixel_format == "Grayscale" else 3))
    return host.call_for_tensor(bb, "image_decoder", encoded, pixel_format, kind=kind)
