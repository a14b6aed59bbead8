"""The short Python file that uses an exported network without torch or this package."""

from pathlib import Path

SCRIPT = '''\
"""Classifies an image (8 bits a channel, opaque) with numpy, Pillow and onnxruntime: python classify.py IMAGE"""
import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

network = onnxruntime.InferenceSession(MODEL)
facts = json.loads(network.get_modelmeta().custom_metadata_map["sepgconv"])
frame = facts["preparation"]["framing"]
size = frame["size"]

image = ImageOps.exif_transpose(Image.open(sys.argv[1]))
image = image.convert("L" if frame["channels"] == 1 else "RGB")
square = frame["crop"] or (min(image.size) if frame["resize"] == "crop" else None)
if square:  # from the middle
    left, top = (image.width - square) // 2, (image.height - square) // 2
    image = image.crop((left, top, left + square, top + square))
small = image.resize([max(1, round(size / max(image.size) * n)) for n in image.size], Image.Resampling.BICUBIC)
image = Image.new(image.mode, (size, size))  # black where the image does not reach
image.paste(small, ((size - small.width) // 2, (size - small.height) // 2))

pixels = np.asarray(image, np.float32).reshape(size, size, -1).transpose(2, 0, 1) / 255
(logits,) = network.run(None, {"pixels": pixels[None]})[0]
probabilities = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
best = int(probabilities.argmax())
print(f"{sys.argv[1]}: {facts['classes'][best]} ({probabilities[best]:.1%})")
'''


def script(path: Path) -> str:
    """The file for one exported network."""
    return SCRIPT.replace("MODEL", repr(str(path)))
