"""Extractors that are frozen networks: their weights, where they end, and whom they know."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from sordino.errors import InvalidInput
from sordino.learning import models
from sordino.methods.extractor_tables import NetworkExtractorSpec, OrientedExtractorSpec, RandomExtractorSpec
from sordino.methods.extractors import ALONE, NetworkExtractor, Truncated, cut, features_of
from sordino.privacy.guarantee import Infinite, Pure
from sordino.recipe import Recipe
from sordino.runs.federation import wire
from sordino.wire.messages import Plan

SHAPE = (1, 8, 8)


class Own(nn.Module):
    """Somebody's own network: no layers in a row, with a branch that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.last = nn.Linear(108, 5)
        self.spare = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)).flatten(1))


def records(n: int) -> Tensor:
    return torch.rand(n, *SHAPE, generator=torch.Generator().manual_seed(n))


@pytest.fixture
def trained(tmp_path: Path) -> tuple[models.Network, Path]:
    """A network that somebody trained for 7 classes, and its file."""
    network = models.build("ldp-fed", input_shape=SHAPE, classes=7)
    assert isinstance(network, models.Network)
    with torch.no_grad():
        for number, value in enumerate(network.state_dict().values()):
            value.copy_(torch.rand(value.shape, generator=torch.Generator().manual_seed(number)) + 0.1)
    save_file(network.state_dict(), tmp_path / "net.safetensors")
    return network, tmp_path / "net.safetensors"


def spec(weights: Path, **keys: Any) -> NetworkExtractorSpec:
    return NetworkExtractorSpec(model="ldp-fed", classes=7, weights=str(weights), **keys)


def test_a_frozen_network_ends_before_its_last_dense_layer(trained):
    network, weights = trained
    extractor = spec(weights).build(SHAPE, 10, 1)
    x = records(5)
    with torch.no_grad():
        expected = network.eval().extractor()(x)
    found = extractor(x, {})
    assert torch.equal(found, expected) and not found.requires_grad
    assert extractor.shape == (128, 1) and extractor.features == 128 and not extractor.exact


def test_running_statistics_come_from_the_file_and_stay(trained):
    network, weights = trained
    extractor = spec(weights, up_to="bn1").build(SHAPE, 10, 1)
    x = records(20)
    with torch.no_grad():
        expected = network.eval().bn1(network.conv1(x)).flatten(1)
    for _ in range(2):
        assert torch.equal(extractor(x, {}), expected)
    assert extractor.shape == (16, 64)


def test_a_network_is_public_only_where_its_owner_says_so(trained):
    _, weights = trained
    assert not spec(weights).build(SHAPE, 10, 1).public
    assert spec(weights, elsewhere=True).build(SHAPE, 10, 1).public


@pytest.mark.parametrize(("up_to", "shape"), [(None, (5, 1)), ("first", (3, 36)), ("norm", (3, 36))])
def test_own_networks_end_where_they_are_told_to(up_to, shape):
    extractor = NetworkExtractor(cut(Own(), up_to), SHAPE, public=True)
    assert extractor.shape == shape
    assert extractor(records(2), {}).shape == (2, shape[0] * shape[1])


def test_a_network_in_a_row_without_a_dense_layer_is_taken_as_it_is():
    row = nn.Sequential(OrderedDict(conv=nn.Conv2d(1, 2, 3), relu=nn.ReLU()))
    assert cut(row, None) is row
    only = nn.Sequential(nn.Linear(8, 2))
    assert cut(only, None) is only
    assert isinstance(cut(nn.Sequential(OrderedDict(inner=Own())), "inner.norm"), Truncated)


@pytest.mark.parametrize(
    ("up_to", "words"), [("nrom", "did you mean 'norm'"), ("spare", "does not use"), ("Spare.x", "first, norm, last")]
)
def test_layers_that_are_not_there_are_refused(up_to, words):
    with pytest.raises(InvalidInput, match=words):
        NetworkExtractor(cut(Own(), up_to), SHAPE, public=True)


def test_a_network_that_does_not_fit_the_records_is_refused():
    with pytest.raises(InvalidInput, match=r"\[3, 8, 8\]"):
        NetworkExtractor(Own(), (3, 8, 8), public=True)


def test_missing_damaged_and_other_weights_are_refused(trained, tmp_path):
    network, weights = trained
    with pytest.raises(InvalidInput, match="is no file"):
        spec(tmp_path / "nothing.safetensors").build(SHAPE, 10, 1)
    (tmp_path / "damaged.safetensors").write_bytes(b"no weights")
    with pytest.raises(InvalidInput, match="save_model"):
        spec(tmp_path / "damaged.safetensors").build(SHAPE, 10, 1)
    state = network.state_dict()
    save_file({name: value for name, value in state.items() if name != "fc.bias"}, tmp_path / "fewer.safetensors")
    save_file({**state, "more": torch.zeros(1)}, tmp_path / "more.safetensors")
    for name in ("fewer", "more"):
        with pytest.raises(InvalidInput, match="does not fit"):
            spec(tmp_path / f"{name}.safetensors").build(SHAPE, 10, 1)
    with pytest.raises(InvalidInput, match="10 classes"):
        NetworkExtractorSpec(model="ldp-fed", weights=str(weights)).build(SHAPE, 10, 1)


def test_one_at_a_time_a_record_has_the_same_bits_whatever_the_others_are(trained):
    extractor = spec(trained[1]).build(SHAPE, 10, 1)
    x = records(9)
    beside = features_of(extractor, x, {}, piece=ALONE)
    assert np.array_equal(beside[[7, 2]], features_of(extractor, x[[7, 2]], {}, piece=ALONE))
    assert np.allclose(beside, features_of(extractor, x, {}), rtol=1e-5)


def test_no_records_have_no_features():
    extractor = OrientedExtractorSpec(orientations=4, cells=2).build(SHAPE, 10, 1)
    assert features_of(extractor, records(0), {}).shape == (0, 16)
    assert extractor.shape == (4, 4) and not extractor.exact
    assert RandomExtractorSpec(model="ldp-fed").build(SHAPE, 10, 1).shape == (128, 1)


@pytest.mark.parametrize(("elsewhere", "loss"), [(False, Infinite), (True, Pure)])
def test_of_a_network_that_may_know_the_records_nothing_is_proven(trained, elsewhere, loss):
    recipe = Recipe.from_dict(
        {
            "name": "tiny",
            "seed": 7,
            "data": {"source": "digits", "train_limit": 60, "test_limit": 31},
            "split": {"kind": "iid", "clients": 3},
            "model": {"name": "ldpfl-dense", "options": {"hidden": [8]}},
            "clients": {"epsilon": 0.5},
            "rounds": {"count": 1},
            "method": {
                "name": "ldpfl",
                "extractor": {
                    "kind": "network", "model": "ldp-fed", "classes": 7, "weights": str(trained[1]),
                    "elsewhere": elsewhere,
                },
            },
        }
    )  # fmt: skip
    features, _ = wire(recipe).method.releases(Plan("f", 0))[0]
    assert isinstance(features.guarantees[0].loss, loss)
