"""What must hold in every process that runs tests, before anything else is loaded."""

from __future__ import annotations

import os
import signal

import torch
from hypothesis import settings

# Hypothesis draws the same examples on every run, and slow machines do not fail tests.
settings.register_profile("fixed", deadline=None, derandomize=True)
settings.load_profile("fixed")

# Kernels for GPUs are interpreted where there is no GPU: Triton wants to know that before it is loaded.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Started in the background of a script, a process ignores Ctrl-C, and so would all that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
