"""A link that can be made bad: between two peers it passes bytes, drops them, or cuts the connection."""

import asyncio
import contextlib
import threading

from clippedgossip.peer.peer_config import Address

_INTO_MESSAGE = 4096


class Proxy:
    """Listens on one address and forwards to another, in a thread of its own."""

    def __init__(self, listen: Address, target: Address) -> None:
        self.mode = "pass"
        """`pass`, `blackhole` (bytes vanish), `reset` (cut in mid-message), or `forget`: connections that are
        open stay open and their bytes vanish for ever, as in a firewall that has lost their state; new ones
        pass."""
        self.cuts = self.lost = self.made = 0
        """Connections cut in mid-message, bytes that vanished, connections made."""
        self.listen, self._target = listen, target
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._forgotten: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        start = asyncio.start_server(self._accept, listen.host, listen.port)
        self._server = asyncio.run_coroutine_threadsafe(start, self._loop).result(10)

    def set(self, mode: str) -> None:
        """Changes the mode. Connections that are open are cut when bytes were lost on them."""
        before, self.mode = self.mode, mode
        if mode == "forget":
            self._loop.call_soon_threadsafe(self._forget)
        if before == "blackhole":
            self._loop.call_soon_threadsafe(self._cut)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._cut)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def _forget(self) -> None:
        self._forgotten |= self._writers

    def _cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, onwards = await asyncio.open_connection(self._target.host, self._target.port)
        except OSError:
            writer.transport.abort()
            return
        self.made += 1
        self._writers |= {writer, onwards}
        await asyncio.gather(self._pass(reader, onwards), self._pass(there, writer))
        for done in (writer, onwards):
            self._writers.discard(done)
            self._forgotten.discard(done)
            done.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            passed = 0
            while data := await reader.read(1 << 16):
                passed = passed + len(data) if self.mode == "reset" else 0
                if passed > _INTO_MESSAGE:
                    self.cuts += 1
                    break
                if self.mode == "blackhole" or writer in self._forgotten:
                    self.lost += len(data)
                else:
                    writer.write(data)
                    await writer.drain()
        writer.transport.abort()
