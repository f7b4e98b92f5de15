"""What holds for every mechanism of the catalogue: grouping, encoding, moments, diagnostics, guarantees, support."""

from __future__ import annotations

import copy
import json
import math
import pickle

import numpy as np
import pytest
from catalogue import ENTRIES, LABELS, PERSONAL, PRIVATE, REALS, Entry, each, law, not_refused, reports, stream

from sordino.errors import InvalidInput
from sordino.mechanisms import PrivUnitG
from sordino.mechanisms.arrays import TILE
from sordino.mechanisms.output import BitOutput, IntegerOutput, RealOutput, encode, integer_width
from sordino.privacy import accountant
from sordino.privacy.guarantee import Adjacency, Infinite, Metric, Pure, RandomizedBit
from sordino.randomness import Keystream

LENGTHS = [2, 8, 13, TILE + 13]

# --- randomness -----------------------------------------------------------------------------------------------------


@each(PRIVATE)
@pytest.mark.parametrize("d", LENGTHS)
def test_a_cohort_says_what_its_clients_say_one_by_one(entry: Entry, d: int) -> None:
    ids = np.array([11, 2, 7])
    values = entry.inputs(3, d)
    mechanism = entry.mechanism(d)
    together = reports(mechanism, values, Keystream.simulation(5, ids, 3))
    for k, client in enumerate(ids):
        alone = reports(mechanism, values[k : k + 1], Keystream.simulation(5, [client], 3))
        assert alone == [together[k]]
    swapped = reports(mechanism, values[::-1], Keystream.simulation(5, ids[::-1], 3))
    assert swapped == together[::-1]


@each(PERSONAL)
@pytest.mark.parametrize("d", [13, TILE + 13])
def test_personal_parameters_are_each_clients_own(entry: Entry, d: int) -> None:
    values = entry.inputs(5, d)
    mechanism = entry.make(d, entry.personal)
    assert mechanism.clients == 5
    together = mechanism.randomize(values, stream(5))
    encoded, estimates = mechanism.encode(together.output), mechanism.estimate(together.output)
    for k, parameter in enumerate(entry.personal):
        one = entry.make(d, parameter)
        alone = one.randomize(values[k : k + 1], Keystream.simulation(7, [k], 0))
        assert one.encode(alone.output) == [encoded[k]]
        assert (one.estimate(alone.output)[0] == estimates[k]).all()
        assert alone.local.noise_scale[0] == together.local.noise_scale[k]
        assert alone.local.clipped_fraction[0] == pytest.approx(together.local.clipped_fraction[k])
        for adjacency in (Adjacency.CLIENT, Adjacency.COORDINATE):
            assert one.guarantee(adjacency, values=d).loss == mechanism.guarantee(adjacency, values=d, client=k).loss


@each(PRIVATE)
def test_many_small_clients_say_what_each_says_alone(entry: Entry) -> None:
    """More rows than fit one tile of 2^15 values."""
    d, clients = 600, 70
    values = entry.inputs(clients, d)
    mechanism = entry.mechanism(d)
    together = reports(mechanism, values, stream(clients))
    for k in (0, 53, 54, 69):
        assert reports(mechanism, values[k : k + 1], Keystream.simulation(7, [k], 0)) == [together[k]]


@each(PRIVATE)
def test_rounds_tensors_seeds_and_clients_draw_differently(entry: Entry) -> None:
    d = 64
    values, mechanism = np.repeat(entry.inputs(1, d), 2, axis=0), entry.mechanism(d)
    base = reports(mechanism, values, stream(2))
    assert base[0] != base[1]
    assert base == reports(mechanism, values, stream(2))
    for other in (
        reports(mechanism, values, stream(2, round=1)),
        reports(mechanism, values, stream(2, seed=8)),
        reports(mechanism, values, stream(2), tensor=1),
        reports(mechanism, values[:1], Keystream.fresh()),
    ):
        assert other[0] != base[0]


LENGTH_MATTERS = {"laplace-ball", "gaussian-ball", "privunit", "bits-theorem2", "bits-rappor"}  # in their very law


@each([e for e in PRIVATE if e.name not in LENGTH_MATTERS and not e.name.startswith("exponential")])
def test_the_beginning_of_a_long_vector_is_drawn_like_a_short_one(entry: Entry) -> None:
    """Where neither domain nor parameters depend on the length: value j uses the words j*w on, whatever follows.

    The exponential mechanism is left out: its redraws are read in the order of the missing values.
    """
    values = entry.inputs(1, 40)
    whole = entry.mechanism(40).randomize(values, stream()).output
    part = entry.mechanism(24).randomize(values[:, :24], stream()).output
    estimate = entry.mechanism(40).estimate
    assert (estimate(part) == estimate(whole)[:, :24]).all()


# --- encoding -------------------------------------------------------------------------------------------------------


@each(ENTRIES)
@pytest.mark.parametrize("d", [2, 8, 13])
def test_encoding_is_compact_and_comes_back_unchanged(entry: Entry, d: int) -> None:
    mechanism = entry.make(d, entry.personal) if entry.personal else entry.mechanism(d)
    output = mechanism.randomize(entry.inputs(5, d), stream(5)).output
    encoded = mechanism.encode(output)
    decoded = mechanism.decode(encoded, d)
    assert type(decoded) is type(output)
    assert decoded.values == output.values == d
    assert (np.asarray(mechanism.estimate(decoded)) == mechanism.estimate(output)).all()
    assert mechanism.encode(decoded) == encoded
    for k, report in enumerate(encoded):
        assert isinstance(report, bytes)
        match output:
            case BitOutput():
                assert len(report) == math.ceil(d / 8)
            case IntegerOutput(_, low, high):
                assert len(report) == d * integer_width(int(low[k]), int(high[k]))
                assert len(report) <= d * (int(high[k] - low[k]).bit_length() / 8 + 1)
            case RealOutput():
                assert len(report) == 4 * d
    again = mechanism.decode([bytearray(r) for r in encoded], d)
    assert mechanism.encode(again) == encoded


@each(ENTRIES)
def test_reports_of_another_length_are_refused(entry: Entry) -> None:
    d = 13
    mechanism = entry.mechanism(d)
    report = reports(mechanism, entry.inputs(1, d), stream())[0]
    for bad in (b"", report[:-1], report + b"\0", report * 2):
        with pytest.raises(InvalidInput, match="bytes"):
            mechanism.decode([bad], d)
        with pytest.raises(InvalidInput, match="report 1 has"):
            mechanism.decode([report, bad], d)
    for bad in ("text", 5, None, [1, 2]):
        with pytest.raises(InvalidInput, match="byte string"):
            mechanism.decode([bad], d)


@each(ENTRIES)
def test_a_report_of_no_whole_number_of_values_is_refused(entry: Entry) -> None:
    mechanism = entry.mechanism(13)
    assert not not_refused(lambda d: mechanism.decode([b""], d), [0, -3, 1.5, None, "a"])


@each(ENTRIES)
def test_no_reports_at_all_are_refused_or_give_no_rows(entry: Entry) -> None:
    try:
        output = entry.mechanism(13).decode([], 13)
    except InvalidInput:
        return
    assert len(entry.mechanism(13).encode(output)) == 0


@each(PERSONAL)
def test_reports_of_another_number_of_clients_are_refused(entry: Entry) -> None:
    mechanism = entry.make(13, entry.personal)
    encoded = reports(mechanism, entry.inputs(5, 13), stream(5))
    for bad in (encoded[:4], [*encoded, encoded[0]], encoded[:1]):
        with pytest.raises(InvalidInput, match="5 clients"):
            mechanism.decode(bad, 13)


@each(ENTRIES)
def test_what_the_mechanism_never_says_is_refused(entry: Entry) -> None:
    d = 13
    mechanism = entry.mechanism(d)
    output = mechanism.randomize(entry.inputs(1, d), stream()).output
    good = mechanism.encode(output)[0]
    match output:
        case BitOutput():
            forged = [good[:-1] + bytes([good[-1] | bit]) for bit in (0x20, 0x40, 0x80)]
            words = "padding"
        case IntegerOutput(_, low, high):
            width = integer_width(int(low[0]), int(high[0]))
            beyond = (int(high[0] - low[0]) + 1).to_bytes(width + 1, "little")[:width]
            largest = int(high[0] - low[0]).to_bytes(width, "little")
            if entry.name != "privunit":  # whose outputs are bounded in length too
                assert mechanism.decode([largest * d], d).array.max() == high[0]
            full = int(high[0] - low[0]) + 1 == 256**width  # every byte string is an output: there is nothing to forge
            forged = [] if full else [good[:-width] + b"\xff" * width, good[:-width] + beyond]
            words = "output set"
        case RealOutput(_, bound):
            numbers = [math.nan, math.inf, -math.inf]
            if bound[0] < 1e38:
                numbers += [float(bound[0]) * 1.001, -float(bound[0]) * 1.001]
            forged = [good[:-4] + np.array([x], "<f4").tobytes() for x in numbers]
            words = "output set"
    for bad in forged:
        with pytest.raises(InvalidInput, match=words):
            mechanism.decode([bad], d)


@each(ENTRIES)
def test_another_mechanisms_output_is_refused(entry: Entry) -> None:
    mechanism = entry.mechanism(13)
    mine = type(mechanism.randomize(entry.inputs(1, 13), stream()).output)
    others = [
        BitOutput(np.zeros((1, 2), np.uint8), 13),
        IntegerOutput(np.zeros((1, 13), np.int64), np.zeros(1, np.int64), np.ones(1, np.int64)),
        RealOutput(np.zeros((1, 13), np.float32), np.ones(1)),
    ]
    for other in others:
        if type(other) is not mine:
            with pytest.raises(TypeError, match=type(other).__name__):
                mechanism.estimate(other)


@each(PERSONAL)
def test_estimating_the_output_of_another_number_of_clients_is_refused(entry: Entry) -> None:
    output = entry.mechanism(13).randomize(entry.inputs(3, 13), stream(3)).output
    with pytest.raises(InvalidInput, match="clients"):
        entry.make(13, entry.personal).estimate(output)


# --- diagnostics ----------------------------------------------------------------------------------------------------


@each(ENTRIES)
def test_diagnostics_cannot_be_sent(entry: Entry) -> None:
    randomized = entry.mechanism().randomize(entry.inputs(1, 13), stream())
    for attempt in (encode, entry.mechanism().encode):
        with pytest.raises(InvalidInput, match="Diagnostics"):
            attempt(randomized.local)
        with pytest.raises(InvalidInput, match="Randomized"):
            attempt(randomized)
    for thing in (randomized.local, randomized):
        with pytest.raises(TypeError, match="local"):
            pickle.dumps(thing)
        with pytest.raises(TypeError, match="local"):
            copy.deepcopy(thing)
        with pytest.raises(TypeError):
            json.dumps(thing)
    assert not any(hasattr(randomized.output, name) for name in ("local", "clipped_fraction", "noise_scale"))


@each([e for e in PRIVATE if e.takes == "reals" and e.name != "privunit"])
def test_the_noise_scale_is_the_deviation_at_the_centre_of_the_domain(entry: Entry) -> None:
    mechanism = entry.mechanism(4)
    centre = np.full((1, 4), float(np.mean(getattr(mechanism.domain, "centre", 0.0))))
    local = mechanism.randomize(centre, stream()).local
    assert local.noise_scale == pytest.approx(np.sqrt(mechanism.variance(centre))[:, 0], rel=1e-6)
    assert local.clipped_fraction.tolist() == [0.0]


@each([e for e in ENTRIES if e.takes == "reals" and e.name != "privunit"])
def test_the_clipped_share_counts_what_lay_outside(entry: Entry) -> None:
    mechanism = entry.mechanism(8)
    values = np.array([[100.0] * 3 + [0.01] * 5, [0.01] * 8])
    share = mechanism.randomize(values, stream(2)).local.clipped_fraction
    ball = "ball" in entry.name or entry.name in ("clip-l1", "clip-l2")
    expected = {"none": 0.0}.get(entry.name, 1.0 if ball else 3 / 8)
    assert share.tolist() == [pytest.approx(expected), 0.0]


# --- moments --------------------------------------------------------------------------------------------------------


def sample(entry: Entry, clients: int, d: int, seed: int = 7) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Estimates of many clients with the same input, their exact mean and their exact variance, per coordinate."""
    mechanism = entry.mechanism(d)
    row = entry.inputs(1, d, seed=5)
    if entry.takes == "reals":
        row = row * np.float32(0.6)
    estimates = mechanism.estimate(
        mechanism.randomize(np.repeat(row, clients, axis=0), stream(clients, seed=seed)).output
    )
    truth = row if entry.takes != "labels" else np.eye(10)[row]
    mean = truth.astype(np.float64) + mechanism.bias(row)
    return np.asarray(estimates, np.float64).reshape(clients, -1), mean.ravel(), mechanism.variance(row).ravel()


@each(PRIVATE)
def test_mean_and_variance_are_the_stated_ones_so_halved_noise_is_noticed(entry: Entry) -> None:
    """Every coordinate within 6 standard errors of the stated mean and variance: false alarm below 2e-7 a case.

    Half the noise has a quarter of the variance, which lies far outside what is tolerated.
    """
    n = 5000
    estimates, mean, variance = sample(entry, n, 4)
    assert (np.abs(estimates.mean(axis=0) - mean) <= 6 * np.sqrt(variance / n) + 1e-5 * np.sqrt(variance)).all()
    square = (estimates - mean) ** 2
    tolerance = 6 * square.std(axis=0) / math.sqrt(n) + 1e-4 * variance
    assert (np.abs(square.mean(axis=0) - variance) <= tolerance).all()
    assert (tolerance < variance / 2).all()


# --- guarantees -----------------------------------------------------------------------------------------------------


def _adjacencies(entry: Entry) -> list[Adjacency]:
    refused = {Adjacency.LABEL} if entry.takes == "reals" else {Adjacency.RECORD_ADD_REMOVE}
    return [a for a in Adjacency if a not in refused]


@each(ENTRIES)
def test_an_adjacency_given_as_text_is_refused_or_means_the_same(entry: Entry) -> None:
    """The text of an adjacency equals it, so it must not slip through a comparison of identities."""
    mechanism = entry.mechanism(13)
    for adjacency in _adjacencies(entry):
        wanted = mechanism.guarantee(adjacency, values=13)
        try:
            got = mechanism.guarantee(str(adjacency.value), values=13)  # type: ignore[arg-type]
        except InvalidInput:
            continue
        assert got.loss == wanted.loss, adjacency
    with pytest.raises(InvalidInput):
        mechanism.guarantee("no such adjacency", values=13)  # type: ignore[arg-type]


@each([e for e in ENTRIES if e.takes == "reals" and e.private])
def test_a_numeric_mechanism_does_not_speak_of_labels(entry: Entry) -> None:
    with pytest.raises(InvalidInput, match="label"):
        entry.mechanism().guarantee(Adjacency.LABEL)


@each(PRIVATE)
def test_a_guarantee_for_no_whole_number_of_values_is_refused(entry: Entry) -> None:
    """A guarantee for 0 values would cost nothing, one for half a value half."""
    mechanism = entry.mechanism()
    bad = [0, -1, 0.5, 2.0, True, "3", None, math.nan]
    assert not not_refused(lambda values: mechanism.guarantee(Adjacency.CLIENT, values=values), bad)


@each(PERSONAL)
@pytest.mark.parametrize("client", [5, -1])
def test_a_guarantee_for_an_unknown_client_is_refused(entry: Entry, client: int) -> None:
    mechanism = entry.make(13, entry.personal)
    with pytest.raises(InvalidInput, match="clients 0 to 4"):
        mechanism.guarantee(client=client)


@each([e for e in PRIVATE if e.name != "privunit"])
def test_a_guarantee_is_finite_against_the_server_and_names_its_basis(entry: Entry) -> None:
    guarantee = entry.mechanism(13).guarantee(Adjacency.CLIENT, values=13)
    assert 0 < accountant.epsilon(guarantee.loss, 1e-6) < math.inf
    assert str(guarantee.adversary) == "server"
    assert guarantee.basis
    one = entry.mechanism(13).guarantee(Adjacency.COORDINATE, values=13)
    assert accountant.epsilon(one.loss, 1e-6) <= accountant.epsilon(guarantee.loss, 1e-6)


def test_what_is_computed_with_floats_is_claimed_and_never_proven() -> None:
    for adjacency in (Adjacency.CLIENT, Adjacency.COORDINATE, Adjacency.RECORD_REPLACE):
        guarantee = PrivUnitG(1.0).guarantee(adjacency, values=650)
        assert isinstance(guarantee.loss, Infinite)
        assert guarantee.adjacency is adjacency
    claim = PrivUnitG([1.0, 3.0]).claim(values=650, client=1)
    assert claim is not None and (claim.epsilon, claim.delta, claim.covers) == (3.0, 0.0, "release")
    assert "real arithmetic" in claim.formula


# --- support --------------------------------------------------------------------------------------------------------


@each(PRIVATE)
def test_outputs_are_bits_or_whole_numbers_of_a_public_range(entry: Entry) -> None:
    """The last digits of a float depend on what was added to it: they can tell inputs apart at any epsilon."""
    d = 13
    mechanism = entry.mechanism(d)
    sets = set()
    for seed in range(4):
        output = mechanism.randomize(entry.inputs(1, d, seed=seed), stream(seed=seed)).output
        assert isinstance(output, BitOutput | IntegerOutput)
        if isinstance(output, IntegerOutput):
            sets.add((int(output.low[0]), int(output.high[0])))
            assert output.low[0] <= output.array.min() and output.array.max() <= output.high[0]
    assert len(sets) <= 1


PURE = [e for e in REALS if e.private and isinstance(e.mechanism().guarantee(Adjacency.COORDINATE).loss,
                                                     Pure | Metric | RandomizedBit)]  # fmt: skip
SMALL = [e for e in PURE if e.name not in ("laplace-ball", "exponential-huge")]  # whose laws can be written down


def test_the_support_of_most_pure_mechanisms_is_enumerated() -> None:
    assert {e.name for e in PURE} == {
        "two-point", "sign-gaussian", "sign-response", "laplace-box", "laplace-ball", "laplace-records",
        "exponential-small", "exponential-huge", "piecewise",
    }  # fmt: skip


@each([e for e in PRIVATE if e.takes != "reals"])
def test_every_bit_and_every_label_is_possible_for_every_other(entry: Entry) -> None:
    """4,000 clients for each input; the rarest output has probability 0.08, and is missing with e^-330."""
    n, inputs = 4000, range(2 if entry.takes == "bits" else LABELS)
    for x in inputs:
        output = entry.mechanism(1).randomize(np.full((n, 1), x), stream(n)).output
        said = output.bits() if isinstance(output, BitOutput) else output.array
        assert sorted(set(said.ravel().tolist())) == list(inputs)


@each(SMALL)
def test_no_output_is_possible_under_one_input_only(entry: Entry) -> None:
    """The law of one value, enumerated, for inputs at the ends, in the middle, and next to it in the last bit."""
    mechanism = entry.mechanism(1)
    middle = float(np.mean(getattr(mechanism.domain, "centre", 0.0)))
    inputs = [-100.0, 100.0, middle, float(np.nextafter(np.float32(middle), np.float32(9))), middle + 1e-3, 0.0]
    laws = [law(mechanism, x) for x in inputs]
    epsilon = accountant.epsilon(mechanism.guarantee(Adjacency.COORDINATE).loss)
    for p in laws:
        assert p.sum() == pytest.approx(1.0, abs=1e-9)
        assert p.min() > 0
        assert max(float(np.log(p / q).max()) for q in laws) <= epsilon * (1 + 1e-9) + 1e-12


@each(SMALL)
def test_what_is_drawn_has_the_law_that_is_enumerated(entry: Entry) -> None:
    """100,000 draws in 32 cells of about equal probability, each within 6 standard deviations: false alarm 7e-8."""
    mechanism, n = entry.mechanism(1), 100_000
    p = law(mechanism, 0.4)
    output = mechanism.randomize(np.full((n, 1), 0.4), stream(n)).output
    drawn = (
        output.bits()[:, 0] if isinstance(output, BitOutput) else output.array[:, 0].astype(int) - int(output.low[0])
    )
    assert p.size == (2 if isinstance(output, BitOutput) else int(output.high[0] - output.low[0]) + 1)
    cells = np.minimum((np.cumsum(p) - p / 2) * 32, 31).astype(int)
    expected = n * np.bincount(cells, p, 32)
    found = np.bincount(cells[drawn], minlength=32)
    assert (np.abs(found - expected) <= 6 * np.sqrt(expected) + 1).all()


@each([e for e in PRIVATE if e.takes == "reals"])
@pytest.mark.parametrize("small", [1.0, 1e-3, 2.0**-149], ids=["large", "small", "denormal"])
def test_zeros_and_other_values_are_said_on_the_same_lattice(entry: Entry, small: float) -> None:
    """Of a sparse vector: the differences of the outputs have one greatest common divisor, and one remainder by it.

    So have their residues modulo 16, where noise is fine enough for these to be even: 300 draws or more, chi-square
    with 15 degrees of freedom below 90, false alarm 1e-12.
    """
    d, clients = 64, 40
    values = np.zeros((clients, d), np.float32)
    values[:, ::2] = small * np.random.default_rng(1).choice([-1, 1], (clients, d // 2))
    output = entry.mechanism(d).randomize(values, stream(clients)).output
    if isinstance(output, BitOutput):
        return  # both bits are possible for every value, by the test above
    other, zero = output.array[:, ::2].ravel().astype(np.int64), output.array[:, 1::2].ravel().astype(np.int64)
    lattices = {(g := int(np.gcd.reduce(np.abs(part - part[0]))), int(part[0]) % g) for part in (other, zero)}
    assert len(lattices) == 1
    for part in (other, zero):
        if np.std(part) > 64:
            counts = np.bincount(part % 16, minlength=16)
            assert ((counts - part.size / 16) ** 2 / (part.size / 16)).sum() < 90
