"""Kernels for GPUs are interpreted where there is no GPU: Triton wants to know that before it is loaded."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
