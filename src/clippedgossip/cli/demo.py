"""`clippedgossip demo`: the main results in under a minute."""

from pathlib import Path

from clippedgossip.cli.reproduce import Json, Out, run


def demo(out: Out = Path("out"), as_json: Json = False) -> None:
    """Train on a dumbbell and on a ring with many Byzantine nodes. See which rules learn and which fail."""
    from clippedgossip.paper.base import Options
    from clippedgossip.paper.demo import Demo

    run([Demo()], Options(seeds=1, device="cpu", out=out), as_json=as_json)
