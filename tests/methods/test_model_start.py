"""Where training starts: with the weights that a class brings, drawn by the seed, or from a file."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import sordino
from sordino.errors import InvalidInput
from sordino.learning import models
from sordino.recipe import Recipe
from sordino.report.caveats import caveats
from sordino.runs.federation import check_start_travels, wire
from tests.client import people
from tests.engine import tiny
from tests.methods.own_networks import FrozenBody

HERE = "tests.methods.test_model_start"


class Trained(nn.Sequential):
    """Comes with weights: 0.25 everywhere."""

    def __init__(self, classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, classes))
        for value in self.parameters():
            nn.init.constant_(value, 0.25)


class Drawn(nn.Sequential):
    """Draws its weights by a rule of its own; `seed` is an option like any other."""

    def __init__(self, classes: int, seed: float = 1.0) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, classes))
        for value in self.parameters():
            nn.init.normal_(value, std=seed)


class Broken(Trained):
    """Comes with a number that is none."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        nn.init.constant_(self[1].bias, torch.nan)


def started(model: dict[str, Any], **more: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    return wire(tiny.recipe({"model": model, **more})).method.init().parameters


def own(name: str, **keys: Any) -> dict[str, Any]:
    return {"name": f"{HERE}:{name}", **keys}


def frozen(**keys: Any) -> dict[str, Any]:
    return {"name": "tests.methods.own_networks:FrozenBody", **keys}


# --- as built, or fresh


def test_an_own_class_keeps_the_weights_that_it_comes_with() -> None:
    assert (started(own("Trained")) == 0.25).all()
    assert (started(own("Trained", start="as-built")) == 0.25).all()


def test_fresh_draws_the_weights_of_an_own_class_by_the_seed() -> None:
    fresh = started(own("Trained", start="fresh"))
    assert np.array_equal(fresh, started({"name": "logistic"}))  # the same layer under the same seed
    assert np.unique(fresh).size > 600


def test_the_seed_decides_what_a_class_draws_when_it_is_built() -> None:
    torch.manual_seed(5)
    one = started(own("Drawn"), seed=3)
    torch.manual_seed(6)
    assert np.array_equal(one, started(own("Drawn"), seed=3))
    assert not np.array_equal(one, started(own("Drawn"), seed=4))
    assert np.abs(started(own("Drawn", options={"seed": 0.001}))).max() < 0.01  # a class may have such an option


def test_a_model_known_by_name_is_fresh_unless_it_is_to_be_as_built() -> None:
    layout = models.parameter_layout(models.build("logistic", input_shape=(64,), classes=10))
    module = models.build("logistic", 7, input_shape=(64,), classes=10)
    assert np.array_equal(started({"name": "logistic"}), layout.flatten(models.initial_parameters(module, 7)).numpy())
    as_built = layout.flatten(dict(module.named_parameters())).detach().numpy()
    assert np.array_equal(started({"name": "logistic", "start": "as-built"}), as_built)


def test_weights_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"1\.bias.*fresh"):
        started(own("Broken"))


def test_personalised_training_puts_no_zeros_in_the_place_of_weights() -> None:
    personal = {"method": {"name": "personalized"}, "clients.epsilon": None}
    with pytest.raises(InvalidInput, match=r"method\.start.*random"):
        tiny.recipe({"model": own("Trained"), **personal})
    assert not started({"name": "logistic"}, **personal).any()
    assert (started(own("Trained"), **personal, **{"method.start": "random"}) == 0.25).all()


# --- a file


def weights(folder: Path, **changes: Tensor | None) -> str:
    tensors = {"fc.weight": torch.full((10, 64), 0.5), "fc.bias": torch.zeros(10), **changes}
    save_file({name: value for name, value in tensors.items() if value is not None}, folder / "start.safetensors")
    return str(folder / "start.safetensors")


def test_training_starts_from_a_file(tmp_path: Path) -> None:
    found = started({"name": "logistic", "start": weights(tmp_path)})
    assert (found[:640] == 0.5).all() and not found[640:].any()


@pytest.mark.parametrize(
    "changes",
    [{"fc.bias": None}, {"more": torch.zeros(1)}, {"fc.bias": torch.zeros(9)}],
    ids=["fewer", "more", "other shapes"],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"model\.start.*does not fit(.|\n)*(fc\.bias|more)"):
        started({"name": "logistic", "start": weights(tmp_path, **changes)})


def test_a_file_lacking_a_buffer_is_refused(tmp_path: Path) -> None:
    state = FrozenBody(10).state_dict()
    save_file({name: value for name, value in state.items() if name != "scale"}, tmp_path / "fewer.safetensors")
    with pytest.raises(InvalidInput, match=r"does not fit(.|\n)*scale"):
        started(frozen(start=str(tmp_path / "fewer.safetensors")))


def test_no_file_and_no_safetensors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"model\.start.*is no file"):
        started({"name": "logistic", "start": str(tmp_path / "none.safetensors")})
    (tmp_path / "damaged.safetensors").write_bytes(b"no weights")
    with pytest.raises(InvalidInput, match=r"model\.start.*could not be read as safetensors"):
        started({"name": "logistic", "start": str(tmp_path / "damaged.safetensors")})


def test_another_word_is_refused_with_what_is_allowed() -> None:
    with pytest.raises(InvalidInput, match=r"model\.start.*as-built, fresh"):
        tiny.recipe({"model": {"name": "logistic", "start": "pretrained"}})


# --- real clients


def test_a_file_of_the_server_is_not_named_in_invitations(tmp_path: Path) -> None:
    given = people.recipe({"model": {"name": "logistic", "start": weights(tmp_path)}})
    assert "start.safetensors" not in people.terms(given).recipe
    with people.joined(tmp_path / "client", given) as member:
        plan = people.plans(given)(1)
        assert (plan.arrays["parameters"][:640] == 0.5).all()
        people.body(member.answer("report", people.signed(plan, given=given)))


def test_a_client_reads_no_file_that_a_server_names(tmp_path: Path) -> None:
    """A file that is none would be an error, if anybody looked."""
    (tmp_path / "secret.safetensors").write_bytes(b"not for the server")
    honest = people.terms(people.recipe({"model": {"name": "logistic"}}))
    text = honest.recipe.replace('name = "logistic"', f'name = "logistic"\nstart = "{tmp_path}/secret.safetensors"')
    assert Recipe.from_toml(text).model.start_file
    with people.client(tmp_path / "client") as member:
        member.join(replace(honest, recipe=text).invitation(0, people.KEY).encode())


def test_what_of_a_file_no_plan_carries_is_refused_for_real_clients(tmp_path: Path) -> None:
    as_it_is = FrozenBody(10).state_dict()
    file = tmp_path / "start.safetensors"
    given = tiny.recipe({"model": frozen(start=str(file))})
    built = wire(given.with_({"model.start": "as-built"})).model.state_dict()
    save_file({**built, "head.weight": torch.zeros(10, 144)}, file)
    check_start_travels(wire(given))
    save_file(as_it_is, file)
    with pytest.raises(InvalidInput, match=r"no plan carries.*body\.0\.weight"):
        check_start_travels(wire(given))
    alone = tiny.recipe({"model": {"name": "logistic", "start": weights(tmp_path)}, "method": {"name": "local-only"}})
    with pytest.raises(InvalidInput, match=r"no plan carries.*fc\.weight"):
        check_start_travels(wire(alone))


def test_a_run_goes_on_from_the_model_file_of_another(tmp_path: Path) -> None:
    """The file holds the whole model, so it can be named as it is."""
    first = Recipe.load("quickstart").with_({"rounds.count": 1})
    sordino.run(first, folder=tmp_path / "first", workers=1)
    file = tmp_path / "first" / "model.safetensors"
    second = wire(first.with_({"model.start": str(file)}))
    trained = sordino.load_model(file).network.state_dict()
    start = second.layout.unflatten(torch.from_numpy(second.method.init().parameters))
    assert start.keys() == trained.keys()
    assert all(torch.equal(value, trained[name]) for name, value in start.items())


@pytest.mark.parametrize(("start", "told"), [("fresh", 0), ("as-built", 1), (None, 1)])
def test_a_statement_says_that_weights_from_elsewhere_are_not_in_its_figures(start: str | None, told: int) -> None:
    """Weights that were trained on the same records before would tell of them, whatever this run adds."""
    recipe = tiny.recipe({"model": own("Trained", **({} if start is None else {"start": start}))})
    assert len([caveat for caveat in caveats(recipe, 1) if "weights" in caveat]) == told
