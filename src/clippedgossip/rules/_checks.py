"""Bounds of rule parameters, checked once, when the rule is made."""

from numbers import Integral

from clippedgossip.errors import RuleError


def at_least(name: str, value: float, bound: float) -> None:
    if not value >= bound:
        raise RuleError(f"{name} is {value}; it must be at least {bound}")


def whole(name: str, value: int, bound: int) -> None:
    """A number of things: what is not whole would be rounded one way here, another there."""
    if not isinstance(value, Integral) or value < bound:
        raise RuleError(f"{name} is {value!r}; it must be a whole number, at least {bound}")


def fraction(name: str, value: float, *, below: float = 1.0) -> None:
    if not 0 <= value < below:
        raise RuleError(f"{name} is {value}; it must be at least 0 and below {below:g}")


def enough_neighbors(rule: str, faulty: int, neighbors: int, needed: int, most: int) -> None:
    if neighbors < needed:
        raise RuleError(
            f"{rule} with {faulty} faulty needs at least {needed} neighbours, a node has {neighbors}; "
            + (f"lower it to at most {most} or add edges" if most >= 0 else "add edges")
        )
