"""Where every shipped part is found, by the name that recipes use. Nothing is imported here: names cost nothing."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_MECHANISMS, _LEARNING = "sordino.mechanisms", "sordino.learning"
_METHODS, _CHANNELS, _AUDITS = "sordino.methods", "sordino.channels", "sordino.audits"

#: the shipped parts of every kind by the name that recipes use, in the order in which they are listed
SHIPPED: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "mechanism": {
            "none": f"{_MECHANISMS}.plain:NoPrivacy",
            "clip-only": f"{_MECHANISMS}.plain:ClipOnly",
            "two-point": f"{_MECHANISMS}.two_point:TwoPoint",
            "laplace": f"{_MECHANISMS}.laplace:Laplace",
            "gaussian": f"{_MECHANISMS}.gaussian:Gaussian",
            "sign": f"{_MECHANISMS}.sign:RandomizedSign",
            "exponential": f"{_MECHANISMS}.exponential:Exponential",
            "piecewise": f"{_MECHANISMS}.piecewise:Piecewise",
            "privunit": f"{_MECHANISMS}.privunit:PrivUnitG",
        },
        "randomizer": {  # of records and labels: recipes name those of records by the tables below
            "bits": f"{_MECHANISMS}.bits:BitRandomizer",
            "label": f"{_MECHANISMS}.label:RandomizedLabel",
        },
        "record mechanism": {
            "theorem-2": f"{_MECHANISMS}.record_tables:Theorem2",
            "theorem-1": f"{_MECHANISMS}.record_tables:Theorem1",
            "rappor": f"{_MECHANISMS}.record_tables:Rappor",
            "optimised": f"{_MECHANISMS}.record_tables:Optimised",
            "record-privunit": f"{_MECHANISMS}.record_tables:RecordPrivUnit",
            "none": f"{_MECHANISMS}.record_tables:PlainRecords",
        },
        "method": {
            "fedavg": f"{_METHODS}.fedavg:FedAvg",
            "silo-dp": f"{_METHODS}.silo_dp:SiloDp",
            "ldp-fed": f"{_METHODS}.truex_ldp_fed:LdpFed",
            "ldp-fl": f"{_METHODS}.sun_ldp_fl:LdpFl",
            "central-dp": f"{_METHODS}.central_dp:CentralDp",
            "local-only": f"{_METHODS}.local_only:LocalOnly",
            "hybrid-one": f"{_METHODS}.hybrid_one:HybridOne",
            "private-head": f"{_METHODS}.private_head:PrivateHead",
            "personalized": f"{_METHODS}.wu_personalized:Personalized",
            "webfed": f"{_METHODS}.lian_webfed:WebFed",
            "ldpfl": f"{_METHODS}.chamikara_ldpfl:Ldpfl",
        },
        "selection": {
            "all": f"{_METHODS}.selection:SelectAll",
            "count": f"{_METHODS}.selection:SelectCount",
            "fraction": f"{_METHODS}.selection:SelectFraction",
            "probability": f"{_METHODS}.selection:SelectProbability",
        },
        "scope": {
            "proportional": f"{_METHODS}.truex_ldp_fed:ScopeProportional",
            "layers": f"{_METHODS}.truex_ldp_fed:ScopeLayers",
            "all": f"{_METHODS}.scopes:ScopeAll",
        },
        "range": {
            "fixed": f"{_MECHANISMS}.spec:FixedRange",
            "adaptive": f"{_METHODS}.sun_ldp_fl:AdaptiveRange",
        },
        "channel": {
            "direct": f"{_CHANNELS}.direct:Direct",
            "relay": f"{_CHANNELS}.relay:Relay",
            "shuffled": f"{_CHANNELS}.shuffle:ShuffledChannel",
            "shuffler": f"{_CHANNELS}.shuffle:ShufflerChannel",
            "summed": f"{_CHANNELS}.secure_sum:Summed",
        },
        "aggregation": {
            "mean": f"{_METHODS}.aggregation:Mean",
            "samples": f"{_METHODS}.aggregation:BySamples",
            "noisy-samples": f"{_METHODS}.aggregation:NoisySamples",
            "budget": f"{_METHODS}.aggregation:ByBudget",
            "inverse-variance": f"{_METHODS}.aggregation:InverseVariance",
            "inverse-deviation": f"{_METHODS}.aggregation:InverseDeviation",
            "selection": f"{_METHODS}.aggregation:SelectionByBudget",
            "sign": f"{_METHODS}.aggregation:SignAggregation",
            "trimmed-mean": f"{_METHODS}.robust:TrimmedMean",
            "median": f"{_METHODS}.robust:Median",
            "norm-filter": f"{_METHODS}.robust:NormFilter",
            "agreement": f"{_METHODS}.robust:Agreement",
        },
        "stopping rule": {
            "target": f"{_METHODS}.stopping_rules:TargetAccuracy",
            "score": f"{_METHODS}.stopping_rules:TargetScore",
            "patience": f"{_METHODS}.stopping_rules:Patience",
        },
        "extractor": {
            "trained": f"{_METHODS}.extractor_tables:TrainedExtractorSpec",
            "random": f"{_METHODS}.extractor_tables:RandomExtractorSpec",
            "plain": f"{_METHODS}.extractor_tables:PlainExtractorSpec",
            "oriented": f"{_METHODS}.extractor_tables:OrientedExtractorSpec",
            "scattering": f"{_METHODS}.extractor_tables:ScatteringExtractorSpec",
            "network": f"{_METHODS}.extractor_tables:NetworkExtractorSpec",
            "imagenet": f"{_METHODS}.extractor_tables:ImageNetExtractorSpec",
        },
        "split": {
            "iid": f"{_LEARNING}.splits:IidSplit",
            "sizes": f"{_LEARNING}.splits:SizesSplit",
            "dirichlet": f"{_LEARNING}.splits:DirichletSplit",
            "shards": f"{_LEARNING}.splits:ShardsSplit",
            "files": f"{_LEARNING}.splits:FilesSplit",
            "column": f"{_LEARNING}.splits:ColumnSplit",
        },
        "column": {
            "number": f"{_LEARNING}.columns:NumberColumn",
            "category": f"{_LEARNING}.columns:CategoryColumn",
            "words": f"{_LEARNING}.columns:WordsColumn",
            "tokens": f"{_LEARNING}.columns:TokensColumn",
        },
        "metric": {
            "accuracy": f"{_LEARNING}.metrics:Accuracy",
            "balanced-accuracy": f"{_LEARNING}.metrics:BalancedAccuracy",
            "f1": f"{_LEARNING}.metrics:F1",
            "roc-auc": f"{_LEARNING}.metrics:RocAuc",
            "average-precision": f"{_LEARNING}.metrics:AveragePrecision",
            "log-loss": f"{_LEARNING}.metrics:LogLoss",
            "calibration": f"{_LEARNING}.metrics:Calibration",
            "mae": f"{_LEARNING}.metrics:MeanAbsoluteError",
            "rmse": f"{_LEARNING}.metrics:RootMeanSquaredError",
            "r2": f"{_LEARNING}.metrics:R2",
        },
        "loss": {
            "cross-entropy": f"{_LEARNING}.losses:CrossEntropy",
            "binary-cross-entropy": f"{_LEARNING}.losses:BinaryCrossEntropy",
            "mse": f"{_LEARNING}.losses:SquaredError",
            "mae": f"{_LEARNING}.losses:AbsoluteError",
            "huber": f"{_LEARNING}.losses:Huber",
        },
        "optimizer": {
            "sgd": f"{_LEARNING}.training_tables:SgdSpec",
            "adam": f"{_LEARNING}.training_tables:AdamSpec",
            "rmsprop": f"{_LEARNING}.training_tables:RmsPropSpec",
        },
        "attack": {
            "reconstruction": f"{_AUDITS}.reconstruction:Reconstruction",
            "membership": f"{_AUDITS}.membership:MembershipInference",
            "labels": f"{_AUDITS}.label_inference:LabelInference",
            "linking": f"{_AUDITS}.linking:Linking",
        },
    }
)

#: the shipped models, whose names no package can take over
MODELS = (
    "logistic", "logistic-ovr", "mlp", "lenet", "cnn-mnist", "cnn-wide", "ldp-fed", "vgg-small", "ldpfl-mnist",
    "ldpfl-cifar", "ldpfl-dense",
)  # fmt: skip
#: the shipped functions that a recipe may name as its data source
SOURCES = (f"{_LEARNING}.unit_interval:unit_interval",)

__all__ = ["MODELS", "SHIPPED", "SOURCES"]
