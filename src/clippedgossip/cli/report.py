"""`clippedgossip report`: a page of finished, running or stopped runs."""

import json
from pathlib import Path
from typing import Annotated

import typer

from clippedgossip.errors import counted, tell


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders with runs below them.")],
    out: Annotated[Path, typer.Option(help="Where to write the page.")] = Path("report.html"),
    figures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write each figure as SVG, PDF and PNG, with its numbers."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Draw runs, of the simulator or of real peers, on one self-contained HTML page."""
    from clippedgossip.files import to_line
    from clippedgossip.report import write
    from clippedgossip.report.run_report import report as make_report
    from clippedgossip.report.summary import to_short_table
    from clippedgossip.report.terminal import status, table

    with status("drawing"):
        made = make_report(runs)
        write(out, made.html)
        if figures is not None:
            from clippedgossip.export import write_figures

            drawn = write_figures(runs, figures)
    for trouble in made.troubles:
        tell(trouble)
    if as_json:
        print(json.dumps(json.loads(to_line({"report": str(out), "rows": list(made.rows)})), indent=1))
    else:
        print(table(to_short_table(made.rows)))
        print(f"wrote {out}")
        if figures is not None:
            print(f"wrote {counted(len(drawn), 'file')} to {figures}")
