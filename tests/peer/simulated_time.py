"""An event loop whose clock jumps to the next thing that is due: hours of waiting take milliseconds."""

import asyncio
from collections.abc import Callable
from typing import Any


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Nothing outside the loop can happen: no sockets, no threads."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        select = self._selector.select  # type: ignore[attr-defined]  # what the loop waits in

        def jump(timeout: float | None) -> Any:
            assert timeout is not None, "everything waits, and nothing is due"
            self._now += timeout
            return select(0)

        self._selector.select = jump  # type: ignore[attr-defined]  # asyncio's own selector

    def time(self) -> float:
        return self._now


async def at_once(function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
    """`asyncio.to_thread` without the thread."""
    return function(*arguments, **named)
