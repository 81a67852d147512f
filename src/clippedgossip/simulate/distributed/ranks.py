"""The processes of one run: what they send each other, and how they part, in peace or not."""

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from clippedgossip.errors import RunError
from clippedgossip.simulate.distributed.roll_call import names

STOP = -1
ENDED, LATE = "ended", "late"  # what a rank says when the others left it, or kept it waiting: no news
CONTINUE = "start the same command again to go on from the last checkpoint"

Move = Callable[..., dist.Work | None]


class LostRanks(RunError):
    """Some of the processes are gone, so the run cannot go on."""


class Ranks:
    """All processes of a run, as one of them sees them. Rank 0 says what happens next, the others follow.

    `exchanged` counts the bytes this rank sent to others in transposes; `reduced` those it gave to sums.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        *,
        store: Store,
        timeout: float,
        who: Sequence[str],
        nccl: bool,
        by_hand: bool = True,
    ) -> None:
        self.rank, self.size, self.timeout, self.nccl = rank, size, timeout, nccl
        self.by_hand = by_hand  # whether they may share memory
        self.exchanged = self.reduced = 0
        self.resting = True  # whether the others wait for rank 0's word
        self.dismissed = False  # whether they have heard its last
        self.broken = False
        self.told_to_stop = ""  # by which signal: heeded between rounds, when nobody is left waiting
        self._store, self._who = store, who

    def device(self, asked: str | torch.device) -> torch.device:
        """This rank's own: ranks of one host take its GPUs in turn."""
        device = torch.device(asked)
        if device.type != "cuda":
            return device
        if device.index is not None:
            raise RunError(f"device is '{device}', but every rank needs its own; say 'cuda' or 'cpu'")
        if not torch.cuda.is_available():
            raise RunError("device is 'cuda', but PyTorch finds no GPU on this host; take device 'cpu'")
        place = int(os.environ.get("LOCAL_RANK", self.rank)) % torch.cuda.device_count()
        torch.cuda.set_device(place)
        return torch.device("cuda", place)

    def exchange(self, out: Sequence[Tensor], into: Sequence[Tensor]) -> None:
        """An all-to-all: out[r] goes to rank r, into[r] comes from it. They are contiguous but for the own,
        which is copied while the others are on their way: none of them may lie where another does."""
        others = [(self.rank + step) % self.size for step in range(1, self.size)]
        self.exchanged += sum(out[rank].nbytes for rank in others)
        there = {rank: out[rank] for rank in others if out[rank].numel()}
        here = {rank: into[rank] for rank in others if into[rank].numel()}
        on_host = into[self.rank].is_cuda and not self.nccl
        if on_host:
            there = {rank: block.cpu() for rank, block in there.items()}
            here = {rank: block.cpu() for rank, block in here.items()}
        self._talk(_pass, there, here, partial(into[self.rank].copy_, out[self.rank]))
        for rank in here if on_host else ():
            into[rank].copy_(here[rank])

    def sum(self, part: Tensor) -> Tensor:
        """The sum over all ranks, the same bits on each."""
        self.reduced += part.numel() * part.element_size()
        on_host = part.is_cuda and not self.nccl
        total = part.cpu() if on_host else part.clone(memory_format=torch.contiguous_format)
        if self.size == 2 and not total.is_cuda:  # the same bytes as an all-reduce, in half the time
            other, its_part = 1 - self.rank, torch.empty_like(total)
            self._talk(_pass, {other: total}, {other: its_part})
            total = total + its_part
        else:
            self._talk(dist.all_reduce, total)
        return total.to(part.device)

    def tell(self, word: int) -> None:
        """Rank 0 says what all do next."""
        self._heed_signals()
        self._broadcast(torch.tensor([word]))

    def hear(self) -> int:
        """What rank 0 says."""
        self._heed_signals()
        word = int(self._broadcast(torch.zeros(1, dtype=torch.int64)))
        self.dismissed = word == STOP
        return word

    def share(self, tensor: Tensor) -> Tensor:
        """Rank 0's tensor, on every rank; the others give one of its shape."""
        return self._broadcast(tensor.detach().cpu().contiguous()).to(tensor.device)

    def send(self, tensor: Tensor, to: int) -> None:
        self._talk(dist.send, tensor.detach().cpu().contiguous(), to)

    def receive(self, into: Tensor, source: int) -> None:
        """Into a contiguous tensor on the host."""
        self._talk(dist.recv, into, source)

    def texts(self, own: str) -> list[str]:
        """What every rank says."""
        said = torch.frombuffer(bytearray(own.encode() or b" "), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        self._talk(dist.all_gather, lengths, torch.tensor([len(said)]))
        longest = max(int(length) for length in lengths)
        heard = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        self._talk(dist.all_gather, heard, torch.nn.functional.pad(said, (0, longest - len(said))))
        return [
            bytes(text[: int(length)].tolist()).decode() for text, length in zip(heard, lengths, strict=True)
        ]

    def settle(self, device: torch.device) -> None:
        """Wait for what was sent over NCCL, with an ear for signals and an eye on the clock."""
        if device.type != "cuda" or not self.nccl:
            return
        stream = torch.cuda.current_stream(device)
        deadline = time.monotonic() + 0.9 * self.timeout  # before NCCL's own watchdog, which aborts
        while not stream.query():
            if self.told_to_stop:  # perhaps because another rank ended, and then this will not
                deadline = min(deadline, time.monotonic() + 5)
            if time.monotonic() > deadline:
                raise self.lost("timed out")
            time.sleep(5e-5)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """All ranks are at the same work; who fails in the midst of it cannot be told to stop."""
        self.resting = False
        yield
        self.resting = True

    def leave(self, error: BaseException) -> None:
        """Tell rank 0 why, unless it is that the others left."""
        self.resting = False
        if not self.broken:
            with suppress(RuntimeError):
                self._store.set(f"left/{self.rank}", str(error) or type(error).__name__)

    def part(self) -> None:
        """The end: rank 0 sends the others home if they listen, and all let go of the group."""
        try:
            if not self.broken and self.resting:
                if not self.dismissed:
                    self._broadcast(torch.tensor([STOP]))
                self._talk(dist.all_reduce, torch.zeros(1))  # a barrier, on the host
        except LostRanks:
            pass  # they are gone already
        finally:
            self._destroy()

    def _destroy(self) -> None:
        if not dist.is_initialized():
            return
        if self.broken and self.nccl:  # a collective that never ends would keep us
            group = dist.group.WORLD
            with suppress(RuntimeError):
                if group is not None:
                    group._get_backend(torch.device("cuda")).abort()
        dist.destroy_process_group()

    def _heed_signals(self) -> None:
        if self.told_to_stop:
            raise RunError(f"stopped by {self.told_to_stop}; {CONTINUE}")

    def _broadcast(self, tensor: Tensor) -> Tensor:
        self._talk(dist.broadcast, tensor, 0)
        return tensor

    def _talk(self, collective: Callable[..., object], *arguments: object) -> None:
        try:
            collective(*arguments)
            return
        except RuntimeError as error:  # gloo's and NCCL's own, and torch.distributed.DistError
            reason = re.sub(r"^\[\S+\] ", "", str(error)).split(". ")[0].splitlines()[0]
        # Not in the handler: the error's frames would keep the group, and with it the sockets, open.
        raise self.lost(reason)

    def lost(self, reason: str) -> LostRanks:
        self.broken = True
        self._destroy()  # so that those who wait for this one learn of it too
        late = "imed out" in reason
        if self.rank:
            with suppress(RuntimeError):
                self._store.set(f"left/{self.rank}", LATE if late else ENDED)
            return LostRanks(f"rank {self.rank} lost the others: {reason}")
        return LostRanks(f"{self._inquest(reason, late)}\n{CONTINUE}")

    def _inquest(self, reason: str, late: bool) -> str:
        """Who is to blame. Those that live say so within seconds; the dead do not."""
        said = self._last_words(3.0)
        for rank, word in said.items():
            if word not in (ENDED, LATE):
                return f"rank {rank} ({self._who[rank]}) stopped: {word.splitlines()[0]}"
        silent = [rank for rank in range(1, self.size) if rank not in said]
        if silent:
            what = f"did not answer for {self.timeout:g} s" if late else "ended without a word"
            where = "; ".join(self._who[rank] for rank in silent[:3]) + ("; …" if len(silent) > 3 else "")
            return f"{names(silent)} of {self.size} {what} ({where})"
        slow = [rank for rank, word in said.items() if word == LATE]
        if slow:
            return f"{names(slow)} of {self.size} heard nothing for {self.timeout:g} s; allow more time"
        return f"the ranks lost each other: {reason}"

    def _last_words(self, seconds: float) -> dict[int, str]:
        said: dict[int, str] = {}
        deadline = time.monotonic() + seconds
        with suppress(RuntimeError):  # the store may be gone too
            while len(said) < self.size - 1 and time.monotonic() < deadline:
                for rank in set(range(1, self.size)) - set(said):
                    if self._store.check([f"left/{rank}"]):
                        said[rank] = self._store.get(f"left/{rank}").decode()
                time.sleep(0.02)
        return said


def _pass(
    there: dict[int, Tensor], here: dict[int, Tensor], meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Blocks to and from other ranks, by their numbers."""
    # Sent before received: else gloo's thread, which reads what comes, would hold up this one, which writes.
    moves: list[tuple[Move, Tensor, int]] = [(dist.isend, block, rank) for rank, block in there.items()]
    moves += [(dist.irecv, block, rank) for rank, block in here.items()]
    going: list[dist.Work | None]  # kept until done: a dropped one may be lost
    if any(block.is_cuda for _, block, _ in moves):
        going = [*dist.batch_isend_irecv([dist.P2POp(*move) for move in moves])]
    else:
        going = [move(block, rank) for move, block, rank in moves]
    meanwhile()
    for work in going:
        assert work is not None  # nobody is outside the group of all
        work.wait()
