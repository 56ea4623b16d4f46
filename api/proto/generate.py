"""Makes what the .proto files stand for: `make proto`. Needs grpcio-tools 1.81.1, whose stubs load in protobuf 6 and 7.

`tickertape.v1` becomes Python modules. The protocols of others become descriptors, which `api/grpc/foreign.py` loads
into a pool of their own: as modules they would meet those of other libraries, and a process takes only one of either.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

__all__ = ["generate"]

HERE = Path(__file__).resolve().parent
_IMPORT = re.compile(r"^from tickertape\.v1 import", re.MULTILINE)


def generate(out: Path) -> list[Path]:
    """Writes all of it below `out`, laid out as here, and returns the paths from there."""
    own = sorted(path.relative_to(HERE) for path in (HERE / "tickertape").rglob("*.proto"))
    foreign = sorted(path.relative_to(HERE) for path in (HERE / "foreign").glob("*.proto"))
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch)
        includes = [f"-I{HERE}", f"-I{Path(grpc_tools.__file__).parent / '_proto'}"]
        _run(*includes, f"--python_out={made}", f"--pyi_out={made}", *map(str, own))
        _run(*includes, f"--grpc_python_out={made}", "tickertape/v1/token_stream.proto")
        for path in foreign:
            (made / "foreign").mkdir(exist_ok=True)
            _run(*includes, f"--descriptor_set_out={made / path.with_suffix('.binpb')}", str(path))
        found = sorted(path.relative_to(made) for path in made.rglob("*") if path.is_file())
        for path in found:
            data = (made / path).read_bytes()
            if path.suffix != ".binpb":
                data = _IMPORT.sub("from tickertape.api.proto.tickertape.v1 import", data.decode()).encode()
            (out / path).parent.mkdir(parents=True, exist_ok=True)
            (out / path).write_bytes(data)
    return found


def _run(*arguments: str) -> None:
    if status := protoc.main(["protoc", *arguments]):
        sys.exit(status)


if __name__ == "__main__":
    generate(HERE)
