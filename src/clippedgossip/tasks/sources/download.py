"""Downloads over HTTP. They resume where they stopped, and are checked against a pinned digest."""

import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from hashlib import file_digest
from pathlib import Path
from urllib.parse import urlsplit

from clippedgossip.errors import DataError
from clippedgossip.tasks.sources.cache import check_space, is_disk_full, write_error
from clippedgossip.tasks.sources.catalog import Download

Progress = Callable[[str, int, int | None], None]
"""What is being fetched, bytes so far, bytes in all (None where unknown)."""

TIMEOUT = 8.0
ATTEMPTS = 4
BLOCK = 1 << 18


def digest(path: Path) -> str:
    with path.open("rb") as stream:
        return file_digest(stream, "sha256").hexdigest()


def download(item: Download, folder: Path, progress: Progress, dead: set[str]) -> Path:
    """Fetch from the first mirror that serves the right bytes. A partial download is resumed. `dead` collects
    the hosts that cannot be reached, so that we wait for each only once."""
    name, part = item.name, folder / f"{item.name}.part"
    failures: list[str] = []
    for url in item.urls:
        host = urlsplit(url).netloc
        if host in dead:
            continue
        try:
            _complete(url, item, part, progress)
        except urllib.error.HTTPError as error:
            failures.append(f"{host}: HTTP {error.code} for {name}")
        except (OSError, http.client.HTTPException) as error:
            dead.add(host)
            failures.append(f"{host}: {_reason(error)}")
        except DataError as error:
            if is_disk_full(error.__cause__):
                raise
            failures.append(f"{host}: {error}")
        else:
            return part.replace(part.with_suffix(""))
    raise DataError("; ".join(failures) or f"{name}: no mirror can be reached")


def _complete(url: str, item: Download, part: Path, progress: Progress) -> None:
    """Transfer until the digest is right. A lost connection is resumed, a wrong part removed."""
    for _ in range(ATTEMPTS):
        start = _size(part)
        check_space(part.parent, item.size - start)
        try:
            _transfer(url, item.size, part, progress)
        except urllib.error.HTTPError as error:
            if error.code != 416:
                raise
            part.unlink(missing_ok=True)
            continue
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and is_disk_full(error):
                raise write_error(error, part.parent, item.size) from error
            if _size(part) <= start:
                raise
            continue
        if _size(part) < item.size:
            continue
        if (found := digest(part)) == item.sha256:
            return
        part.unlink()
        if not start:
            raise DataError(f"wrong digest {found[:12]}…, expected {item.sha256[:12]}…")
    raise DataError(f"connection lost {ATTEMPTS} times; {_size(part)} of {item.size} bytes are kept")


def _transfer(url: str, size: int, part: Path, progress: Progress) -> None:
    start = _size(part)
    if start >= size:
        return
    headers = {"User-Agent": "clippedgossip"} | ({"Range": f"bytes={start}-"} if start else {})
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as response:
        part_sent = response.headers.get("Content-Range", "")
        resumed = response.status == 206 and part_sent.startswith(f"bytes {start}-")
        done = start if resumed else 0
        with part.open("ab" if resumed else "wb") as stream:
            while block := response.read(BLOCK):
                done += len(block)
                stream.write(block[: len(block) - max(0, done - size)])
                progress(part.stem, min(done, size), size)
                if done >= size:
                    break


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _reason(error: BaseException) -> str:
    inner = getattr(error, "reason", error)
    if isinstance(inner, TimeoutError):
        return f"no answer within {TIMEOUT:g} s"
    return str(getattr(inner, "strerror", None) or inner or type(inner).__name__)
