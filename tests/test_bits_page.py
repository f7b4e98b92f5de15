"""The tables of docs/bits.md in plain Python, their exact form: it imports nothing of Sordino."""

import hashlib
import json
import math
import struct
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

GOLDEN = Path(__file__).parent / "golden"
VECTORS = json.loads((GOLDEN / "vectors.json").read_text())
WEB = json.loads((GOLDEN / "web.json").read_text())
WEB_STREAM = {"key_hex": WEB["key_hex"], "client": 0, "round": 0, "purpose": 1, "tensor": 0}
mp = mpmath.mp.clone()  # a context of its own, so that no other test sees this precision
mp.prec = 400
f32 = np.float32


def rows(group, name):
    return [pytest.param(row, id=f"{name} {row[name]}") for row in VECTORS[group]]


def sha256(numbers, form):
    return hashlib.sha256(struct.pack(f"<{len(numbers)}{form}", *numbers)).hexdigest()


# Keystream


def words(start, count, of=VECTORS):
    """Words start .. start + count - 1 of a stream, the vectors' unless another is given."""
    encryptor = Cipher(algorithms.AES(bytes.fromhex(of["key_hex"])), modes.ECB()).encryptor()
    fields = [of[name] for name in ("client", "round", "purpose", "tensor")]
    first, end = start // 4, -(-(start + count) // 4)
    stream = b"".join(encryptor.update(struct.pack(">IIHHI", *fields, block)) for block in range(first, end))
    return struct.unpack_from(f"<{count}I", stream, 4 * (start - 4 * first))


def lanes(j, count, of=VECTORS):
    """The lanes of value j, where a value takes `count` lanes."""
    w = words(2 * count * j, 2 * count, of)
    return [low + (high << 32) for low, high in zip(w[::2], w[1::2], strict=True)]


def int32(word):
    return word - 2**32 if word >= 2**31 else word


# float32 steps


def normalised(values, centre=0.0, radius=1.0):
    scale = f32(1) / f32(radius)
    return [min(max(f32(f32(f32(x) - f32(centre)) * scale), f32(-1)), f32(1)) for x in values]


def on_grid(values, steps, radius=1.0):
    return [round(float(f32(z * f32(steps)))) for z in normalised(values, 0.0, radius)]


# Encoding


def encode_bits(bits):
    return sum(bit << i for i, bit in enumerate(bits)).to_bytes(-(-len(bits) // 8), "little").hex()


def encode_numbers(numbers, low, high):
    size = -(-(high - low).bit_length() // 8)
    return b"".join((n - low).to_bytes(size, "little") for n in numbers).hex()


# Thresholds, weights and tables


def exp(x):
    x = Fraction(x)
    return mp.exp(mp.mpf(x.numerator) / x.denominator)


def least_threshold(epsilon):
    return max(1, int(mp.ceil(2**32 / (exp(epsilon) + 1))))


def gaussian_link(ratio):
    above = [mp.floor(2**32 * (mp.ncdf(mp.mpf(ratio) * (2 * k + 1) / 8193) - 0.5)) for k in range(1, 4097)]
    return [min(int(t), 2**31 - 1) for t in above]


def sign_table(above):
    return [-t for t in reversed(above)] + [0, *above]


def alias_table(weights):
    """The function from a lane to an index."""
    m = max(1, (len(weights) - 1).bit_length())
    cells, capacity = range(2**m), 2 ** (64 - m)
    left = weights + [0] * (len(cells) - len(weights))
    threshold, alias = [0] * len(cells), list(cells)
    small = [i for i in reversed(cells) if left[i] < capacity]
    large = [i for i in reversed(cells) if left[i] > capacity]
    while small:
        i, j = small.pop(), large[-1]
        threshold[i], alias[i] = left[i] << m, j
        left[j] -= capacity - left[i]
        if left[j] <= capacity:
            large.pop()
            if left[j] < capacity:
                small.append(j)
    return lambda u: u % 2**m if u < threshold[u % 2**m] else alias[u % 2**m]


def laplace_digits(epsilon, steps, rate):
    """(shift, number of values) of each digit, most significant first."""
    tail = 20 if epsilon > 22.5 else max(9, min(20, 31 - Fraction(epsilon)))
    reach = 2 * steps + math.ceil(tail / rate) + 1
    shift = 0
    while -(-reach // 2**shift) > 2**14:
        shift += 1
    lower = [(s, 2 ** min(12, shift - s)) for s in range(0, shift, 12)]
    return [(shift, -(-reach // 2**shift) + 1), *reversed(lower)]


def laplace_weights(rate, shift, size, top):
    factor = int(mp.floor(2**192 * exp(-rate * 2**shift)))
    shapes = [2**192]
    while len(shapes) < size:
        shapes.append(shapes[-1] * factor >> 192)
    if top:
        shapes[-1] = (shapes[-1] << 192) // (2**192 - factor)
    total = sum(shapes)
    weights = [max(1, ((shape << 65) + total) // (2 * total)) for shape in shapes]
    weights[weights.index(max(weights))] += 2**64 - sum(weights)
    return weights


def gaussian_plan(sigma, radius):
    """(steps, lanes, the table's standard deviation, reach)."""
    sigma /= float(f32(radius))
    if 256 * sigma <= 512:
        steps = 256
        while steps * sigma < 32:
            steps *= 2
        return steps, 1, steps * sigma, 2 * steps + math.ceil(9.6 * steps * sigma)
    steps, levels = 1, 3
    while steps * sigma < 2**17:
        steps *= 2
    while steps < 256:
        steps, levels = 32 * steps, levels + 1
    deviation = steps * sigma / math.sqrt(sum(32 ** (2 * i) for i in range(levels)))
    return steps, levels, deviation, math.ceil((10.5 + 2 / sigma) * deviation)


def rounded_gaussian(k, deviation):
    if abs(k) > math.ceil(10 * deviation):
        return mp.zero
    return mp.ncdf((mp.mpf(0.5) - abs(k)) / deviation) - mp.ncdf((mp.mpf(-0.5) - abs(k)) / deviation)


def discrete_gaussian(k, deviation):
    return mp.exp(-(k**2) / (2 * mp.mpf(deviation) ** 2))


def gaussian_weights(shape, deviation, reach):
    half = [shape(k, deviation) for k in range(reach + 1)]
    total = half[0] + 2 * sum(half[1:])
    side = [int(mp.ceil(2**64 * x / total)) + 1 for x in half[1:]]
    return [*reversed(side), 2**64 - 2 * sum(side), *side]


def balanced_plan(bits):
    """(levels, bits between them, the variance of one table) of a discrete Gaussian with sigma = 2^bits."""
    levels = 1
    while bits - (levels - 1) * ((bits - 1) // levels) > 9:
        levels += 1
    digit = (bits - 1) // levels if levels > 1 else 0
    return levels, digit, Fraction(4**bits, sum(4 ** (digit * i) for i in range(levels)))


def balanced_weights(variance, reach):
    """Weights of k = -reach .. reach: rounded up in the tails, at the cost of |k| <= one deviation."""
    step, decay = (int(mp.floor(2**256 * exp(-power / variance))) for power in (Fraction(1, 2), 1))
    shapes = [2**256]
    while len(shapes) <= reach:
        shapes.append(shapes[-1] * step >> 256)
        step = step * decay >> 256
    inner, total = math.ceil(math.sqrt(variance)), shapes[0] + 2 * sum(shapes[1:])
    outer = [max(1, -(-(shape << 64) // total)) for shape in shapes[inner + 1 :]]
    room, wanted = 2**64 - 2 * sum(outer), shapes[0] + 2 * sum(shapes[1 : inner + 1])
    side = [shape * room // wanted for shape in shapes[1 : inner + 1]] + outer
    return [*reversed(side), 2**64 - 2 * sum(side), *side]


# The vectors


def test_every_group_of_vectors_is_one_that_this_file_checks():
    assert VECTORS["version"] == 1
    stream = {"version", "key_hex", "client", "round", "purpose", "tensor"}
    assert VECTORS.keys() - stream == {
        "keystream", "two_point", "sign", "laplace", "gaussian", "bits", "label",
    }  # fmt: skip


def test_keystream_words_follow_from_the_counter_blocks():
    assert list(words(0, 12)) == VECTORS["keystream"]["words_from_0"]
    assert list(words(4000, 4)) == VECTORS["keystream"]["words_from_4000"]


@pytest.mark.parametrize("row", rows("two_point", "epsilon"))
def test_two_point_bits_follow_from_epsilon_and_the_words(row):
    t_min = least_threshold(row["epsilon"])
    scale = f32(2**31 - t_min)
    if int(scale) > 2**31 - t_min:
        scale = np.nextafter(scale, f32(0))
    thresholds = [int(f32(z * scale)) for z in normalised(row["values"], row["centre"], row["radius"])]
    assert t_min == row["t_min"]
    assert thresholds == row["t"]
    bits = [int32(word) < t for word, t in zip(words(0, len(thresholds)), thresholds, strict=True)]
    assert encode_bits(bits) == row["report_hex"]


@pytest.mark.parametrize("row", rows("sign", "what"))
def test_sign_tables_and_bits_follow_from_the_link(row):
    above = {
        "gaussian, ratio 0.5": lambda: gaussian_link(0.5),
        "response, epsilon 1": lambda: [2**31 - least_threshold(1.0)] * 4096,
    }
    table = sign_table(above[row["what"]]())
    assert [table[0], table[-1]] == row["table_ends"]
    assert sha256(table, "i") == row["table_sha256"]
    cells = [4096 + int(f32(z * f32(4096.5))) for z in normalised(row["values"])]
    bits = [int32(word) < table[cell] for word, cell in zip(words(0, len(cells)), cells, strict=True)]
    assert encode_bits(bits) == row["report_hex"]


@pytest.mark.parametrize("row", rows("laplace", "epsilon"))
def test_laplace_digits_outputs_and_bytes_follow_from_the_rate(row):
    rate, steps = Fraction(*map(int, row["rate"])), row["steps"]
    digits = laplace_digits(row["epsilon"], steps, rate)
    assert digits == [(digit["shift"], digit["size"]) for digit in row["digits"]]
    weights = [laplace_weights(rate, shift, size, top=i == 0) for i, (shift, size) in enumerate(digits)]
    assert [sha256(w, "Q") for w in weights] == [digit["weights_sha256"] for digit in row["digits"]]
    negative = max(1, int(mp.floor(2**32 / (exp(rate) + 1) + 0.5)))
    assert negative == row["negative"]
    shift, size = digits[0]
    limit = (size - 1) * 2**shift - steps
    assert limit == row["limit"]

    tables = [alias_table(w) for w in weights]
    output = []
    for j, v in enumerate(on_grid(row["values"], steps)):
        sign, *lower = lanes(j, 1 + len(digits))
        magnitude = sum(table(u) << shift for table, u, (shift, _) in zip(tables, lower, digits, strict=True))
        noise = -magnitude - 1 if sign % 2**32 < negative else magnitude
        output.append(min(max(v + noise, -limit), limit))
    assert output == row["output"]
    assert encode_numbers(output, -limit, limit) == row["report_hex"]


@pytest.mark.process
@pytest.mark.parametrize("row", rows("gaussian", "sigma"))
def test_gaussian_weights_outputs_and_bytes_follow_from_sigma(row):
    steps, levels, deviation, reach = gaussian_plan(row["sigma"], row["radius"])
    limit = steps + reach * sum(32**i for i in range(levels))
    assert (steps, levels, reach, limit) == (row["steps"], row["levels"], row["offset"], row["limit"])
    weights = gaussian_weights(rounded_gaussian if levels == 1 else discrete_gaussian, deviation, reach)
    assert sha256(weights, "Q") == row["weights_sha256"]

    table = alias_table(weights)
    output = [
        v + sum((table(u) - reach) * 32**level for level, u in enumerate(lanes(j, levels)))
        for j, v in enumerate(on_grid(row["values"], steps, row["radius"]))
    ]
    assert output == row["output"]
    assert encode_numbers(output, -limit, limit) == row["report_hex"]


@pytest.mark.parametrize("row", [pytest.param(row, id=f"2^{row['bits']}") for row in WEB["whole_noise"]])
def test_discrete_gaussian_weights_and_draws_follow_from_sigma(row):
    levels, digit, variance = balanced_plan(row["bits"])
    reach = math.ceil(28.1 * math.sqrt(variance)) + 1
    assert (levels, digit, reach) == (row["levels"], row["digit"], row["offset"])
    weights = balanced_weights(variance, reach)
    assert sha256(weights, "Q") == row["sha256"]
    table = alias_table(weights)
    draws = [
        sum((table(u) - reach) << (digit * i) for i, u in enumerate(lanes(j, levels, WEB_STREAM))) for j in range(8)
    ]
    assert draws == row["draws"]


def test_reported_bits_follow_from_thresholds_rounded_towards_each_other():
    row = VECTORS["bits"]
    a, q = row["a"], 1 / (1 + row["a"] * exp(Fraction(1, 20)))
    up, down = math.ceil, math.floor
    assert row["ones"] == [down(Fraction(a * 2**32, 1 + a)), up(Fraction(2**32, 1 + a**3))]
    assert row["zeros"] == [int(mp.ceil(q * 2**32)), int(mp.floor(q * 2**32))]
    thresholds = [row["ones" if bit else "zeros"][i % 2] for i, bit in enumerate(row["bits"])]
    bits = [word < t for word, t in zip(words(0, len(thresholds)), thresholds, strict=True)]
    assert encode_bits(bits) == row["report_hex"]


def test_reported_labels_follow_from_epsilon_and_the_words():
    row = VECTORS["label"]
    k = row["size"]
    others = exp(row["epsilon"]) * (2**32 // (k - 1))
    keep = int(mp.floor(2**32 * others / (2**32 + others)))
    assert keep == row["keep"]
    output = []
    for j, label in enumerate(row["labels"]):
        first, second = words(2 * j, 2)
        output.append(label if first < keep else (label + 1 + (second * (k - 1) >> 32)) % k)
    assert output == row["output"]
    assert encode_numbers(output, 0, k - 1) == row["report_hex"]
