"""The committed protobuf code is what the .proto says."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROTO = "clippedgossip/peer/wire.proto"


@pytest.mark.skipif(find_spec("grpc_tools") is None, reason="grpcio-tools is not installed")
def test_generated_code_is_current(tmp_path: Path) -> None:
    from grpc_tools import protoc

    source = ROOT / "src"
    assert (
        protoc.main(["protoc", f"-I{source}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", PROTO])
        == 0
    )
    for suffix in (".py", ".pyi"):
        name = PROTO.replace(".proto", f"_pb2{suffix}")
        assert _timeless(tmp_path / name) == _timeless(source / name), (
            f"{name} is stale; run: python -m grpc_tools.protoc -Isrc --python_out=src --pyi_out=src {PROTO}"
        )


def _timeless(path: Path) -> str:
    """The text without the compiler's own version, which may differ from machine to machine."""
    text = re.sub(r"# Protobuf Python Version: .*", "", path.read_text())
    return re.sub(r"PUBLIC,\s+\d+,\s+\d+,\s+\d+", "PUBLIC", text)
