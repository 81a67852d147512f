"""The processes of one run: what they send each other, and how they end."""

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

STOP = -1
ENDED, LATE = "ended", "late"  # what a rank reports if others ended, or kept it waiting
CONTINUE = "start the same command again to go on from the last checkpoint"

Move = Callable[..., dist.Work | None]


class LostRanks(RunError):
    """Some of the processes have ended, so the run cannot continue."""


class Ranks:
    """All processes of a run, as one of them sees them. Rank 0 sends commands, the others follow. `exchanged`
    counts the bytes that this rank sent in transposes, `reduced` those that it gave to sums."""

    def __init__(
        self,
        rank: int,
        size: int,
        *,
        store: Store,
        timeout: float,
        processes: Sequence[str],
        nccl: bool,
        share_memory: bool = True,
    ) -> None:
        self.rank, self.size, self.timeout, self.nccl = rank, size, timeout, nccl
        self.share_memory = share_memory  # whether ranks of one host may
        self.exchanged = self.reduced = 0
        self.idle = True  # whether the others wait for rank 0's next command
        self.stopped = False  # whether rank 0 has sent STOP
        self.broken = False  # whether a rank was lost
        self.signal = ""  # the one received, if any; obeyed between rounds, when no rank waits for this one
        self._store, self._processes = store, processes

    def device(self, asked: str | torch.device) -> torch.device:
        """This rank's device. The ranks of one host take its GPUs in turn."""
        device = torch.device(asked)
        if device.type != "cuda":
            return device
        if device.index is not None:
            raise RunError(f"device is '{device}', but every rank needs its own; take 'cuda' or 'cpu'")
        if not torch.cuda.is_available():
            raise RunError("device is 'cuda', but PyTorch finds no GPU on this host; take device 'cpu'")
        place = int(os.environ.get("LOCAL_RANK", self.rank)) % torch.cuda.device_count()
        torch.cuda.set_device(place)
        return torch.device("cuda", place)

    def exchange(self, out: Sequence[Tensor], into: Sequence[Tensor]) -> None:
        """An all-to-all: out[r] goes to rank r, into[r] comes from rank r.

        Blocks for and from other ranks must be contiguous. The own block is copied while the others are sent.
        No two blocks may overlap.
        """
        others = [(self.rank + step) % self.size for step in range(1, self.size)]
        self.exchanged += sum(out[rank].nbytes for rank in others)
        there = {rank: out[rank] for rank in others if out[rank].numel()}
        here = {rank: into[rank] for rank in others if into[rank].numel()}
        on_cpu = into[self.rank].is_cuda and not self.nccl
        if on_cpu:
            there = {rank: block.cpu() for rank, block in there.items()}
            here = {rank: block.cpu() for rank, block in here.items()}
        self._communicate(_exchange_blocks, there, here, partial(into[self.rank].copy_, out[self.rank]))
        for rank in here if on_cpu else ():
            into[rank].copy_(here[rank])

    def sum(self, part: Tensor) -> Tensor:
        """The sum over all ranks, the same bits on each."""
        self.reduced += part.numel() * part.element_size()
        on_cpu = part.is_cuda and not self.nccl
        total = part.cpu() if on_cpu else part.clone(memory_format=torch.contiguous_format)
        if self.size == 2 and not total.is_cuda:  # the same bytes as an all-reduce, in half the time
            other, its_part = 1 - self.rank, torch.empty_like(total)
            self._communicate(_exchange_blocks, {other: total}, {other: its_part})
            total = total + its_part
        else:
            self._communicate(dist.all_reduce, total)
        return total.to(part.device)

    def send_command(self, command: int) -> None:
        """Rank 0 tells the others what to do next."""
        self._obey_signals()
        self._broadcast(torch.tensor([command]))

    def receive_command(self) -> int:
        """What rank 0 sends."""
        self._obey_signals()
        command = int(self._broadcast(torch.zeros(1, dtype=torch.int64)))
        self.stopped = command == STOP
        return command

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Rank 0's tensor, on every rank; the others give a tensor of its shape."""
        return self._broadcast(tensor.detach().cpu().contiguous()).to(tensor.device)

    def send(self, tensor: Tensor, to: int) -> None:
        self._communicate(dist.send, tensor.detach().cpu().contiguous(), to)

    def receive(self, into: Tensor, source: int) -> None:
        """Receive into a contiguous tensor on the CPU."""
        self._communicate(dist.recv, into, source)

    def all_texts(self, own: str) -> list[str]:
        """The text of every rank. All ranks must call this."""
        sent = torch.frombuffer(bytearray(own.encode() or b" "), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        self._communicate(dist.all_gather, lengths, torch.tensor([len(sent)]))
        longest = max(int(length) for length in lengths)
        received = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        self._communicate(dist.all_gather, received, torch.nn.functional.pad(sent, (0, longest - len(sent))))
        pairs = zip(received, lengths, strict=True)
        return [bytes(text[: int(length)].tolist()).decode() for text, length in pairs]

    def wait_for_nccl(self, device: torch.device) -> None:
        """Wait until NCCL has sent everything; raise if that takes too long or a signal came."""
        if device.type != "cuda" or not self.nccl:
            return
        stream = torch.cuda.current_stream(device)
        deadline = time.monotonic() + 0.9 * self.timeout  # before NCCL's own watchdog, which aborts
        while not stream.query():
            if self.signal:  # perhaps because another rank ended; then the wait has no end
                deadline = min(deadline, time.monotonic() + 5)
            if time.monotonic() > deadline:
                raise self.lost("timed out")
            time.sleep(5e-5)

    @contextmanager
    def working(self) -> Iterator[None]:
        """All ranks do the same work in this block: meanwhile none of them waits for a command."""
        self.idle = False
        yield
        self.idle = True

    def report_failure(self, error: BaseException) -> None:
        """Tell rank 0 why this rank ends, unless it ends because others did."""
        self.idle = False
        if not self.broken:
            with suppress(RuntimeError):
                self._store.set(f"left/{self.rank}", str(error) or type(error).__name__)

    def close(self) -> None:
        """End: rank 0 sends STOP if the others wait for a command, and every rank leaves the group."""
        try:
            if not self.broken and self.idle:
                if not self.stopped:
                    self._broadcast(torch.tensor([STOP]))
                self._communicate(dist.all_reduce, torch.zeros(1))  # a barrier, on the CPU
        except LostRanks:
            pass  # they have ended already
        finally:
            self._destroy()

    def _destroy(self) -> None:
        if not dist.is_initialized():
            return
        if self.broken and self.nccl:  # a collective that waits for a lost rank would never end
            group = dist.group.WORLD
            with suppress(RuntimeError):
                if group is not None:
                    group._get_backend(torch.device("cuda")).abort()
        dist.destroy_process_group()

    def _obey_signals(self) -> None:
        if self.signal:
            raise RunError(f"stopped by {self.signal}; {CONTINUE}")

    def _broadcast(self, tensor: Tensor) -> Tensor:
        self._communicate(dist.broadcast, tensor, 0)
        return tensor

    def _communicate(self, collective: Callable[..., object], *arguments: object) -> None:
        try:
            collective(*arguments)
            return
        except RuntimeError as error:  # gloo's and NCCL's own, and torch.distributed.DistError
            reason = re.sub(r"^\[\S+\] ", "", str(error)).split(". ")[0].splitlines()[0]
        # Not in the handler: the error's frames would hold the group, and its sockets would stay open.
        raise self.lost(reason)

    def lost(self, reason: str) -> LostRanks:
        """The error to raise when other ranks do not answer; on rank 0 it says which and why."""
        self.broken = True
        self._destroy()  # so that ranks that wait for this one notice too
        late = "imed out" in reason
        if self.rank:
            with suppress(RuntimeError):
                self._store.set(f"left/{self.rank}", LATE if late else ENDED)
            return LostRanks(f"rank {self.rank} lost the others: {reason}")
        return LostRanks(f"{self._cause(reason, late)}\n{CONTINUE}")

    def _cause(self, reason: str, late: bool) -> str:
        """Which rank failed. Ranks that live report within seconds; dead ones do not."""
        reports = self._reports(3.0)
        for rank, report in reports.items():
            if report not in (ENDED, LATE):
                return f"rank {rank} ({self._processes[rank]}) stopped: {report.splitlines()[0]}"
        silent = [rank for rank in range(1, self.size) if rank not in reports]
        if silent:
            what = f"did not answer for {self.timeout:g} s" if late else "ended without a word"
            where = "; ".join([self._processes[rank] for rank in silent[:3]] + ["…"] * (len(silent) > 3))
            return f"{rank_names(silent)} of {self.size} {what} ({where})"
        slow = [rank for rank, report in ((0, LATE if late else ENDED), *reports.items()) if report == LATE]
        if slow:
            return f"{rank_names(slow)} of {self.size} heard nothing for {self.timeout:g} s; allow more time"
        return f"the ranks lost each other: {reason}"

    def _reports(self, seconds: float) -> dict[int, str]:
        """What the other ranks report about their end, within so many seconds."""
        found: dict[int, str] = {}
        deadline = time.monotonic() + seconds
        with suppress(RuntimeError):  # the store may be gone too
            while len(found) < self.size - 1 and time.monotonic() < deadline:
                for rank in set(range(1, self.size)) - set(found):
                    if self._store.check([f"left/{rank}"]):
                        found[rank] = self._store.get(f"left/{rank}").decode()
                time.sleep(0.02)
        return found


def _exchange_blocks(
    there: dict[int, Tensor], here: dict[int, Tensor], meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Send and receive blocks, by the other ranks' numbers, and do something meanwhile."""
    # Send before receiving: otherwise gloo's thread, which reads, would block this one, which writes.
    moves: list[tuple[Move, Tensor, int]] = [(dist.isend, block, rank) for rank, block in there.items()]
    moves += [(dist.irecv, block, rank) for rank, block in here.items()]
    going: list[dist.Work | None]  # kept until done: PyTorch may lose one that is not
    if any(block.is_cuda for _, block, _ in moves):
        going = [*dist.batch_isend_irecv([dist.P2POp(*move) for move in moves])]
    else:
        going = [move(block, rank) for move, block, rank in moves]
    meanwhile()
    for work in going:
        assert work is not None  # it is None outside the group, and all ranks are in it
        work.wait()


def rank_names(ranks: list[int]) -> str:
    """`rank 3`, or `ranks 1, 3`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
