"""A trained model as an ONNX file, compared with PyTorch before it is written."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.errors import InvalidInput
from sordino.learning.tasks import Regression
from sordino.learning.trained_model import TrainedModel
from sordino.runs.prediction import check_takes_records
from sordino.storage.files import make_folder, write_whole

INPUT, PROBABILITIES, VALUES = "input", "probabilities", "values"
LARGEST_DIFFERENCE = 1e-4  #: between probabilities of PyTorch and of ONNX Runtime; of values, of half their range
SIZES = (1, 2, 33)  #: of the random batches that are compared
INSTEAD = "use `sordino predict`, or sordino.load_model in Python"


class _Answers(nn.Module):
    def __init__(self, model: TrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input: Tensor) -> Tensor:
        return self.model.answers(input)


def output_of(model: TrainedModel) -> str:
    """The name of the file's output."""
    return PROBABILITIES if model.target is None else VALUES


def export_onnx(model: TrainedModel, path: str | Path) -> float:
    """Write the model as ONNX, from raw float32 inputs to probabilities, or values of a regression.

    Returns the largest difference to PyTorch, of values in units of half their range. Nothing is written where it is
    more than `LARGEST_DIFFERENCE` for a random input.
    """
    check_exportable(model)
    packed = exported(model)
    found = difference(model, packed)
    if not found <= LARGEST_DIFFERENCE:
        raise InvalidInput(
            f"the exported model differs from PyTorch by {found:.2g} in an answer, above {LARGEST_DIFFERENCE:g}: "
            f"nothing was written; {INSTEAD}"
        )
    make_folder(Path(path).parent)
    write_whole(Path(path), packed)
    return found


def check_exportable(model: TrainedModel) -> None:
    """Refuse what ONNX cannot hold."""
    check_takes_records(model)
    if model.about.head is not None:
        raise InvalidInput(
            "a private-head model computes its features in whole numbers, step by step and exactly, which ONNX cannot "
            f"hold: {INSTEAD}"
        )
    if model.about.local_statistics:
        raise InvalidInput(
            "the clients kept their batch-norm statistics, so this model has none to export: train with model.buffers "
            f"= release or group norm, or {INSTEAD}"
        )


def exported(model: TrainedModel) -> bytes:
    """The model as ONNX; its metadata has the task, the names, a target's range, and a table's columns in order."""
    import onnx
    import onnxscript  # noqa: F401  (PyTorch's exporter needs it, and says so less plainly)

    examples = _random(model, 2)
    try:
        with _quiet():
            program = torch.onnx.export(
                _Answers(model).eval(), (examples,), dynamo=True, verbose=False, input_names=[INPUT],
                output_names=[output_of(model)], dynamic_shapes=({0: torch.export.Dim("records")},),
            )  # fmt: skip
        assert program is not None
    except Exception as error:  # an own model may hold anything, and each step of the exporter raises its own kinds
        why = str(error).strip().partition("\n")[0]
        raise InvalidInput(
            f"PyTorch cannot export the model {model.about.model!r} to ONNX ({why}): {INSTEAD}"
        ) from error
    proto = program.model_proto
    about = model.about
    texts = {name: json.dumps(value) for name, value in (("classes", about.classes), ("columns", about.columns))}
    texts |= {"task": json.dumps(about.task)} | ({} if about.target is None else {"target": json.dumps(about.target)})
    if about.declared:
        texts["declared"] = json.dumps(about.declared)
    onnx.helper.set_model_props(proto, texts)
    for node in proto.graph.node:
        del node.metadata_props[:]  # the exporter's stack traces, with the paths of this machine
    return bytes(proto.SerializeToString())


def difference(model: TrainedModel, packed: bytes) -> float:
    """The largest difference between answers of PyTorch and ONNX Runtime, on random inputs; NaN if one is NaN."""
    import onnxruntime

    session = onnxruntime.InferenceSession(packed, providers=["CPUExecutionProvider"])
    task, worst = model.about.learns, []
    unit = task.half if isinstance(task, Regression) else 1.0
    for size in SIZES:
        inputs = _random(model, size)
        with torch.no_grad():
            own = model.answers(inputs).numpy()
        theirs: NDArray[np.float32] = session.run([output_of(model)], {INPUT: inputs.numpy()})[0]
        worst.append(float(np.abs(own - theirs).max()) / unit if own.shape == theirs.shape else float("inf"))
    return float(np.max(worst))


def _random(model: TrainedModel, size: int) -> Tensor:
    """Inputs that look normal once normalised, the same every time."""
    draw = torch.Generator().manual_seed(size)
    return torch.randn(size, *model.input_shape, generator=draw) * model.std + model.mean


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks on packages that nothing here needs."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


__all__ = ["LARGEST_DIFFERENCE", "difference", "export_onnx", "exported"]
