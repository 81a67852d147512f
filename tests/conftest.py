"""One thread for each test process, so that two on two cores do not fight, unless the environment says
otherwise; signals as a terminal leaves them; Hypothesis draws alike."""

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

_EMPTY = Path(tempfile.mkdtemp(prefix="compiled-"))
atexit.register(shutil.rmtree, _EMPTY, ignore_errors=True)

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):  # no compiled code of an older version
    os.environ[name] = str(_EMPTY / name)

for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if (
        signal.getsignal(number) is signal.SIG_IGN
    ):  # by nohup or `&`; programs that tests start would inherit it
        signal.signal(number, usual)

settings.register_profile("alike", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, print_blob=True)  # HYPOTHESIS_PROFILE=explore make test
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "alike"))


def pytest_configure() -> None:
    import torch  # after the environment is set: libraries look at it once

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Test processes share the tests by name: a name that has an address in it is another in each of them."""
    if named := [item.nodeid for item in items if " at 0x" in item.nodeid]:
        raise pytest.UsageError(f"give these tests `ids` of their own: {named}")
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a GPU that PyTorch can use"))


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For tests that compare records byte for byte."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
