"""One thread a process, so that two test processes on two cores do not fight; Hypothesis draws the same each time."""

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # before the libraries look
    os.environ[name] = "1"

import torch
from hypothesis import settings

torch.set_num_threads(1)

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, print_blob=True)  # HYPOTHESIS_PROFILE=explore make test
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
