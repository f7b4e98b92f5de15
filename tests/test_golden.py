import json

from tests.golden.make import VECTORS, vectors


def test_the_golden_vectors_of_the_bit_layout_are_reproduced():
    assert json.loads(json.dumps(vectors())) == json.loads(VECTORS.read_text())
