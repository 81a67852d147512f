"""The house rules that a program can check: one file for a noun, one class for a name, no story words."""

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "clippedgossip"
MODULES = [path for path in sorted(SOURCE.rglob("*.py")) if not path.stem.endswith("_pb2")]

NOT_A_NAME = [
    "account",
    "agreement",
    "commons",
    "crew",
    "hands",
    "headline",
    "joining",
    "meeting",
    "missing",
    "pace",
    "preload",
    "reasons",
    "sliced",
    "standing",
    "steady",
    "strangers",
    "trials",
    "window",
]
"""No module and no class has one of these names: the field has better ones."""

NOT_A_WORD = {
    r"asks the host": "synchronises with the CPU",
    r"attackers?": "Byzantine node",
    r"by hand": "what the user does",
    r"commons": "shared memory",
    r"crew": "stack",
    r"headline": "demo, result",
    r"honest": "regular",
    r"liars?": "Byzantine node",
    r"who lie": "Byzantine nodes",
    r"pace": "speed",
    r"preload": "what is imported first",
    r"strangers?": "outsiders",
}
"""Words for which the documents, messages and comments have another one."""

NAMES_KEPT = re.compile(r"(?i)no[-_]honest[-_]majority|honest majority|\"--attackers\"")
"""A figure of the paper; an option of version 0.1."""


def _classes(path: Path) -> list[str]:
    return [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]


def _twice(names: list[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count > 1}


def test_no_module_has_the_name_of_another() -> None:
    free = {"__init__", "__main__", "base"}
    assert not _twice([path.stem for path in MODULES if path.stem not in free and path.parent.name != "cli"])


def test_no_class_has_the_name_of_another() -> None:
    assert _twice([name for path in MODULES for name in _classes(path)]) == set()


def test_no_module_or_class_has_a_name_from_a_story() -> None:
    names = [path.stem for path in MODULES] + [name for path in MODULES for name in _classes(path)]
    assert not {name for name in names if name.lower() in NOT_A_NAME}


def test_one_term_for_one_thing() -> None:
    documents = [path for pattern in ("*.md", "docs/*.md", "examples/*") for path in ROOT.glob(pattern)]
    found: dict[str, set[str]] = {}
    for path in [*MODULES, *documents]:
        if not path.is_file() or path.name == "CHANGELOG.md":
            continue
        text = NAMES_KEPT.sub("", path.read_text())
        name = path.relative_to(SOURCE if path.is_relative_to(SOURCE) else ROOT).as_posix()
        for word in NOT_A_WORD:
            if re.search(rf"(?i)\b{word}\b", text):
                found.setdefault(word, set()).add(name)
    assert not {f"{word} ({NOT_A_WORD[word]}): {sorted(names)}" for word, names in found.items()}


def test_every_error_of_a_user_says_what_to_do() -> None:
    """A message has a second line, or a part behind a semicolon. `sources` is left out: its errors stand
    inside the message of `data fetch`, which says what to do."""
    kinds = {name for name in _classes(SOURCE / "errors.py") if name != "ClippedGossipError"} | {"KeyProblem"}
    elsewhere = re.compile(
        r"unknown|raised\(|goes_on|say.format|_hint\(|message[,)]|within\(|\{(error|problem|why)\}['\"]"
    )
    silent = []
    for path in MODULES:
        raised = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Raise)]
        for error in (node.exc for node in raised if path.parent.name != "sources"):
            made = getattr(error, "func", None)
            made = made.value if isinstance(made, ast.Attribute) else made  # KeyProblem.of
            if isinstance(error, ast.Call) and getattr(made, "id", "") in kinds:
                message = ast.unparse(error)
                literal = any(isinstance(part, ast.JoinedStr) for part in ast.walk(error)) or " " in message
                if literal and "\\n" not in message and ";" not in message and not elsewhere.search(message):
                    silent.append(f"{path.relative_to(ROOT)}:{error.lineno}: {message}")
    assert silent == []


def test_what_the_type_checker_must_ignore_has_a_reason() -> None:
    files = [*MODULES, *(ROOT / "tests").rglob("*.py")]
    lines = [(path, line) for path in files for line in path.read_text().splitlines()]
    silent = [
        f"{path.name}: {line.strip()}" for path, line in lines if re.search(r"type: ignore\[.*?\] *$", line)
    ]
    assert silent == []
