"""Who the neighbours are, and which key is this peer's own, while it runs.

Both are files in the peer's folder. Commands change the files, and a running peer looks at them before each
round. So no message can change them, and no port is opened for it.
"""

import contextlib
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from clippedgossip.errors import PeerError, UserError, unknown_name
from clippedgossip.files import write_atomic
from clippedgossip.peer import identity as identities
from clippedgossip.peer import peer_config as configs
from clippedgossip.peer.identity import CERTIFICATE_FILE, KEY_FILE, Identity, format_fingerprint
from clippedgossip.peer.peer_config import CONFIG_FILE, Address, Config, Neighbour
from clippedgossip.peer.peer_folder import in_use
from clippedgossip.peer.telemetry import bounded_logger
from clippedgossip.peer.transport.pins import Pins

log = bounded_logger(__name__)
NEXT_KEY = "next-key"
"""The folder of a key that is made and not used yet."""


# --- commands --------------------------------------------------------------------------------------------


def add(folder: Path, name: str, address: str, fingerprint: str) -> Config:
    """Pins a neighbour, or gives one that is pinned another address."""
    mine = configs.load(folder, look_up=False)
    mark = identities.parse_fingerprint(fingerprint)
    _refuse_own(folder, mine, name, mark)
    known = {neighbour.name: neighbour for neighbour in mine.neighbours}
    if name in known and known[name].fingerprint != mark:
        raise PeerError(
            f"{name} is pinned with the fingerprint {format_fingerprint(known[name].fingerprint)}\n"
            f"if it has a new key, use `peer rekey {name} FINGERPRINT`; if it was wrong, `peer remove {name}`"
        )
    former = known[name].former if name in known else b""
    known[name] = Neighbour(name=name, address=Address.parse(address), fingerprint=mark, former=former)
    return _write(folder, replace(mine, neighbours=tuple(known.values())))


def remove(folder: Path, name: str) -> Config:
    """Forgets a neighbour."""
    mine = configs.load(folder, look_up=False)
    _known(mine, name)
    changed = _write(folder, replace(mine, neighbours=tuple(n for n in mine.neighbours if n.name != name)))
    (folder / "neighbours" / f"{name}.pem").unlink(missing_ok=True)
    return changed


def rekey(folder: Path, name: str, fingerprint: str, *, at_once: bool = False) -> Config:
    """Pins the new key of a neighbour. The one that it uses stays valid until it has shown the new one, or no
    longer at all."""
    mine = configs.load(folder, look_up=False)
    old, mark = _known(mine, name), identities.parse_fingerprint(fingerprint)
    _refuse_own(folder, mine, name, mark)
    if mark == old.fingerprint and not old.former:
        raise PeerError(f"this is the key of {name} that is pinned already; ask {name} for its new one")
    _refuse_convicted(folder, mine, old)
    # Where the new key is the second one in a row, the neighbour may still have the key before both.
    shown = Pins([old], folder / "neighbours").certificates.get(name)
    used = shown.fingerprint if shown else old.former or old.fingerprint
    new = replace(old, fingerprint=mark, former=b"" if at_once or used == mark else used)
    return _write(folder, replace(mine, neighbours=tuple(new if n is old else n for n in mine.neighbours)))


def make_next_key(folder: Path) -> Identity:
    """A new key for this peer, which is not used yet."""
    identities.load(folder)
    if (folder / NEXT_KEY / KEY_FILE).exists():
        mark = format_fingerprint(identities.load(folder / NEXT_KEY).fingerprint)
        raise PeerError(f"there is a new key already, {mark}\nuse it (--use), or remove {folder / NEXT_KEY}")
    made = identities.create()
    identities.save(made, folder / NEXT_KEY)
    return made


def use_next_key(folder: Path) -> Identity:
    """Makes the new key this peer's own. The old one is overwritten."""
    if not (folder / NEXT_KEY / KEY_FILE).exists():
        raise PeerError(f"there is no new key in {folder}\nmake one: clippedgossip peer new-key {folder}")
    new = identities.load(folder / NEXT_KEY)
    write_atomic(folder / KEY_FILE, new.key_pem)
    write_atomic(folder / CERTIFICATE_FILE, new.certificate.pem)  # last: a running peer looks at this one
    shutil.rmtree(folder / NEXT_KEY)
    return new


def _known(mine: Config, name: str) -> Neighbour:
    found = next((neighbour for neighbour in mine.neighbours if neighbour.name == name), None)
    if found is None:
        raise PeerError(unknown_name("neighbour", name, [n.name for n in mine.neighbours]))
    return found


def _refuse_own(folder: Path, mine: Config, name: str, mark: bytes) -> None:
    if mark == identities.load(folder).fingerprint:
        raise PeerError(f"this is the fingerprint of {mine.name}, this peer itself; ask {name} for theirs")


def _refuse_convicted(folder: Path, mine: Config, neighbour: Neighbour) -> None:
    from clippedgossip.peer.evidence import Evidence

    if Evidence(folder / "evidence", mine.run).convicted & {*neighbour.fingerprints}:
        raise PeerError(
            f"there is a proof against {neighbour.name} in {folder / 'evidence'}; a new key undoes nothing\n"
            "to exchange with it all the same, remove it and add it again"
        )


def _write(folder: Path, changed: Config) -> Config:
    configs.check(changed)  # what was typed, before it is a line of a file
    text = configs.dump(changed)
    checked = configs.parse(text.encode(), folder=changed.folder)
    if in_use(folder):
        check_while_running(checked)
    with contextlib.suppress(UserError):  # as its owner wrote it, with comments, where that means the same
        edited = configs.with_neighbours((folder / CONFIG_FILE).read_text(), changed)
        text = edited if configs.parse(edited.encode(), folder=changed.folder) == checked else text
    write_atomic(folder / CONFIG_FILE, text)
    return changed


def check_while_running(config: Config) -> None:
    """Refuses neighbours that a running peer cannot have: none, too few for its rule, or others than the
    network of its file has."""
    from clippedgossip.peer.peer_mixing import rule_of
    from clippedgossip.peer.round_neighbours import network_of

    if not config.neighbours:
        raise PeerError(
            f"{config.name} would have no neighbour to learn with\nadd another one first, or stop this peer"
        )
    if not config.network:
        rule_of(config).check(config.degree)
        return
    known = {str(node) for node in network_of(config).neighbors(config.node)}
    for name in (neighbour.name for neighbour in config.neighbours if neighbour.name not in known):
        raise PeerError(
            f"{name} is no neighbour of {config.name} in the [network] of its file\n"
            f"write the link into edges first, in the files of all peers; or `peer remove {name}`"
        )


# --- a running peer --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """What a running peer is to have from now on."""

    config: Config
    identity: Identity


class Membership:
    """Watches the files of one peer's folder."""

    def __init__(self, config: Config, identity: Identity) -> None:
        _refuse_key_of_neighbour(config, identity)
        self._now = Change(config, identity)
        self._seen = self._look()

    def changed(self) -> Change | None:
        """What is new since the last call. A file that is wrong changes nothing, and the log says so. Of the
        config only the neighbours and the network are taken: all else waits for the next start."""
        seen = self._look()
        if seen == self._seen:
            return None
        self._seen, folder = seen, self._now.config.folder
        try:
            said, me = configs.load(folder), identities.load(folder)
            if bool(said.network) != bool(self._now.config.network):
                raise PeerError("[network] cannot come or go while a peer runs; stop it, and start it again")
            config = replace(self._now.config, neighbours=said.neighbours, network=said.network)
            configs.check(config)
            check_while_running(config)
            _refuse_key_of_neighbour(config, me)
        except UserError as error:
            log.error(
                "change is not taken; the neighbours and the key stay as they were", extra={"why": str(error)}
            )
            return None
        before, now = self._now, Change(config, me)
        if config == before.config and me.fingerprint == before.identity.fingerprint:
            return None
        names, key = [n.name for n in config.neighbours], format_fingerprint(me.fingerprint)
        log.info("neighbours or key changed", extra={"neighbours": names, "key": key})
        self._now = now
        return now

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        folder = self._now.config.folder
        return tuple(_mark(folder / name) for name in (CONFIG_FILE, CERTIFICATE_FILE))


def _refuse_key_of_neighbour(config: Config, identity: Identity) -> None:
    for neighbour in config.neighbours:
        if identity.fingerprint in neighbour.fingerprints:
            raise PeerError(
                f"the key in {config.folder} is that of {neighbour.name}, a neighbour of this peer\n"
                f"restore {KEY_FILE} and {CERTIFICATE_FILE} of {config.name} from a backup"
            )


def _mark(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
