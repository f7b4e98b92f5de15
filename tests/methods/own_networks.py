"""Networks of a user's own, for private training: one that is a function of its record, and some that are not."""

import torch
from torch import Tensor, nn


class Plain(nn.Module):
    """Two dense layers."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(input_shape[-1] * input_shape[-2] * input_shape[0], 5), nn.Linear(5, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(self.centred(x.flatten(1)))))

    def centred(self, x: Tensor) -> Tensor:
        """What the layers see of records."""
        return x


class RunningMean(Plain):
    """Subtracts a running mean that is no buffer."""

    mean: Tensor | None = None

    def centred(self, x: Tensor) -> Tensor:
        own = x.detach().mean(0)
        self.mean = own if self.mean is None else 0.9 * self.mean + 0.1 * own
        return x - self.mean


class Counting(Plain):
    """Grows with the number of records that it has seen."""

    seen = 0

    def centred(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return x * self.seen


class Beside(Plain):
    """Normalises by the records of its batch, as batch norm without running statistics does."""

    def centred(self, x: Tensor) -> Tensor:
        return x - x.mean(0) if len(x) > 1 else x


class Failing(Plain):
    """Takes records of zeros only, as models are tried on."""

    def centred(self, x: Tensor) -> Tensor:
        if x.any():
            raise RuntimeError("only zeros")
        return x


class Picky(Plain):
    """Refuses records with a very bright corner, as own code may refuse what it does not know."""

    def centred(self, x: Tensor) -> Tensor:
        if bool((x[:, 0] > 100).any()):
            raise ValueError("too bright")
        return x


class FrozenBody(nn.Module):
    """A body that is not trained, with batch norm, dropout and a table of constants, and a head that is."""

    scale: Tensor

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5))
        nn.init.constant_(self.body[1].running_mean, 0.125)
        self.body.requires_grad_(False)
        self.register_buffer("scale", torch.ones(1))
        self.head = nn.Linear(144, classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(x) * self.scale)
        return scores


class Adapted(nn.Module):
    """A frozen dense layer W with a low-rank adapter beside it, W x + B A x: A is drawn and B is 0."""

    def __init__(self, inputs: int, outputs: int, rank: int = 2) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.lora_a, self.lora_b = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.base(x) + self.lora_b(self.lora_a(x))
        return scores


class Lora(nn.Sequential):
    """A frozen network of two dense layers with adapters."""

    def __init__(self, classes: int) -> None:
        super().__init__(nn.Flatten(), Adapted(64, 16), nn.Tanh(), Adapted(16, classes))


class Recurrent(nn.Module):
    """An image read row by row, by an LSTM or a GRU."""

    def __init__(self, classes: int, cell: str = "LSTM") -> None:
        super().__init__()
        self.cell: nn.Module = getattr(nn, cell)(8, 6, batch_first=True)
        self.head = nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.cell(x.view(-1, 8, 8))[0][:, -1])
        return scores


class Attention(nn.Module):
    """The rows of an image under self-attention, with ordinary dropout."""

    def __init__(self, classes: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.layer(x.view(-1, 8, 8)).mean(1))
        return scores


class Tokens(nn.Module):
    """Pixels as tokens."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(17, 4), nn.Linear(64 * 4, classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.embedding((x.flatten(1) * 16).long().clamp(0, 16)).flatten(1))
        return scores


class Dropping(nn.Sequential):
    """Ordinary dropout."""

    def __init__(self, classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, classes))


class Leaving(Plain):
    """At a record with a bright corner it leaves something behind; no public record has one."""

    scale: Tensor
    offset: float = 0.0

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__(input_shape, classes)
        self.register_buffer("scale", torch.ones(1))
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)

    def centred(self, x: Tensor) -> Tensor:
        found = x * self.scale * self.frozen + self.offset + (0 if self.training else 1)
        if bool((x[:, 0] > 100).any()):
            self.leave()
        return found

    def leave(self) -> None:
        raise NotImplementedError


class InPlace(Leaving):
    def leave(self) -> None:
        with torch.no_grad():
            self.scale.mul_(3)


class Rebound(Leaving):
    def leave(self) -> None:
        self.scale = 3 * self.scale


class Weights(Leaving):
    def leave(self) -> None:
        with torch.no_grad():
            self.frozen.add_(1)


class Attributes(Leaving):
    def leave(self) -> None:
        self.offset += 0.5


class Modes(Leaving):
    def leave(self) -> None:
        self.train(not self.training)


class Settings(Leaving):
    def leave(self) -> None:
        torch.set_num_threads(2)
        torch.set_flush_denormal(True)
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)


LEAVING = [InPlace, Rebound, Weights, Attributes, Modes, Settings]
