"""Run the tests as other machines would: older CPUs, other kernels, more threads, another order, busy cores.

    tools/test_machines.py                          every machine, the whole suite (about five minutes each)
    tools/test_machines.py avx2 busy -- tests/audit -n 0     some machines; the rest goes to pytest
    tools/test_machines.py shuffled --seed 7        one order again

A CPU can be imitated only by one that has all of its instructions: AVX-512 not on an older CPU.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MACHINES: dict[str, dict[str, str]] = {
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
    },
    "oldest": {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "MKL_CBWR": "COMPATIBLE",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "OPENBLAS_CORETYPE": "Nehalem",
    },
    "aten-default": {"ATEN_CPU_CAPABILITY": "default"},
    "blas-haswell": {"OPENBLAS_CORETYPE": "Haswell"},
    "one-thread": dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "two-threads": dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "2"),
    "shuffled": {},
    "busy": {},
}
"""The environment of each. The last two differ in something else."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("machines", nargs="*", metavar="machine", help=f"of {', '.join(MACHINES)}")
    parser.add_argument("--orders", type=int, default=3, help="how many orders `shuffled` tries")
    parser.add_argument("--seed", type=int, help="the one order that `shuffled` tries")
    own, pytest = split(sys.argv[1:])
    chosen = parser.parse_args(own)
    if unknown := set(chosen.machines) - MACHINES.keys():
        parser.error(f"unknown machine {min(unknown)!r}; known: {', '.join(MACHINES)}")
    draw = random.SystemRandom()
    seeds = (
        [chosen.seed] if chosen.seed is not None else [draw.randrange(10**6) for _ in range(chosen.orders)]
    )
    right = True
    for machine in chosen.machines or MACHINES:
        if machine == "shuffled":
            for seed in seeds:
                right &= test(f"shuffled --seed {seed}", {}, ["-p", "shuffled", f"--order={seed}", *pytest])
        elif machine == "busy":
            with busy_cores():
                right &= test(machine, {}, pytest)
        else:
            right &= test(machine, MACHINES[machine], pytest)
    return 0 if right else 1


def split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Before and after `--`."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


def test(label: str, environment: dict[str, str], arguments: list[str]) -> bool:
    """Print how it ended and what failed; whether all is well."""
    print(f"{label:24}", end=" ", flush=True)
    command = [sys.executable, "-m", "pytest", "-n", "2", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
    path = os.pathsep.join(filter(None, [str(ROOT / "tools"), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        env=os.environ | environment | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = done.stdout.splitlines() or [f"pytest ended with {done.returncode} and said nothing"]
    print(lines[-1])
    for line in lines:
        if line.startswith(("FAILED", "ERROR")):
            print(f"  {line}")
    if done.returncode:
        with tempfile.NamedTemporaryFile("w", suffix=".log", delete=False) as log:
            log.write(done.stdout)
        print(f"  all that pytest said: {log.name}", flush=True)
    return done.returncode == 0


@contextmanager
def busy_cores() -> Iterator[None]:
    """Every core has other work, too."""
    spinning = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)
    ]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
