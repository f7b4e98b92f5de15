"""How a model is computed on this machine: devices, and how many workers share a GPU, by a measurement that is kept."""

import pytest
import torch

from sordino.errors import InvalidInput
from sordino.runs import execution
from sordino.runs.execution import WORTH_MEASURING_GPU, devices_for, gpu_share, workers_for

GPUS = [torch.device("cuda:0"), torch.device("cuda:1")]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(execution, "cache_folder", lambda: tmp_path)


@pytest.mark.parametrize(
    ("seconds", "most", "share"),
    [
        ({1: 8.0, 2: 4.1, 4: 2.2, 8: 2.1}, 16, 4),
        ({1: 8.0, 2: 7.9}, 16, 1),
        ({1: 8.0, 2: 4.0, 4: 2.0}, 4, 4),
        ({1: 8.0, 2: 4.0}, 3, 2),
    ],
    ids=["until it does not pay", "alone", "no more than cores", "no more than cores, which are odd"],
)
def test_workers_of_a_gpu_double_while_it_pays(seconds, most, share):
    assert gpu_share("model", seconds.__getitem__, most) == share
    assert gpu_share("model", lambda _: pytest.fail("measured again"), most) == share


def test_another_model_is_measured_by_itself():
    assert gpu_share("one", {1: 1.0, 2: 2.0}.__getitem__, 8) == 1
    assert gpu_share("two", {1: 2.0, 2: 1.0, 4: 1.0}.__getitem__, 8) == 2


@pytest.mark.parametrize(
    ("asked", "effort", "clients", "workers"),
    [
        (None, WORTH_MEASURING_GPU, 100, 6),
        (None, WORTH_MEASURING_GPU, 5, 5),
        (None, 1.0, 100, 2),
        (1, WORTH_MEASURING_GPU, 100, 1),
    ],
    ids=["share of each", "no more than clients", "too short to measure", "as asked"],
)
def test_every_gpu_has_its_share_of_workers(asked, effort, clients, workers):
    assert workers_for(asked, GPUS, effort, clients, lambda: 3) == workers


def test_several_gpus_are_named_by_their_numbers(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert devices_for("cuda:0,1") == tuple(GPUS)
    assert devices_for("cuda") == (torch.device("cuda"),)
    with pytest.raises(InvalidInput, match="cuda:2"):
        devices_for("cuda:1,2")
    with pytest.raises(InvalidInput, match="twice"):
        devices_for("cuda:1,1")
