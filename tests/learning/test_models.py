"""Networks: their exact sizes, vmap, flat vectors, where they start, and what batch norm may send."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.linear_model import SGDClassifier
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from sordino.errors import InvalidInput
from sordino.learning import models
from sordino.learning.models import LayerSlice, MaskedDropout, Network, build, initial_parameters, parameter_layout
from sordino.randomness import Keystream, Purpose

MNIST, CIFAR, DIGITS = (1, 28, 28), (3, 32, 32), (1, 8, 8)

COUNTS: list[tuple[str, tuple[int, ...], int, dict[str, Any], int]] = [
    ("logistic", DIGITS, 10, {}, 650),
    ("logistic", MNIST, 10, {}, 7_850),
    ("logistic-ovr", (54,), 7, {}, 385),
    ("mlp", MNIST, 10, {}, 199_210),
    ("mlp", DIGITS, 10, {"hidden": [32]}, 64 * 32 + 32 + 330),
    ("lenet", MNIST, 10, {}, 61_706),
    ("cnn-mnist", MNIST, 10, {}, 21_840),
    ("cnn-mnist", MNIST, 10, {"dropout": 0.5}, 21_840),
    ("cnn-wide", MNIST, 10, {}, 184_586),
    ("cnn-wide", MNIST, 10, {"hidden": 512, "padding": 2}, 1_663_370),
    ("ldp-fed", MNIST, 10, {}, 29_034),
    ("ldp-fed", MNIST, 10, {"norm": "group"}, 29_034),
    ("ldp-fed", MNIST, 10, {"norm": "none"}, 29_034 - 96),
    ("vgg-small", CIFAR, 10, {}, 551_466),
    ("vgg-small", CIFAR, 10, {"norm": "none"}, 550_570),
    ("ldpfl-mnist", MNIST, 10, {}, 598_250),
    ("ldpfl-cifar", CIFAR, 10, {}, 308_394),
    ("ldpfl-cifar", MNIST, 10, {}, 298_858),
    ("ldpfl-dense", (10_240,), 10, {}, 5_248_522),
    ("ldpfl-dense", (20_480,), 10, {}, 10_491_402),
    ("ldpfl-dense", (11_520,), 10, {}, 5_903_882),
]

SMALL: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("logistic", DIGITS, {}),
    ("logistic-ovr", DIGITS, {}),
    ("mlp", DIGITS, {"hidden": [16, 8]}),
    ("lenet", MNIST, {}),
    ("cnn-mnist", MNIST, {}),
    ("cnn-wide", (1, 16, 16), {}),
    ("ldp-fed", MNIST, {}),
    ("ldp-fed", MNIST, {"norm": "group"}),
    ("vgg-small", (3, 8, 8), {"channels": [8, 16]}),
    ("ldpfl-mnist", (1, 20, 20), {"hidden": 16}),
    ("ldpfl-mnist", (1, 20, 20), {"hidden": 16, "norm": "group"}),
    ("ldpfl-cifar", (3, 16, 16), {}),
    ("ldpfl-dense", (320,), {"hidden": [8]}),
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def stacked(module: nn.Module, clients: int, dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """K clients with parameters of their own, and their buffers."""
    starts = [initial_parameters(module, seed) for seed in range(clients)]
    parameters = {name: torch.stack([start[name] for start in starts]).to(dtype) for name in starts[0]}
    buffers = {name: torch.stack([buffer] * clients) for name, buffer in module.named_buffers()}
    buffers = {name: stack.to(dtype) if stack.is_floating_point() else stack for name, stack in buffers.items()}
    return parameters, buffers


class Tiny(nn.Module):
    """A user's own model: it asks for both facts about the data and has an option."""

    def __init__(self, input_shape: tuple[int, ...], classes: int, width: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(math.prod(input_shape), width)
        self.second = nn.Linear(width, classes)

    def forward(self, records: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(records.flatten(1))))


class Wrapper(nn.Module):
    """As Opacus wraps modules: the standard one can be had back."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def to_standard_module(self) -> nn.Module:
        return self.inside


def made(classes: int, width: int) -> nn.Module:
    return Wrapper(nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, classes)))


class Lazy(nn.Module):
    """A user's own model that asks for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LazyLinear(3)

    def forward(self, records: Tensor) -> Tensor:
        return self.first(records.flatten(1))


class Scaled(nn.Module):
    """Parameters of its own at the top, with a rule to start them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(3))
        self.inner = nn.Linear(64, 3)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.scale.normal_()

    def forward(self, records: Tensor) -> Tensor:
        return self.inner(records.flatten(1)) * self.scale


class Ruleless(nn.Module):
    """Parameters of its own and no rule to start them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, records: Tensor) -> Tensor:
        return records.flatten(1)[:, :3] * self.scale


class Parameterless(nn.Module):
    def forward(self, records: Tensor) -> Tensor:
        return records.flatten(1)[:, :3]


class Pair(Tiny):
    def forward(self, records: Tensor) -> Any:
        return records, records


def own(name: str) -> str:
    return f"{__name__}:{name}"


# --- networks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "shape", "classes", "options", "count"), COUNTS)
def test_parameter_counts_are_the_papers(
    name: str, shape: tuple[int, ...], classes: int, options: dict[str, Any], count: int
) -> None:
    module = build(name, input_shape=shape, classes=classes, **options)
    assert parameter_layout(module).size == count
    assert module(torch.zeros(2, *shape)).shape == (2, classes)


def test_the_page_states_every_count() -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    for name, _, _, options, count in COUNTS:
        if not options:
            assert f"`{name}`" in page and f" {count:,} " in page


def test_every_name_is_counted_and_run_under_vmap() -> None:
    assert {row[0] for row in COUNTS} == set(models.names()) == {row[0] for row in SMALL}


# The local CNNs of LDPFL divide by the spread of four records, often near zero, which magnifies single rounding.
SINGLE = [(*row, torch.float32, 1e-6) for row in SMALL if row[0] not in ("ldpfl-mnist", "ldpfl-cifar")]
DOUBLE = [(*row, torch.float64, 1e-10) for row in SMALL]


@pytest.mark.parametrize(("name", "shape", "options", "dtype", "near"), SINGLE + DOUBLE)
def test_vmap_agrees_with_a_loop_over_clients(
    name: str, shape: tuple[int, ...], options: dict[str, Any], dtype: torch.dtype, near: float
) -> None:
    """Scores, gradients and running statistics; double precision shows that all else is rounding."""
    clients, batch = 3, 4
    module = build(name, input_shape=shape, classes=5, **options).train()
    loss = models.loss_for(name)
    parameters, buffers = stacked(module, clients, dtype)
    alone = {name: buffer.clone() for name, buffer in buffers.items()}
    records = torch.randn(clients, batch, *shape, generator=generator(), dtype=dtype)
    labels = torch.randint(0, 5, (clients, batch), generator=generator())

    def objective(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        scores = functional_call(module, (p, b), (x,))
        return loss(scores, y), scores

    gradients, scores = vmap(grad(objective, has_aux=True))(parameters, buffers, records, labels)
    for k in range(clients):
        p = {name: value[k].clone() for name, value in parameters.items()}
        b = {name: value[k].clone() for name, value in alone.items()}
        one, expected = grad(objective, has_aux=True)(p, b, records[k], labels[k])
        torch.testing.assert_close(scores[k], expected, rtol=10 * near, atol=near)
        for parameter, value in one.items():
            torch.testing.assert_close(gradients[parameter][k], value, rtol=10 * near, atol=near)
        for buffer, value in b.items():
            torch.testing.assert_close(buffers[buffer][k], value, rtol=10 * near, atol=near)


@pytest.mark.parametrize(
    ("name", "shape", "features"),
    [("ldpfl-mnist", MNIST, 1024), ("ldpfl-cifar", CIFAR, 2048), ("ldpfl-cifar", MNIST, 1152)],
)
def test_the_extractors_of_ldpfl_have_the_papers_feature_counts(
    name: str, shape: tuple[int, ...], features: int
) -> None:
    network = build(name, input_shape=shape, classes=10)
    assert isinstance(network, Network)
    assert models.feature_size(network, shape) == features
    assert all(not buffer.any() for key, buffer in network.named_buffers() if key.endswith("mean"))  # left alone
    records = torch.randn(3, *shape, generator=generator())
    network.eval()
    rest = nn.Sequential(*list(network)[list(network._modules).index("flatten") + 1 :])
    torch.testing.assert_close(rest(network.extractor()(records)), network(records))
    shared = dict(network.named_parameters())
    assert all(value is shared[key] for key, value in network.extractor().named_parameters())


def test_a_network_without_flatten_cannot_be_split() -> None:
    with pytest.raises(InvalidInput, match="no layer 'flatten'"):
        Network(nn.Linear(2, 2)).extractor()


# --- dropout ---------------------------------------------------------------------------------------------------------


def test_dropout_is_off_without_masks_and_multiplies_them_when_given() -> None:
    plain = build("cnn-mnist", input_shape=MNIST, classes=10)
    network = build("cnn-mnist", input_shape=MNIST, classes=10, dropout=0.5)
    assert isinstance(network, Network)
    network.load_state_dict(plain.state_dict())
    records = torch.randn(6, *MNIST, generator=generator())
    torch.testing.assert_close(network.train()(records), plain(records), rtol=0, atol=0)

    ones = (torch.ones(6, 20, 1, 1), torch.ones(6, 50))
    torch.testing.assert_close(network(records, ones), plain(records), rtol=0, atol=0)
    nothing = (torch.ones(6, 20, 1, 1), torch.zeros(6, 50))
    bias = dict(network.named_parameters())["fc2.bias"]
    torch.testing.assert_close(network(records, nothing), bias.expand(6, 10))


def test_masks_drop_the_stated_fraction_and_keep_the_mean() -> None:
    network = build("ldpfl-cifar", input_shape=CIFAR, classes=10)
    assert isinstance(network, Network)
    assert network.mask_words == 32 * 16 * 16 + 64 * 8 * 8 + 128 * 4 * 4
    words = Keystream.simulation(1, range(4), 0).words(np.arange(4), Purpose.ORDER, 0, 0, network.mask_words * 2)
    masks = network.masks(words.reshape(4, 2, network.mask_words))
    assert [mask.shape for mask in masks] == [(4, 2, 32, 16, 16), (4, 2, 64, 8, 8), (4, 2, 128, 4, 4)]
    for mask, rate in zip(masks, (0.2, 0.3, 0.4), strict=True):
        dropped = int((mask == 0).sum())
        assert stats.binomtest(dropped, mask.numel(), rate).pvalue > 1e-6  # false alarm: 3e-6 for all three
        torch.testing.assert_close(mask[mask > 0], torch.full_like(mask[mask > 0], 1 / (1 - rate)))
    assert network(torch.zeros(2, *CIFAR), [mask[0] for mask in masks]).shape == (2, 10)


def test_masks_are_exact_at_the_threshold() -> None:
    place = MaskedDropout(0.25, (3,))
    assert place.mask(np.array([2**30 - 1, 2**30, 0], np.uint32)).tolist() == pytest.approx([0, 4 / 3, 0])


def test_wrong_masks_are_refused() -> None:
    network = build("cnn-mnist", input_shape=MNIST, classes=10, dropout=0.5)
    assert isinstance(network, Network)
    with pytest.raises(InvalidInput, match=r"2 dropout masks.*got 1"):
        network(torch.zeros(1, *MNIST), [torch.ones(1, 50)])
    with pytest.raises(InvalidInput, match="70 uint32 words"):
        network.masks(np.zeros((2, 69), np.uint32))
    assert build("lenet", input_shape=MNIST, classes=10).masks(np.zeros((2, 0), np.uint32)) == ()  # type: ignore[operator]


# --- losses ----------------------------------------------------------------------------------------------------------


def test_losses_by_hand() -> None:
    scores, labels = torch.tensor([[0.0, 0.0, 0.0], [math.log(3), 0.0, 0.0]]), torch.tensor([1, 0])
    assert models.loss_for("logistic")(scores, labels).item() == pytest.approx((math.log(3) + math.log(5 / 3)) / 2)
    second = math.log(4 / 3) + 2 * math.log(2)
    assert models.loss_for("logistic-ovr")(scores, labels).item() == pytest.approx((3 * math.log(2) + second) / 2)
    assert models.loss_for(own("Tiny")) is models.cross_entropy


def test_one_versus_rest_takes_the_steps_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    data, labels = rng.normal(size=(9, 4)), np.arange(9) % 3
    theirs = SGDClassifier(loss="log_loss", alpha=0.0, learning_rate="constant", eta0=0.1, max_iter=1, shuffle=False)
    theirs.partial_fit(data, labels, classes=[0, 1, 2])
    module, loss = build("logistic-ovr", input_shape=(4,), classes=3), models.loss_for("logistic-ovr")
    ours = {name: torch.zeros_like(value) for name, value in module.named_parameters()}
    for x, y in zip(torch.from_numpy(data.astype(np.float32)), torch.from_numpy(labels), strict=True):
        steps = grad(lambda p, x=x, y=y: loss(functional_call(module, p, (x[None],)), y[None]))(ours)
        ours = {name: value - 0.1 * steps[name] for name, value in ours.items()}
    np.testing.assert_allclose(ours["fc.weight"].numpy(), theirs.coef_, atol=1e-6)
    np.testing.assert_allclose(ours["fc.bias"].numpy(), theirs.intercept_, atol=1e-6)


# --- flat vectors ----------------------------------------------------------------------------------------------------


def test_ldp_fed_has_five_layers_side_by_side() -> None:
    layout = parameter_layout(build("ldp-fed", input_shape=MNIST, classes=10))
    assert layout.layers == (
        LayerSlice("conv1", 0, 416),
        LayerSlice("bn1", 416, 448),
        LayerSlice("conv2", 448, 13_280),
        LayerSlice("bn2", 13_280, 13_344),
        LayerSlice("fc", 13_344, 29_034),
    )
    assert [layer.size for layer in layout.layers] == [416, 32, 12_832, 64, 15_690]
    assert layout.names[:2] == ("conv1.weight", "conv1.bias")
    assert layout.shapes[:2] == ((16, 1, 5, 5), (16,))


def test_flat_vectors_follow_named_parameters() -> None:
    module = build("mlp", input_shape=(2,), classes=2, hidden=[1])
    layout = parameter_layout(module)
    named = layout.unflatten(torch.arange(7.0))
    assert {name: value.tolist() for name, value in named.items()} == {
        "fc1.weight": [[0, 1]],
        "fc1.bias": [2],
        "fc2.weight": [[3], [4]],
        "fc2.bias": [5, 6],
    }
    torch.testing.assert_close(
        layout.flatten(dict(module.named_parameters()))[2:3], dict(module.named_parameters())["fc1.bias"]
    )
    assert layout.layers[1].columns == slice(3, 7)


SHAPES = st.lists(st.lists(st.integers(1, 4), max_size=3).map(tuple), min_size=1, max_size=5)


@settings(deadline=None, derandomize=True)
@given(shapes=SHAPES, clients=st.none() | st.integers(1, 4), seed=st.integers(0, 2**31))
def test_flatten_and_unflatten_are_inverse(shapes: list[tuple[int, ...]], clients: int | None, seed: int) -> None:
    module = nn.ParameterDict({f"p{i}": nn.Parameter(torch.zeros(shape)) for i, shape in enumerate(shapes)})
    layout = parameter_layout(module)
    lead = () if clients is None else (clients,)
    vector = torch.randn(*lead, layout.size, generator=generator(seed))
    named = layout.unflatten(vector)
    assert [tuple(value.shape) for value in named.values()] == [lead + shape for shape in layout.shapes]
    assert torch.equal(layout.flatten(named), vector)
    again = layout.unflatten(layout.flatten(dict(reversed(named.items()))))
    assert all(torch.equal(again[name], value) for name, value in named.items())
    if clients is not None:
        row = layout.unflatten(vector[-1])
        assert all(torch.equal(row[name], value[-1]) for name, value in named.items())


def test_vectors_that_do_not_fit_are_refused() -> None:
    module = build("ldp-fed", input_shape=MNIST, classes=10)
    layout = parameter_layout(module)
    with pytest.raises(InvalidInput, match=r"\[29034\] or \[K, 29034\], got torch.float32 \[29033\]"):
        layout.unflatten(torch.zeros(29_033))
    with pytest.raises(InvalidInput, match=r"got torch.float64"):
        layout.unflatten(torch.zeros(29_034, dtype=torch.float64))


def test_only_trainable_float32_parameters_are_laid_out() -> None:
    module = build("mlp", input_shape=(2,), classes=2, hidden=[1])
    module.get_submodule("fc1").requires_grad_(False)
    assert parameter_layout(module).names == ("fc2.weight", "fc2.bias")
    assert list(initial_parameters(module, 0)) == ["fc2.weight", "fc2.bias"]
    with pytest.raises(InvalidInput, match="no trainable parameters"):
        parameter_layout(nn.ReLU())
    with pytest.raises(InvalidInput, match=r"weight.*got torch\.float64"):
        parameter_layout(nn.Linear(2, 2).double())


# --- initial parameters ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ldp-fed", "lenet", "mlp"])
def test_initial_parameters_have_pytorchs_bounds_and_distribution(name: str) -> None:
    module = build(name, input_shape=MNIST, classes=10)
    start = initial_parameters(module, 3)
    assert list(start) == list(parameter_layout(module).names)
    for key, theirs in module.named_parameters():
        ours = start[key]
        if key.startswith("bn"):
            assert torch.equal(ours, theirs)
            continue
        weight = dict(module.named_parameters())[key.replace("bias", "weight")]
        bound = 1 / math.sqrt(weight[0].numel())
        assert theirs.abs().max() <= bound and ours.abs().max() <= bound
        if ours.numel() >= 1000:
            assert ours.max() > 0.99 * bound and ours.min() < -0.99 * bound
        # false alarm: 1e-6 each
        assert stats.kstest(ours.flatten().numpy() / bound, stats.uniform(-1, 2).cdf).pvalue > 1e-6
        assert stats.ks_2samp(ours.flatten().numpy(), theirs.detach().flatten().numpy()).pvalue > 1e-6


def test_initial_parameters_follow_the_documented_formula() -> None:
    module = build("logistic", input_shape=DIGITS, classes=10)
    words = Keystream.simulation(7, [0], 0).words(np.zeros(1, np.intp), Purpose.INIT, 1, 0, 10)[0]
    expected = [np.float32((int(word) // 256 - 2**23) / 2**23 * 0.125) for word in words]
    assert initial_parameters(module, 7)["fc.bias"].tolist() == expected


def test_initial_parameters_depend_on_the_seed_alone() -> None:
    module = build("ldp-fed", input_shape=MNIST, classes=10)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    layout = parameter_layout(module)
    torch.manual_seed(1)
    first = layout.flatten(initial_parameters(module, 5))
    torch.manual_seed(2)
    assert torch.equal(layout.flatten(initial_parameters(build("ldp-fed", input_shape=MNIST, classes=10), 5)), first)
    assert not torch.equal(layout.flatten(initial_parameters(module, 6)), first)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("name", ["cnn-mnist", own("Tiny"), own("Lazy"), own("Scaled")])
def test_the_global_generator_is_left_alone(name: str) -> None:
    torch.manual_seed(11)
    state = torch.get_rng_state()
    module = build(name, input_shape=MNIST if name == "cnn-mnist" else DIGITS, classes=3)
    initial_parameters(module, 0)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(12)
    again = build(name, input_shape=MNIST if name == "cnn-mnist" else DIGITS, classes=3)
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in module.state_dict().items())


def test_a_layer_with_its_own_rule_starts_by_it() -> None:
    module = build(own("Scaled"), input_shape=DIGITS, classes=3)
    first, second = initial_parameters(module, 0), initial_parameters(module, 0)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["scale"], initial_parameters(module, 1)["scale"])
    assert parameter_layout(module).layers == (LayerSlice("(top)", 0, 3), LayerSlice("inner", 3, 198))
    attention = initial_parameters(nn.MultiheadAttention(4, 2), 0)  # it starts the bias of its inner layer at zero
    assert not attention["out_proj.bias"].any() and attention["out_proj.weight"].all()
    with pytest.raises(InvalidInput, match=r"Ruleless.*no rule"):
        initial_parameters(build(own("Ruleless"), input_shape=DIGITS, classes=3), 0)


# --- batch norm ------------------------------------------------------------------------------------------------------


def test_running_statistics_leave_only_when_the_recipe_says_so() -> None:
    module = build("ldp-fed", input_shape=MNIST, classes=10)
    assert models.has_batch_norm(module)
    assert len(models.running_statistics(module)) == 6
    with pytest.raises(InvalidInput, match=r"bn1.running_mean.*model.options.norm=group.*local"):
        models.released_buffers(module, "refuse")
    assert models.released_buffers(module, "local") == ()
    sent = ("bn1.running_mean", "bn1.running_var", "bn2.running_mean", "bn2.running_var")
    assert models.released_buffers(module, "release") == sent


def test_other_norms_have_nothing_to_release() -> None:
    for name in models.names():
        if name not in ("ldp-fed", "ldpfl-mnist", "ldpfl-cifar"):
            module = build(name, input_shape=MNIST, classes=10)
            assert not models.has_batch_norm(module)
            assert models.released_buffers(module, "refuse") == ()
    assert models.released_buffers(build("ldpfl-mnist", input_shape=MNIST, classes=10, norm="group"), "refuse") == ()
    batch_only = nn.BatchNorm2d(3, track_running_stats=False)
    assert models.has_batch_norm(batch_only) and models.running_statistics(batch_only) == ()
    tracking = nn.InstanceNorm2d(3, track_running_stats=True)
    assert not models.has_batch_norm(tracking)
    assert models.released_buffers(tracking, "release") == ("running_mean", "running_var")


# --- imported models -------------------------------------------------------------------------------------------------


def test_any_module_by_import_path() -> None:
    module = build(own("Tiny"), input_shape=DIGITS, classes=3, width=5)
    assert type(module).__name__ == "Tiny" and parameter_layout(module).size == 64 * 5 + 5 + 18
    assert parameter_layout(build(own("Lazy"), input_shape=DIGITS, classes=3)).size == 64 * 3 + 3


def test_a_function_may_make_the_module_and_a_wrapper_gives_its_own() -> None:
    module = build(own("made"), input_shape=DIGITS, classes=3, width=5)
    assert type(module) is nn.Sequential and parameter_layout(module).size == 64 * 5 + 5 + 18


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("no.such.package:Net", {}, "package.module:Class"),
        (own("Absent"), {}, "could not be imported"),
        (own("generator"), {}, "torch.nn.Module"),
        (own("Tiny"), {"depth": 3}, "options .*depth"),
        (own("Tiny"), {"width": -1}, "options"),
        (own("Parameterless"), {}, "no trainable parameters"),
        (own("Pair"), {}, "tuple"),
        ("torch.nn:Flatten", {}, r"\[2, 3\].*\[2, 64\]"),
        ("torch.nn:Linear", {"in_features": 5, "out_features": 3}, r"\[1, 8, 8\]"),
    ],
)
def test_imported_models_that_do_not_fit(path: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        build(path, input_shape=DIGITS, classes=3, **options)


def test_an_own_class_is_not_told_to_set_options_that_it_lacks() -> None:
    with pytest.raises(InvalidInput, match=r"nn\.GroupNorm.*model\.buffers=local") as caught:
        models.released_buffers(nn.Sequential(nn.BatchNorm1d(3)), "refuse")
    assert "options" not in str(caught.value)
    module = build(own("Ruleless"), input_shape=DIGITS, classes=3)
    with pytest.raises(InvalidInput, match=r'model\.start = "as-built"'):
        initial_parameters(module, 1)


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("lenett", MNIST, {}, "'lenett'.*'lenet'.*logistic-ovr.*package.module:Class"),
        (7, MNIST, {}, "unknown model 7"),
        ("ldp-fed", MNIST, {"nrm": "group"}, "ldp-fed 'nrm'.*'norm'"),
        ("lenet", MNIST, {"hidden": 3}, "lenet 'hidden'.*none"),
        ("ldp-fed", MNIST, {"norm": "bach"}, "norm.*'batch', 'group' or 'none'.*'bach'"),
        ("ldpfl-cifar", MNIST, {"activation": "gelu"}, "activation.*'gelu'"),
        ("mlp", MNIST, {"hidden": []}, "hidden.*at least 1"),
        ("mlp", MNIST, {"hidden": 200}, "hidden.*Sequence"),
        ("mlp", MNIST, {"hidden": [200, 0]}, "hidden.*got 0"),
        ("mlp", MNIST, {"hidden": [True]}, "hidden.*got True"),
        ("cnn-wide", MNIST, {"channels": [1, 2, 3]}, "channels.*at most 2"),
        ("cnn-wide", MNIST, {"padding": 3}, "padding.*0, 1 or 2"),
        ("cnn-mnist", MNIST, {"dropout": 1.0}, "dropout.*less than 1"),
        ("ldpfl-cifar", MNIST, {"dropout": 0.2}, "dropout.*Sequence"),
        ("lenet", DIGITS, {}, r"\[1, 8, 8\].*4x4.*'conv2'.*5x5"),
        ("cnn-mnist", DIGITS, {}, "'conv2'.*5x5"),
        ("vgg-small", (3, 32, 4), {}, "8x1.*'pool3'.*2x2"),
        ("lenet", (784,), {}, "channels x height x width"),
        ("logistic", (), {}, "input_shape.*at least 1"),
        ("logistic", (0, 3), {}, "input_shape.*got 0"),
        ("logistic", 784, {}, "input_shape.*Sequence"),
    ],
)
def test_bad_input_is_said_in_words(name: Any, shape: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        build(name, input_shape=shape, classes=10, **options)


@pytest.mark.parametrize("classes", [0, -3, True, 2.0, "10"])
def test_classes_are_whole_numbers_from_one_on(classes: Any) -> None:
    with pytest.raises(InvalidInput, match="classes"):
        build("logistic", input_shape=DIGITS, classes=classes)


def test_the_loss_of_an_unknown_model_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'logistic'"):
        models.loss_for("logistics")
