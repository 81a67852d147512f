"""Write the names that `--help` lists to `cli/catalogue.json`, so that showing them imports nothing heavy.

python tools/catalogue.py; a test says when it is time.
"""

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from clippedgossip.attacks import ATTACKS
from clippedgossip.graphs import GENERATORS, parameters
from clippedgossip.paper.base import EXPERIMENTS
from clippedgossip.rules import RULES

TRAINING = ("mozi", "label-flipping")
"""They need losses or labels, which `consensus` has not."""


def catalogue() -> dict[str, Any]:
    """Networks, rules and attacks as --help prints them; the names of figures."""
    return {
        "networks": list(networks()),
        "rules": list(options(RULES)),
        "attacks": list(options(ATTACKS)),
        "figures": list(EXPERIMENTS),
    }


def networks() -> Iterator[str]:
    for name in GENERATORS:
        line = f"  {name:<17}"
        for parameter in parameters(name).values():
            option = f"--{parameter.name.replace('_', '-')}"
            if parameter.type is not bool:
                option += f" {parameter.default}" if parameter.default is not None else " …"
            if len(line) + len(option) + 1 > 80:
                yield line.rstrip()
                line = " " * 19
            line += f"{option} "
        yield line.rstrip()


def options(registry: Mapping[str, type[Any]]) -> Iterator[str]:
    for name, kind in registry.items():
        if name not in TRAINING:
            fields = (
                field.name if field.default is dataclasses.MISSING else f"{field.name}={field.default}"
                for field in dataclasses.fields(kind)
            )
            yield f"  {name:<22} {' '.join(fields)}".rstrip()


if __name__ == "__main__":
    import clippedgossip.cli

    target = Path(clippedgossip.cli.__file__).with_name("catalogue.json")
    target.write_text(json.dumps(catalogue(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.exit(print(f"wrote {target}"))
