"""Converts uint8 images of a dataset into pictures that can be embedded in a page."""

import base64
import io

import numpy as np
from PIL import Image

from tasks.report_page.inputs import Picture

_LARGEST_PX = 192


def to_image(pixels: Picture) -> Image.Image:
    """A picture of uint8 `pixels` (channels, height, width): RGB for 3 or 4 channels, else the first channel."""
    if pixels.shape[0] in (3, 4):
        return Image.fromarray(np.ascontiguousarray(pixels[:3].transpose(1, 2, 0)))
    return Image.fromarray(np.ascontiguousarray(pixels[0]))


def data_uri(pixels: Picture) -> str:
    """`pixels` as a PNG in a `data:` URI; large pictures are scaled down to limit the size of the page."""
    image = to_image(pixels)
    image.thumbnail((_LARGEST_PX, _LARGEST_PX))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
