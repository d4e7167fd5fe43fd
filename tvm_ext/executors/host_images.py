"""Functions of the host that read images."""

from __future__ import annotations

from io import BytesIO

import numpy as np

from ..errors import RunError
from .host import host_function

__all__: list[str] = []

_MODES = {"RGB": "RGB", "BGR": "RGB", "Grayscale": "L"}


@host_function
def image_decoder(encoded: np.ndarray, pixel_format: str) -> np.ndarray:
    """The image in a file's bytes, of any format that Pillow reads: uint8 ``[H, W, C]``."""
    from PIL import Image  # an extra, which the converter has asked for

    try:
        with Image.open(BytesIO(encoded.tobytes())) as image:
            pixels = np.asarray(image.convert(_MODES[pixel_format]))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise RunError(f"no image that Pillow reads: {error}") from error
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    return np.ascontiguousarray(pixels[:, :, ::-1] if pixel_format == "BGR" else pixels)
