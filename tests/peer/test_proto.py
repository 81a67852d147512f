"""The committed protobuf code is what the .proto says, made by the generator that serves most versions."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROTO = "clippedgossip/peer/wire.proto"
GENERATOR = "1.76.0"
"""Its code loads with protobuf 6.31.1 and everything newer (7.36 tried). A newer generator's does not."""


def _installed() -> str | None:
    try:
        return version("grpcio-tools")
    except PackageNotFoundError:
        return None


def test_the_constraints_name_the_generator() -> None:
    assert f"grpcio-tools=={GENERATOR}" in (ROOT / "constraints.txt").read_text().splitlines()


@pytest.mark.skipif(_installed() != GENERATOR, reason=f"grpcio-tools {GENERATOR} is not installed")
def test_generated_code_is_current(tmp_path: Path) -> None:
    from grpc_tools import protoc

    source = ROOT / "src"
    assert (
        protoc.main(["protoc", f"-I{source}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", PROTO])
        == 0
    )
    for suffix in (".py", ".pyi"):
        name = PROTO.replace(".proto", f"_pb2{suffix}")
        assert (tmp_path / name).read_text() == (source / name).read_text(), (
            f"{name} is stale; run: python -m grpc_tools.protoc -Isrc --python_out=src --pyi_out=src {PROTO}"
        )
