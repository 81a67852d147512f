"""An attack from text or a config's table."""

from collections.abc import Mapping

from clippedgossip.attacks.base import Attack
from clippedgossip.attacks.registry import ATTACKS
from clippedgossip.decode import Maker
from clippedgossip.errors import AttackError


def attack_from(name: str, values: Mapping[str, object]) -> Attack:
    """`attack_from("tuned", {"attack": "dissensus", "steps": "5"})`; numbers may be text."""
    attack: Attack = Maker({Attack: ATTACKS}, AttackError).make(Attack, name, values)
    return attack
