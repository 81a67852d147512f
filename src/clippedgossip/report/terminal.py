"""What a terminal shows: tables of 80 columns, claims, progress bars. In place of a bar, a pipe gets a line
now and then, a notebook a line that is written over."""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import zip_longest
from textwrap import TextWrapper, fill, wrap
from typing import TYPE_CHECKING, Any

from clippedgossip.errors import harmless
from clippedgossip.records import ACCURACY
from clippedgossip.report.page import Table

if TYPE_CHECKING:
    from rich.text import Text

    from clippedgossip.report.claims import Claim, Claims

WIDTH = 80
FIRST_LINE = 10.0  # seconds until the first line of progress where there is no terminal
LEAST = 14  # columns for the first cell of a row, where it must be folded
GAP = "  "
_GLUE = "\N{NO-BREAK SPACE}"
_GLUED = re.compile(r"(?<=\d) (?=%|×|points?\b)| (?=[=≤≥])|(?<=[=≤≥]) ")
"""Between a number and its unit, or its sign of equality: no line breaks there."""


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar. Gives a function to call with a label, how much is done and how much there is."""
    if _in_notebook():
        yield from _notebook_line()
        return
    if not sys.stderr.isatty():
        yield now_and_then()
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("", total=None)

        def show(label: str, done: int, total: int) -> None:
            bars.update(task, description=label, completed=done, total=total)

        yield show


def now_and_then() -> Callable[[str, int, int], None]:
    """A line on stderr after ten seconds, then after ever longer times, ten minutes at most."""
    begun: int | None = None
    warm: tuple[float, int] | None = None  # when and where the first rounds were done, which take longer
    due, wait = time.monotonic() + FIRST_LINE, FIRST_LINE

    def show(label: str, done: int, total: int) -> None:
        nonlocal due, wait, begun, warm
        now, begun = time.monotonic(), done if begun is None else begun
        if warm is None and done > begun:
            warm = now, done
        if now < due:
            return
        wait = min(2 * wait, 600.0)
        due = now + wait
        rest = ""
        if warm is not None and done > warm[1]:
            rest = f", {_duration((now - warm[0]) * (total - done) / (done - warm[1]))} left"
        print(f"{done}/{total} {label}{rest}", file=sys.stderr, flush=True)

    return show


def _duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


@contextmanager
def download_progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar for each file, in bytes. Gives a function to call with its name, bytes done and bytes in all."""
    if not sys.stderr.isatty():
        yield lambda label, done, total: None
        return
    from rich import filesize, progress
    from rich.console import Console

    ends = (progress.TransferSpeedColumn(), progress.TimeElapsedColumn())
    columns = ("{task.description}", progress.BarColumn(bar_width=None), "{task.fields[size]}", *ends)
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, progress.TaskID] = {}

        def show(label: str, done: int, total: int | None) -> None:
            size = " of ".join(filesize.decimal(count) for count in (done, total) if count)
            if label not in tasks:
                tasks[label] = bars.add_task(label, total=total, size=size)
            bars.update(tasks[label], completed=done, total=total, size=size)

        yield show


def status(text: str) -> AbstractContextManager[object]:
    """A word on what takes a while."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(text)


def table(content: Table) -> str:
    """At most 80 columns wide. Columns that do not fit stand in a further table below."""
    caption = "\n".join(fill(line, WIDTH) for line in harmless(content.caption).splitlines())
    if not content.rows and caption:
        return caption
    rows = [[harmless(cell).split("\n") for cell in row] for row in content.texts]
    names = [harmless(name) for name in content.header]
    header = [name.split("\n") if "\n" in name else name.split(" ") for name in names]
    header[0] = names[:1]
    columns = list(zip(header, *rows, strict=True))
    widths = [max(len(line) for cell in column for line in cell) for column in columns]
    left = WIDTH - sum(len(GAP) + width for width in widths[1:])
    groups = [list(range(1, len(widths)))]
    if left >= min(LEAST, widths[0]):
        widths[0] = min(widths[0], left)
    else:
        groups = list(_fitting(widths, content.keys))
    parts = [caption] if caption else []
    for group in groups:
        shown = [0, *group]
        part = list(_row([header[i] for i in shown], [widths[i] for i in shown], bottom=True))
        part.append(GAP.join("─" * widths[i] for i in shown))
        for number, row in enumerate(rows):
            if content.headings.get(number):
                part += ["", harmless(content.headings[number])]
            first = [piece for line in row[0] for piece in wrap(line, widths[0])]
            part += _row([first, *(row[i] for i in group)], [widths[i] for i in shown])
        parts.append("\n".join(part))
    return "\n\n".join(parts)


VERDICTS = {"holds": "green", "does not hold": "bold red", "undecided": "yellow"}


def claims_table(content: "Claims") -> "Text":
    """One row for each claim with its note below it, the verdict in colour; the tally at the end."""
    from rich.text import Text

    cells = [(claim.paper or "–", claim.seen, claim.verdict) for claim in content.claims]
    header = ("Claim", "Paper", "Here", "Verdict")
    widths = [max(map(len, column)) for column in zip(header[1:], *cells, strict=True)]
    widths = [WIDTH - sum(len(GAP) + width for width in widths), *widths]
    text = Text()
    for line in (*_row([[name] for name in header], widths, last_left=True), "─" * WIDTH):
        text.append(f"{line}\n")
    for claim, (paper, seen, verdict) in zip(content.claims, cells, strict=True):
        rows = _row([_wrapped(claim, widths[0]), [paper], [seen], [verdict]], widths, last_left=True)
        first, *rest = (line.replace(_GLUE, " ") for line in rows)
        text.append(first.removesuffix(verdict))
        text.append(verdict, VERDICTS.get(verdict, "dim"))
        text.append("".join(f"\n{line}" for line in rest) + "\n")
    return text.append(f"\n{content.tally}")


def show(*parts: Any) -> None:
    """Print each on lines of its own, with colours where there are some."""
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            """rich would end the program here, with exit code 1."""
            raise BrokenPipeError

    console = Plain(highlight=False, markup=False, soft_wrap=True)
    for part in parts:
        console.print(part)


@contextmanager
def readers_may_leave() -> Iterator[None]:
    """What follows is not printed if nobody reads it any more (`| head`), and the work goes on."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def watch_peers(rows: Callable[[], Mapping[str, Mapping[str, Any]]], alive: Callable[[], Any]) -> None:
    """The table of peers, four times a second, while some are alive."""
    from rich.live import Live
    from rich.text import Text

    with Live(Text(_peers_table(rows())), refresh_per_second=4, transient=True) as view:
        while alive():
            time.sleep(0.25)
            view.update(Text(_peers_table(rows())))


def show_peers(rows: Mapping[str, Mapping[str, Any]]) -> None:
    """The table of peers, once."""
    print(_peers_table(rows))
    for name, row in rows.items():
        for other in row.get("convicted") or ():
            print(harmless(f"{name} has a proof that {other} signed two models for one round"))


def _peers_table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """How each peer is doing, by its status."""
    named = {row["metric"] for row in rows.values() if row.get("metric")} or {ACCURACY}
    score = named.pop() if len(named) == 1 else "score"
    header = ("peer", "state", "round", score, "distance²", "links", "clipped", "missing", "rejected")
    cells = []
    for name, row in rows.items():
        links, used = row.get("links") or {}, sum((row.get("messages") or {}).values())
        state = "done" if row.get("finished") else "up" if row.get("running") else "stopped"
        state = row.get("misbehave") or ("starting" if row.get("starting") else state)
        values = (
            f"{row['round']}/{row['rounds']}" if {"round", "rounds"} <= row.keys() else None,
            score_text(row.get("metric"), row.get("score")),
            row.get("neighbour_distance"),
            f"{sum(links.values())}/{len(links)}" if links else None,
            percent(row["clipped"] / used) if used and row.get("clipped") is not None else None,
            row.get("missing"),
            row.get("rejected"),
        )
        cells.append([name, state, *map(short, values)])
    return table(Table(header, cells, keys=2))


def score_text(metric: object, score: object) -> str:
    """A metric's value: accuracy in percent, others as they are; a dash for what is no number."""
    return percent(score) if metric == ACCURACY or not isinstance(score, int | float) else f"{score:.4g}"


def percent(share: object) -> str:
    """A share in percent; a dash for what is no number."""
    return f"{share:.1%}" if isinstance(share, int | float) else "–"


def short(value: object) -> str:
    """A number with three digits; a dash for None."""
    if isinstance(value, float):
        return f"{value:.3f}" if not value or 0.01 <= abs(value) < 1e6 else f"{value:.3g}"
    return "–" if value is None else str(value)


def _row(
    cells: Sequence[Sequence[str]], widths: Sequence[int], *, bottom: bool = False, last_left: bool = False
) -> Iterator[str]:
    """The lines of one row: the first cell on the left, the others on the right of their columns."""
    height = max(map(len, cells))
    padded = [[*[""] * (height - len(cell)), *cell] if bottom else cell for cell in cells]
    for parts in zip_longest(*padded, fillvalue=""):
        aligned = [
            part.ljust(width) if place == 0 or (last_left and place == len(widths) - 1) else part.rjust(width)
            for place, (part, width) in enumerate(zip(parts, widths, strict=True))
        ]
        yield GAP.join(aligned).rstrip()


def _fitting(widths: Sequence[int], keys: int) -> Iterator[list[int]]:
    """Columns after the first, as many side by side as there is room for; the other keys in every part."""
    again = list(range(1, keys))
    room = WIDTH - widths[0] - sum(len(GAP) + widths[place] for place in again)
    start, used = keys, 0
    for place in range(keys, len(widths)):
        need = len(GAP) + widths[place]
        if place > start and used + need > room:
            yield [*again, *range(start, place)]
            start, used = place, 0
        used += need
    yield [*again, *range(start, len(widths))]


def _wrapped(claim: "Claim", width: int) -> list[str]:
    """The claim, and its note indented."""
    lines = []
    for indent, text in (("", claim.text), ("  ", claim.note)):
        wrapper = TextWrapper(width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
        lines += wrapper.wrap(_GLUED.sub(_GLUE, text))
    return lines


def _in_notebook() -> bool:
    """Whether the code runs in a Jupyter kernel, which shows what is printed but is no terminal."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def _notebook_line() -> Iterator[Callable[[str, int, int], None]]:
    """One line that is written over, a few times a second at most, and is gone at the end."""
    last, width = -1.0, 0

    def show(label: str, done: int, total: int) -> None:
        nonlocal last, width
        if time.monotonic() - last > 0.2:
            text = f"{done}/{total} {label}"
            last, width = time.monotonic(), max(width, len(text))
            print(f"\r{text:<{width}}", end="", flush=True)

    try:
        yield show
    finally:
        print("\r" + " " * width, end="\r", flush=True)
