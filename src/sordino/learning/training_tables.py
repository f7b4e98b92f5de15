"""The tables of local training and of its optimisers, which `optimizers` computes.

They are apart from the code, which needs torch: reading a recipe does not.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Ge, Lt
from pydantic import Field

from sordino.errors import InvalidInput
from sordino.parts.slot import Slot
from sordino.parts.tables import (
    Count,
    Found,
    Natural,
    NonNegative,
    Positive,
    Share,
    SomeTexts,
    Spec,
    TomlTable,
    reads,
    tag,
)

if TYPE_CHECKING:
    from sordino.learning.cohort import LocalTraining
    from sordino.learning.models import Loss
    from sordino.learning.optimizers import Optimizer
    from sordino.learning.optimizers import WeightDecay as WeightDecayRule

LearningRate = Annotated[Positive, Field(description="learning rate")]
Momentum = Annotated[Share, Field(description="momentum")]
WeightDecay = Annotated[NonNegative, Field(description="L2 regularisation, added to the gradient")]
Decayed = Annotated[
    SomeTexts | None,
    Field(description="which tensors weight_decay is for, by patterns such as conv*.weight; all if left out"),
]
Decay = Annotated[NonNegative, Field(description="the learning rate of step t is lr / (1 + decay * t)")]
SmallNumber = Annotated[Positive, Field(description="added to the root; nothing to do with privacy")]


class OptimizerSpec(Spec):
    """The rule of each step of local training."""

    @abstractmethod
    def build(self) -> Optimizer:
        """The optimiser, which moves parameters `[K, d]` in place."""


class _Shipped(OptimizerSpec):
    """What the shipped rules share; each has these keys in an order of its own."""

    def common(self) -> tuple[float, WeightDecayRule, float]:
        """Learning rate, weight decay and the learning rate's own decay."""
        from sordino.learning.optimizers import WeightDecay

        return self.lr, WeightDecay(self.weight_decay, self.decayed or ("*",)), self.decay


class SgdSpec(_Shipped):
    """Stochastic gradient descent."""

    name: str = tag("sgd", "stochastic gradient descent")
    lr: LearningRate
    momentum: Momentum = 0.0
    nesterov: bool = Field(default=False, description="Nesterov's momentum")
    weight_decay: WeightDecay = 0.0
    decayed: Decayed = None
    decay: Decay = 0.0

    def build(self) -> Optimizer:
        from sordino.learning import optimizers

        return optimizers.SGD(*self.common(), momentum=self.momentum, nesterov=self.nesterov)

    @reads(".")
    def nesterov_needs_momentum(self, recipe: object) -> Found:
        """Refuse Nesterov's momentum without momentum."""
        if self.nesterov and not self.momentum:
            yield ".nesterov", "got true with momentum = 0; allowed: only with momentum above 0"


class AdamSpec(_Shipped):
    """Adam, without AMSGrad."""

    name: str = tag("adam", "Adam, without AMSGrad")
    lr: LearningRate
    beta1: Share = Field(default=0.9, description="decay of the gradient's mean")
    beta2: Share = Field(default=0.999, description="decay of the squared gradient's mean")
    epsilon: SmallNumber = 1e-8
    weight_decay: WeightDecay = 0.0
    decayed: Decayed = None
    decay: Decay = 0.0

    def build(self) -> Optimizer:
        from sordino.learning import optimizers

        return optimizers.Adam(*self.common(), betas=(self.beta1, self.beta2), epsilon=self.epsilon)


class RmsPropSpec(_Shipped):
    """RMSprop, not centred."""

    name: str = tag("rmsprop", "RMSprop, not centred")
    lr: LearningRate
    rho: Share = Field(default=0.99, description="decay of the squared gradient's mean")
    epsilon: SmallNumber = 1e-8
    momentum: Momentum = 0.0
    weight_decay: WeightDecay = 0.0
    decayed: Decayed = None
    decay: Decay = 0.0

    def build(self) -> Optimizer:
        from sordino.learning import optimizers

        return optimizers.RMSprop(*self.common(), rho=self.rho, epsilon=self.epsilon, momentum=self.momentum)


AnyOptimizer = Annotated[OptimizerSpec, Slot("optimizer")]


def _one_epoch_unless_steps(earlier: dict[str, object]) -> int | None:
    return 1 if earlier.get("steps") is None else None


class Augmentation(TomlTable):
    """Images changed at random in every step, by numbers from the client's own stream."""

    inline: ClassVar[bool] = True

    rotation: Annotated[float, Ge(0), Lt(180)] = Field(default=0.0, description="turned by up to so many degrees")
    shift: Share = Field(default=0.0, description="moved by up to this part of each side")
    zoom: Share = Field(default=0.0, description="scaled by up to this part")
    flip: bool = Field(default=False, description="mirrored left to right, every other time")


class Training(TomlTable):
    """How a client trains in one round. Methods that draw batches of their own (silo-dp) take the optimizer alone."""

    steps: Count | None = Field(default=None, description="local steps per round; or give epochs")
    epochs: Count | None = Field(
        default_factory=_one_epoch_unless_steps, description="local epochs per round; 1 if neither is given"
    )
    batch_size: Natural = Field(default=10, description="records per step (0: all at once)")
    shuffle: bool = Field(default=True, description="a new order of the records in every epoch")
    drop_last: bool = Field(default=False, description="leave out a last batch that is not full")
    augmentation: Augmentation | None = Field(default=None, description="random changes of images; none if left out")
    optimizer: AnyOptimizer = Field(default=SgdSpec(lr=0.1), description="the rule of each step")

    def local(self, loss: Loss, shape: tuple[int, ...]) -> LocalTraining:
        """Plain local training by this loss on records of this shape."""
        from sordino.learning import augmentation, cohort

        change = self.augmentation
        if change is not None and len(shape) != 3:
            raise InvalidInput(f"augmentation is for images, and records of shape {list(shape)} are none: leave it out")
        return cohort.LocalTraining(
            self.optimizer.build(),
            epochs=self.epochs,
            steps=self.steps,
            batch_size=self.batch_size or None,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
            loss=loss,
            augmentation=None if change is None else augmentation.Affine(**change.model_dump()),
        )


__all__ = ["AdamSpec", "AnyOptimizer", "Augmentation", "OptimizerSpec", "RmsPropSpec", "SgdSpec", "Training"]
