"""The trained model as a file: everything that using it takes, written after a run and loaded again."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor, nn

from sordino.errors import InvalidInput
from sordino.learning import models
from sordino.learning.columns import ColumnRules
from sordino.learning.examples import naming
from sordino.learning.tasks import Regression
from sordino.learning.trained_model import HeadDescription, ModelDescription, TrainedModel
from sordino.learning.unit_vectors import Form
from sordino.methods.blueprint import blueprint_of
from sordino.methods.extractors import RecordHead
from sordino.methods.local_only import LocalOnly
from sordino.methods.private_head import PrivateHead
from sordino.parts import registry
from sordino.recipe import EVERYTHING, CodeNotAllowed, Recipe
from sordino.report.folder import MODEL, RunFolder, read_model
from sordino.runs.federation import Federation, wire

EXTRACTOR = "extractor."  #: before the names of a frozen extractor's arrays
#: kinds of arrays that a file holds
SAVED = {
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool, torch.uint8, torch.int8, torch.int16,
    torch.int32, torch.int64,
}  # fmt: skip
METADATA = "sordino"  #: the one text of the file. Of several the format keeps no order, and equal runs give equal bytes


def description_of(federation: Federation) -> ModelDescription:
    """What the file of this federation's model says about it."""
    recipe, dataset, method = federation.recipe, federation.dataset, federation.method
    own_records = method.graded is None or isinstance(method, PrivateHead)
    norm = dataset.normalisation
    return ModelDescription(
        recipe=recipe.name,
        seed=recipe.seed,
        model=recipe.model.name,
        options=dict(recipe.model.options),
        input_shape=dataset.shape if own_records else federation.record_shape,
        classes=dataset.classes,
        task=dataset.task.kind,
        target=(dataset.task.low, dataset.task.high) if isinstance(dataset.task, Regression) else None,
        mean=norm.mean if own_records else (0.0,),
        std=norm.std if own_records else (1.0,),
        columns=dataset.feature_names if own_records else (),
        declared=_declared(dataset.rules) if own_records else {},
        takes="nothing" if isinstance(method, LocalOnly) else "records" if own_records else "features",
        local_statistics=bool(models.running_statistics(federation.model)) and recipe.model.buffers != "release",
        head=_head_of(method) if isinstance(method, PrivateHead) else None,
    )


def _declared(rules: ColumnRules) -> dict[str, dict[str, Any]]:
    return {name: rule.model_dump(mode="json", exclude_none=True) for name, rule in rules.items()}


def _head_of(method: PrivateHead) -> HeadDescription:
    spec = method.spec
    return HeadDescription(
        extractor=spec.extractor.model_dump(mode="json"),
        roots=spec.roots,
        groups=spec.groups,
        limit=method.budgeting.limit,
        bias=spec.bias,
    )


def write_model(folder: RunFolder, federation: Federation, trained: Mapping[str, NDArray[np.float32]]) -> None:
    """Write the model with these trained arrays: all parameters and buffers, and its description.

    What was not trained is taken from a model built anew: this one's buffers may have seen clients' records.
    """
    about, method = description_of(federation), federation.method
    if isinstance(method, PrivateHead):
        network: nn.Module = method.whole
        frozen = {EXTRACTOR + name: value for name, value in method.extractor.tensors().items()}
    else:
        shape, classes = federation.dataset.shape, len(about.classes)
        network, frozen = (
            blueprint_of(federation.recipe, shape, classes, (1,), task=federation.dataset.task)[0].model,
            {},
        )
    network.load_state_dict(_tensors(trained), strict=False)
    everything = {**network.state_dict(), **frozen}
    # Buffers of other kinds (complex, float8) are left out: they are as the model's constructor makes them.
    arrays = {name: _array(value) for name, value in everything.items() if getattr(value, "dtype", None) in SAVED}
    folder.write_model(arrays, {METADATA: about.model_dump_json()})


def _array(value: Tensor) -> NDArray[np.generic]:
    # numpy has no bfloat16; float32 holds each of its values
    value = value.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()


def _tensors(arrays: Mapping[str, NDArray[np.generic]]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def load_model(run: str | Path, allow: Container[str] = ()) -> TrainedModel:
    """The trained model of a finished run, by its folder or its `model.safetensors`, in evaluation mode.

    It takes raw inputs `[n, ...]` and gives scores; `.probabilities(x)` gives probabilities, `.classes` the names. A
    model that learnt a number has `.values(x)` instead, in the unit of the training data. Of LDPFL it takes the
    randomised features, since clients keep what makes these. The data set is not needed.

    A model or an extractor of somebody's own is imported: open only folders of people whose code you would run. A file
    that lies in no run's folder may name only the addresses (`package.module:Class`) that you `allow`.
    """
    path, folder = _places(Path(run))
    tensors, texts = read_model(path)
    if METADATA not in texts:
        raise InvalidInput(f"{path} was not written by a run of Sordino: give the folder that 'sordino run' made")
    try:
        with registry.own_code(allow if folder is None else EVERYTHING):
            return _loaded(path, folder, _tensors(tensors), texts[METADATA])
    except CodeNotAllowed as error:
        raise InvalidInput(
            f"{path} names {error.address}, which is no part of Sordino. Load the run's folder, or allow it if you "
            f"trust that code: sordino.load_model({str(path)!r}, allow=[{error.address!r}])"
        ) from None


def _places(run: Path) -> tuple[Path, RunFolder | None]:
    """The model's file, and the run's folder; None for a file that lies elsewhere."""
    if not run.exists():
        raise InvalidInput(f"{run}: there is no such folder or file. Give the folder that 'sordino run' made")
    if run.is_dir():
        return run / MODEL, RunFolder.open(run)
    beside = run.name == MODEL and (run.parent / "recipe.toml").is_file()
    return run, RunFolder.open(run.parent) if beside else None


def _loaded(path: Path, folder: RunFolder | None, tensors: Mapping[str, Tensor], text: str) -> TrainedModel:
    about = _description(path, folder, text)
    if about.takes == "nothing":
        raise InvalidInput(
            f"{path}: in this run every client learned alone and kept its model, so there is none to use. Run a method "
            "with a common model, such as fedavg"
        )
    network = _network(about, tensors)
    if missing := dict(network.named_parameters()).keys() - tensors.keys() - _frozen(network):
        raise InvalidInput(f"{path} holds the model of another recipe: it lacks {', '.join(sorted(missing))}")
    own = {name: value for name, value in tensors.items() if about.head is None or not name.startswith(EXTRACTOR)}
    try:
        network.load_state_dict(own, strict=False)  # files of earlier versions lack frozen parameters and buffers
    except RuntimeError as error:
        raise InvalidInput(f"{path} does not fit the model {about.model!r}: {error}") from None
    return TrainedModel(network, about)


def _frozen(network: nn.Module) -> set[str]:
    return {name for name, parameter in network.named_parameters() if not parameter.requires_grad}


def _description(path: Path, folder: RunFolder | None, text: str) -> ModelDescription:
    with naming(f"{path} is damaged"):
        try:
            packed = json.loads(text)
        except ValueError as error:
            raise InvalidInput(f"its description is no JSON ({error})") from None
        if not isinstance(packed, dict) or "input_shape" in packed:
            return ModelDescription.from_json(text)
    return _description_of_earlier(path, folder)


def _description_of_earlier(path: Path, folder: RunFolder | None) -> ModelDescription:
    """The description of a file that has none, by the recipe beside it and the data set."""
    if folder is None:
        raise InvalidInput(
            f"{path} was written by an earlier Sordino and does not say what model it is: put it back into its run's "
            "folder, beside recipe.toml, or run the recipe again"
        )
    return description_of(wire(Recipe.from_toml(folder.recipe, EVERYTHING)))


def _network(about: ModelDescription, tensors: Mapping[str, Tensor]) -> nn.Module:
    """The network that this describes, before its arrays are loaded."""
    classes = len(about.classes)
    if about.head is None:
        name = registry.allowed_model(about.model)
        return models.build(name, input_shape=about.input_shape, classes=classes, **about.options)
    head = about.head
    frozen = {name.removeprefix(EXTRACTOR): value for name, value in tensors.items() if name.startswith(EXTRACTOR)}
    try:
        spec = registry.make("extractor", head.extractor["kind"], **head.extractor)
    except (AssertionError, KeyError, ValidationError) as error:
        raise InvalidInput(f"the file's extractor {head.extractor!r} is not known here: {error}") from None
    extractor = spec.restore(about.input_shape, classes, about.seed, frozen)
    maps, cells = extractor.shape
    form = Form(maps, cells, head.groups, head.roots, extractor.scores)
    return RecordHead(extractor, form, head.limit, classes, head.bias)


__all__ = ["description_of", "load_model", "write_model"]
