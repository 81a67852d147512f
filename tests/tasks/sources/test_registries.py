"""The registries' clients, and what using one does to the process."""

import subprocess
import sys
from pathlib import Path

CODE = """
import os
os.environ["PIP_NO_INDEX"] = "1"
from pathlib import Path
from clippedgossip.errors import DataError
from clippedgossip.tasks.sources.catalog import Package
from clippedgossip.tasks.sources.registries import retrieve
try:
    retrieve(Package(client="pip", name="thing", version="1"), Path("."), lambda *_: None)
except DataError as error:
    assert "No matching distribution" in str(error), error
else:
    raise AssertionError("nothing has this name")
import setuptools  # as torch.compile does
"""


def test_setuptools_can_be_imported_after_pip_was_used(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", CODE], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
