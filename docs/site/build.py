"""Build the site: copy the documents, make the pages that come from the program, call Sphinx. `make docs` runs this.

The layout of the copy is that of the repository, so every link between documents works as it does there. The README
becomes the front page. The parts of the site and the order of their pages are those of `docs/README.md`.
"""

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import cards
import reference

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)\s]+?)\)")
FILES = {
    "examples": "`clippedgossip examples` lists them; with a name, it copies one.",
    "deploy": "Files for a network that lasts; [running it for a month](../running.md) explains them.",
}
"""Folders of which the site shows every file."""
PICTURE = re.compile(r"<!-- picture: (rule|attack) (\S+) -->")
GENERATED = (
    "docs/rules/index",
    "docs/attacks/index",
    *(f"docs/reference/{name}" for name in ("python/index", "commands", "config", "records", *FILES)),
    "docs/README",
)
BESIDE = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")


def stage(source: Path) -> None:
    """Fill the folder that Sphinx reads."""
    shutil.rmtree(source, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "site")
    for name in ("docs", *FILES):
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in BESIDE:
        shutil.copy(ROOT / name, source / name)
    reference.write(source / "docs" / "reference")
    cards.write(source / "docs")
    for name, about in FILES.items():
        _write_files(source, name, about)
    for page in source.rglob("*.md"):
        _adapt(page, source)
    front = (source / "README.md").read_text()
    (source / "README.md").unlink()
    (source / "index.md").write_text(front + _contents((ROOT / "docs" / "README.md").read_text()))


def _adapt(page: Path, source: Path) -> None:
    text = page.read_text()
    if not re.match(r"# |---", text):  # a table that a benchmark wrote
        text = f"# {page.stem.capitalize()}\n\n{text}"
    text = PICTURE.sub(lambda said: cards.picture(said[1], said[2]), text)
    page.write_text(LINK.sub(lambda link: _link(link[1], page, source), text))


def _link(target: str, page: Path, source: Path) -> str:
    """The README is the front page here, and a folder of examples is a page."""
    path, sign, anchor = target.partition("#")
    if not path or "://" in path or path.startswith("mailto:"):
        return f"]({target})"
    place = (page.parent / path).resolve()
    up = "../" * len(page.parent.relative_to(source).parts)
    if place == source.resolve() / "README.md":
        return f"]({up}index.md{sign}{anchor})"
    if place.is_dir():
        inside = place.relative_to(source.resolve()).parts
        if inside[0] in FILES:
            return f"]({up}docs/reference/{inside[0]}.md)"
        return f"]({up}{'/'.join(inside)}/README.md{sign}{anchor})"
    return f"]({target})"


def _write_files(source: Path, folder: str, about: str) -> None:
    """A page with all files of a folder."""
    parts = [f"# {folder.capitalize()}\n\n{about}\n"]
    for path in sorted((ROOT / folder).rglob("*")):
        if path.is_file() and path.suffix not in (".pyc", ".json"):
            language = {".py": "python", ".toml": "toml", ".sh": "sh"}.get(path.suffix, "")
            name = path.relative_to(ROOT / folder)
            parts.append(f"\n## {name}\n\n```{language}\n{path.read_text().rstrip()}\n```\n")
    (source / "docs" / "reference" / f"{folder}.md").write_text("".join(parts))


def _contents(overview: str) -> str:
    """One toctree for each part of the overview, in its order."""
    made = []
    for title, body in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", overview, re.M | re.S):
        pages = []
        for target in re.findall(r"^- \[.+?\]\((\S+?)\)", body, re.M):
            path = target.removesuffix(".md")
            pages.append(path.removeprefix("../") if path.startswith("../") else f"docs/{path}")
        if pages:
            made.append(_toctree(title, pages))
    made.insert(3, _toctree("Reference", GENERATED))
    return "".join(made)


def _toctree(caption: str, pages: Sequence[str]) -> str:
    listed = "\n".join(pages)
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n:maxdepth: 1\n\n{listed}\n```\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "docs")
    out = parser.parse_args().out
    source = out / "source"
    stage(source)
    site = out / "html"
    shutil.rmtree(site, ignore_errors=True)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "sphinx",
            "-q",
            "-W",
            "--keep-going",
            "-c",
            Path(__file__).parent,
            "-d",
            out / "doctrees",
            source,
            site,
        ],
        check=False,
    )
    if not done.returncode:
        print(f"site: {site / 'index.html'}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
