"""Write images for the recipe `dreambooth` from scikit-learn's digits: `python docs/dreambooth_digits.py FOLDER`.

The first 40 nines are the subject, all digits but the nines are its class.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

SUBJECT = 9
_IMAGES = 40


def write(folder: Path) -> Path:
    """Write the images to `subject/` and `class/` of a folder; returns the folder."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    nines = np.flatnonzero(labels == SUBJECT)[:_IMAGES]
    for name, rows in (("subject", nines), ("class", np.flatnonzero(labels != SUBJECT))):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for row in rows:
            pixels = (images[row].reshape(8, 8) * 255 / 16).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{row}.png")
    return folder


if __name__ == "__main__":
    write(Path(sys.argv[1]))
