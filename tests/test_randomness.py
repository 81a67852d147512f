"""Counter-based randomness: right, stable, and blind to who else is in the call."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clippedgossip.randomness import (
    batch_indices,
    epoch_indices,
    generator,
    hash_bits,
    hash_normal,
    hash_uniform,
    keep_mask,
    key,
)

MASK = (1 << 64) - 1
words = st.integers(-(2**63), 2**63 - 1)


def splitmix64(state: int) -> int:
    """The published algorithm on unsigned integers."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_the_reference_itself_gives_the_published_first_output() -> None:
    assert splitmix64(0) == 0xE220A8397B1DCDAF


@given(words, words)
def test_hash_is_splitmix64_whether_on_tensors_or_numbers(seed: int, counter: int) -> None:
    empty = hash_bits(0, "p").item()
    expected = splitmix64(splitmix64(_state_before(empty) ^ (seed & MASK)) ^ (counter & MASK))
    by_number = hash_bits(seed, "p", counter).item()
    by_tensor = hash_bits(seed, "p", torch.tensor([counter]))[0].item()
    by_tensor_seed = hash_bits(torch.tensor(seed), "p", torch.tensor([counter]))[0].item()
    assert int(by_number) & MASK == expected
    assert by_number == by_tensor == by_tensor_seed


def _state_before(output: int | float) -> int:
    """The purpose's own word: what splitmix64 with seed 0 was applied to."""
    z = int(output) & MASK
    z = _unshift(z, 31)
    z = _unshift((z * pow(0x94D049BB133111EB, -1, 1 << 64)) & MASK, 27)
    z = _unshift((z * pow(0xBF58476D1CE4E5B9, -1, 1 << 64)) & MASK, 30)
    return (z - 0x9E3779B97F4A7C15) & MASK


def _unshift(z: int, shift: int) -> int:
    x = z
    for _ in range(3):
        x = z ^ (x >> shift)
    return x


def test_values_are_pinned() -> None:
    # A change here breaks every recorded run and every peer of another version.
    assert key(1, "init", 2, 3) == 0x226A9A14A94BAD6B
    draws = batch_indices(7, torch.tensor([0, 5]), 3, torch.tensor([100, 1000]), 4)
    assert draws.tolist() == [[26, 3, 30, 56], [836, 104, 112, 96]]
    draws = epoch_indices(7, torch.tensor([0, 5]), 3, torch.tensor([100, 1000]), 4, same=False)
    assert draws.tolist() == [[15, 84, 87, 90], [976, 995, 820, 759]]
    drawn = torch.rand(1, generator=generator(1, "init", 2)).item()
    assert drawn == pytest.approx(0.1294557, abs=5e-8)  # half of the last digit


DRAWS: list[Callable[..., torch.Tensor]] = [
    batch_indices,
    partial(epoch_indices, same=False),
    partial(epoch_indices, same=True),
]


@given(
    st.integers(0, 2**31),
    st.lists(st.integers(0, 10_000), min_size=1, max_size=8, unique=True),
    st.sampled_from(DRAWS),
)
def test_a_node_draws_the_same_batch_whoever_else_is_in_the_call(
    round: int, nodes: list[int], draw: Callable[..., torch.Tensor]
) -> None:
    ids = torch.tensor(nodes)
    sizes = 1 + ids % 97
    together = draw(3, ids, round, sizes, 16)
    for place in range(len(nodes)):
        alone = draw(3, ids[place : place + 1], round, sizes[place : place + 1], 16)
        assert torch.equal(together[place], alone[0])
    assert (together >= 0).all()
    assert (together < sizes[:, None]).all()


@pytest.mark.parametrize("draw", DRAWS)
def test_rounds_and_seeds_broadcast(draw: Callable[..., torch.Tensor]) -> None:
    ids, sizes = torch.arange(5), torch.full((5,), 50)
    rounds = draw(3, ids, torch.arange(4)[:, None], sizes, 8)
    assert rounds.shape == (4, 5, 8)
    for round in range(4):
        assert torch.equal(rounds[round], draw(3, ids, round, sizes, 8))
        assert torch.equal(rounds[round], draw(3, ids, torch.tensor(round), sizes, 8))
    seeds = draw(torch.tensor([[3], [4]]), ids, 2, sizes, 8)
    assert torch.equal(seeds[0], rounds[2])
    assert not torch.equal(seeds[1], rounds[2])


def test_nothing_waits_for_the_device() -> None:
    # A meta tensor has no values: any look at one from the host would raise.
    ids = torch.arange(5, device="meta")
    round = torch.tensor(0, device="meta")
    for draw in DRAWS:
        assert draw(3, ids, round, ids, 8).shape == (5, 8)
    assert keep_mask(3, ids, round, 0, (4, 6), 0.5).shape == (5, 4, 6)
    assert hash_normal(3, "x", ids, round).shape == (5,)


@pytest.mark.parametrize("same", [False, True])
def test_an_epoch_has_every_sample_once(same: bool) -> None:
    sizes = torch.tensor([960, 1000, 100, 33, 7, 2, 1])
    rounds = torch.arange(94)[:, None]
    drawn = epoch_indices(3, torch.arange(7), rounds, sizes, 32, same=same).transpose(0, 1).flatten(1)
    orders = set[tuple[int, ...]]()
    for places, size in zip(drawn, sizes.tolist(), strict=True):
        epochs = places[: len(places) // size * size].view(-1, size)
        assert torch.equal(epochs.sort(1).values, torch.arange(size).expand_as(epochs))
        assert bool((epochs == epochs[0]).all()) == (same or size == 1)
        orders.add(tuple(epochs[0, :2].tolist()))
    assert len(orders) == 7  # each node has its own


def test_orders_of_an_epoch_are_equally_likely() -> None:
    seeds = torch.arange(24_000)[:, None]
    first = epoch_indices(seeds, torch.tensor([0]), 0, torch.tensor([4]), 4, same=False)[:, 0]
    counts = (first * torch.tensor([64, 16, 4, 1])).sum(1).bincount().double()
    counts = counts[counts > 0]
    assert len(counts) == 24
    assert ((counts - 1000) ** 2 / 1000).sum() < 55  # chi² with 23 degrees of freedom


def test_draws_are_uniform_and_independent() -> None:
    draws = batch_indices(0, torch.arange(100), torch.arange(50)[:, None], torch.full((100,), 10), 20)
    counts = draws.flatten().bincount(minlength=10).double()
    expected = draws.numel() / 10
    assert ((counts - expected) ** 2 / expected).sum() < 30  # chi² with 9 degrees of freedom
    values = hash_uniform(0, "u", torch.arange(200)[:, None], torch.arange(200), dtype=torch.float64)
    assert values.min() >= 0
    assert values.max() < 1
    assert abs(values.mean() - 0.5) < 0.01
    assert abs(torch.corrcoef(torch.stack([values[:-1].flatten(), values[1:].flatten()]))[0, 1]) < 0.02
    normal = hash_normal(0, "n", torch.arange(40_000))
    assert abs(normal.mean()) < 0.03
    assert abs(normal.std() - 1) < 0.02


def test_purposes_and_counters_do_not_collide() -> None:
    index = torch.arange(1000)
    seen = torch.cat([hash_bits(seed, purpose, index) for seed in (0, 1) for purpose in ("a", "b")])
    assert len(set(seen.tolist())) == 4000
    assert (
        len({key(0, "a", 1, 2), key(0, "a", 12), key(0, "a", 2, 1), key(1, "a", 1, 2), key(0, "a1", 2)}) == 5
    )


def test_keep_mask_keeps_the_right_share_and_is_fresh_each_round() -> None:
    ids = torch.arange(4)
    mask = keep_mask(0, ids, 1, 0, (32, 99), 0.25)
    assert mask.shape == (4, 32, 99)
    assert abs(mask.double().mean() - 0.75) < 0.01
    assert not torch.equal(mask, keep_mask(0, ids, 2, 0, (32, 99), 0.25))
    assert not torch.equal(mask, keep_mask(0, ids, 1, 1, (32, 99), 0.25))
    assert torch.equal(mask[2:3], keep_mask(0, ids[2:3], 1, 0, (32, 99), 0.25))


def test_a_generator_leaves_the_global_one_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    torch.rand(3, generator=generator(5, "x"))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.gpu
def test_a_gpu_draws_what_a_cpu_draws_also_inside_a_graph() -> None:
    ids, sizes = torch.arange(20), torch.full((20,), 3000)
    expected = torch.stack([batch_indices(7, ids, round, sizes, 32) for round in range(5)])
    device_ids, device_sizes = ids.cuda(), sizes.cuda()
    round = torch.zeros((), dtype=torch.long, device="cuda")
    batch_indices(7, device_ids, round, device_sizes, 32)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        drawn = batch_indices(7, device_ids, round, device_sizes, 32)
    for number in range(5):
        round.fill_(number)
        graph.replay()
        assert torch.equal(drawn.cpu(), expected[number])
