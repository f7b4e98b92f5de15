"""Small recipes, one of each method, for audits of whole runs."""

from typing import Any

from sordino.recipe import Recipe
from tests.engine.tiny import TINY, TWO_POINT

SGD: dict[str, Any] = {"optimizer": {"name": "sgd", "lr": 0.5}}
SILO: dict[str, Any] = {
    "training": SGD,
    "method": {"name": "silo-dp", "clip": 1.0, "noise_multiplier": 1.5, "sampling_rate": 0.5, "steps": 2},
}
#: One noisy sum over all records of each of forty silos: Gaussian differential privacy with mu = 0.75.
ONE_STEP: dict[str, Any] = {
    "training": SGD,
    "split": {"kind": "iid", "clients": 40},
    "method": {"name": "silo-dp", "clip": 1.0, "noise_multiplier": 4 / 3, "sampling_rate": 1.0, "steps": 1},
    "rounds": {"count": 1},
}
LDPFL: dict[str, Any] = {
    "split": {"kind": "iid", "clients": 2},
    "model": {"name": "ldpfl-dense", "options": {"hidden": [8]}},
    "clients": {"epsilon": 0.5},
    "method": {"name": "ldpfl", "extractor": {"kind": "oriented", "orientations": 2, "cells": 4}},
}
HEAD: dict[str, Any] = {
    "training": {},
    "split": {"kind": "iid", "clients": 6},
    "clients": {"epsilon": 4.0},
    "method": {
        "name": "private-head",
        "extractor": {"kind": "scattering", "scales": 1, "angles": 2},
        "channel": {"kind": "summed", "threshold": 0.8, "masks": "deployed"},
    },
}
RECIPES: dict[str, dict[str, Any]] = {
    "none": {},
    "two-point": {**TWO_POINT, "clients.epsilon": [1.0, 1.0, 2.0, 3.0]},
    "gaussian": {
        "method.mechanism": {"name": "gaussian", "calibration": "analytic", "delta": 1e-5, "norm": "l2"},
        "method.range": {"kind": "fixed", "radius": 1.0},
        "clients.epsilon": 2.0,
    },
    "samples": {**TWO_POINT, "method.aggregation": {"kind": "samples"}},
    "summed": {**TWO_POINT, "method.channel": {"kind": "summed"}},
    "ldp-fl": {
        "model": {"name": "mlp", "options": {"hidden": [8]}},
        "clients": {"epsilon": 0.5},
        "method": {
            "name": "ldp-fl",
            "range": {"kind": "adaptive"},
            "channel": {"kind": "shuffled", "granularity": "parameter"},
        },
    },
    "ldp-fl, models": {
        "clients": {"epsilon": 0.5},
        "method": {
            "name": "ldp-fl",
            "range": {"kind": "fixed", "radius": 0.2},
            "channel": {"kind": "shuffled", "granularity": "model"},
        },
    },
    "ldp-fed": {
        "model": {"name": "mlp", "options": {"hidden": [8]}},
        "clients": {"epsilon": 1.0},
        "method": {
            "name": "ldp-fed",
            "range": {"kind": "fixed", "radius": 1.0},
            "selection": {"kind": "count", "k": 2},
        },
    },
    "personalized": {
        "split": {"kind": "iid", "clients": 3},
        "model": {"name": "logistic-ovr"},
        "clients": {"epsilon": [1.0, 1.0, 10.0]},
        "method": {
            "name": "personalized",
            "sampling": 0.8,
            "range": {"kind": "fixed", "radius": 200.0},
            "mechanism": {"name": "gaussian", "calibration": "eq4", "delta": 0.002, "sampling": 0.8, "rounds": 3},
        },
    },
    "webfed": {
        "training": {"steps": 1, "batch_size": 0, **SGD},
        "clients": {"epsilon": 3.0},
        "method": {
            "name": "webfed",
            "range": {"kind": "fixed", "radius": 1.0},
            "mechanism": {"name": "laplace", "records": 10},
            "aggregation": {"kind": "noisy-samples", "epsilon": 5.0, "limit": 64},
        },
        "rounds": {"count": 1},
    },
    "ldpfl": {**LDPFL, "rounds": {"count": 1}},
    "ldpfl, right": {
        **LDPFL,
        "model": {"name": "logistic"},
        "training": {"steps": 1, "batch_size": 0, "optimizer": {"name": "sgd", "lr": 1.0, "weight_decay": 1.0}},
        "clients": {"epsilon": 2.0},
        "method": {**LDPFL["method"], "mechanism": {"name": "record-privunit"}, "examined": "plain"},
        "rounds": {"count": 1},
    },
    "central-dp": {
        "method": {
            "name": "central-dp",
            "clip": 1.0,
            "noise_multiplier": 2.0,
            "selection": {"kind": "probability", "p": 0.5},
        },
    },
    "central-dp, median": {
        "method": {
            "name": "central-dp",
            "clip": "median",
            "noise_multiplier": 2.0,
            "selection": {"kind": "probability", "p": 0.5},
        },
    },
    "silo-dp": SILO,
    "silo-dp, adam": {
        "training": {"optimizer": {"name": "adam", "lr": 0.01}},
        "method": {**SILO["method"], "sampling_rate": 1.0},
        "rounds": {"count": 2},
    },
    "hybrid-one": {
        "training": SGD,
        "split": {"kind": "iid", "clients": 6},
        "method": {
            "name": "hybrid-one",
            "sampling_rate": 1.0,
            "noise_multiplier": 2.0,
            "channel": {"kind": "summed"},
        },
        "rounds": {"count": 2},
    },
    "private-head": HEAD,
    "private-head, alone": {**HEAD, "method": {**HEAD["method"], "channel": {"kind": "direct"}}},
    "private-head, clients": {**HEAD, "method": {**HEAD["method"], "protects": "client"}},
    "local-only": {"method": {"name": "local-only"}},
}  # fmt: skip


def small(name: str) -> Recipe:
    """The recipe of that name."""
    changes = {**RECIPES, "one step": ONE_STEP}[name]
    whole = {key: value for key, value in changes.items() if "." not in key}
    return Recipe.from_dict({**TINY, **whole}).with_({key: value for key, value in changes.items() if "." in key})
