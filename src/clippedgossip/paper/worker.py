"""One of the processes of `work.run_all`: reads what to run from its input, and leaves with its parent."""

import json
import os
import sys

import torch

from clippedgossip.errors import UserError
from clippedgossip.runs.config import RunConfig
from clippedgossip.runs.fill import run_missing


def main() -> None:
    index, count = map(int, sys.argv[1].split("/"))
    request = json.load(sys.stdin)
    torch.set_num_threads(1)
    configs = [RunConfig.from_mapping({**raw, "device": request["device"]}) for raw in request["configs"]]
    start = index * len(configs) // count
    parent = os.getppid()

    def progress(label: str, done: int, total: int) -> None:
        if os.getppid() != parent:
            os._exit(1)

    try:
        run_missing([*configs[start:], *configs[:start]], request["root"], progress=progress)
    except UserError as error:
        sys.exit("; ".join(str(error).splitlines()))  # the last line is what is passed on


if __name__ == "__main__":
    main()
