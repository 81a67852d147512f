"""Byzantine peers make the attacks of the simulator, out of what their neighbours send them."""

import asyncio

import networkx as nx
import pytest
import torch
from torch import Tensor

from clippedgossip.attacks import ATTACKS, View, make_attack
from clippedgossip.attacks.base import FreeAttack
from clippedgossip.mixing.inbox import Context
from clippedgossip.mixing.slots import Layout
from clippedgossip.network import Network
from clippedgossip.peer.drill import byzantine_peer
from clippedgossip.peer.drill.byzantine_peer import ByzantinePeer
from clippedgossip.peer.node import Exchange
from clippedgossip.peer.peer_config import ATTACKS_OF_PEERS, VIOLATIONS_OF_PEERS
from clippedgossip.peer.rejection import Rejection
from tests.peer.memory_network import MemoryNetwork
from tests.peer.test_node import LENGTH, make_node
from tests.rounding import assert_near

K4 = [(a, b) for a in range(4) for b in range(a)]
MODELS = torch.randn(4, LENGTH, generator=torch.Generator().manual_seed(0))


def test_every_attack_is_made_or_needs_more_than_messages() -> None:
    assert set(ATTACKS) == {*ATTACKS_OF_PEERS, "none", "label-flipping", "tuned"}
    assert set(byzantine_peer._VIOLATIONS) == set(VIOLATIONS_OF_PEERS)


def received(how: str, rounds: int = 2) -> list[list[Exchange]]:
    """What three regular peers of a complete network received, where the fourth is Byzantine."""

    async def scenario() -> list[list[Exchange]]:
        net = MemoryNetwork()
        nodes = [make_node(net, i, K4, **({"misbehave": how} if i == 3 else {})) for i in range(4)]
        nodes[3].__class__ = ByzantinePeer
        await asyncio.gather(*(node.start() for node in nodes))
        found = []
        for _ in range(rounds):
            exchanges = await asyncio.gather(
                *(n.exchange(m.clone()) for n, m in zip(nodes, MODELS, strict=True))
            )
            found.append(exchanges[:3])
            last = [exchange.received.clone() for exchange in exchanges]
        await asyncio.gather(*(node.close() for node in nodes))
        for exchange, rows in zip(found[-1], last, strict=False):
            object.__setattr__(exchange, "received", rows)
        return found

    return asyncio.run(scenario())


def simulated(how: str, round: int) -> Tensor:
    """The same attack in the simulator, on the same network."""
    network = Network(nx.complete_graph(4), byzantine=[3])
    attack = make_attack(how)
    assert isinstance(attack, FreeAttack)
    return attack.messages(
        View(
            network=network,
            layout=Layout.of(network, MODELS.device),
            models=MODELS[:3],
            context=Context(round=round, rounds=1000, seed=0),
            byzantine_models=MODELS[3:],
        )
    )


@pytest.mark.parametrize("how", [name for name in ATTACKS_OF_PEERS if name not in ("silence", "non-finite")])
def test_on_a_complete_network_the_messages_are_those_of_the_simulator(how: str) -> None:
    last = received(how)[-1]
    assert not any(exchange.missing for exchange in last)
    sent = torch.stack([exchange.received[2] for exchange in last])
    assert_near(sent, simulated(how, 1).float(), roundings=4)


def test_what_is_not_finite_is_rejected() -> None:
    assert [exchange.missing for exchange in received("non-finite")[0]] == [{"p3": Rejection.NON_FINITE}] * 3
    assert [exchange.missing for exchange in received("nan", 1)[0]] == [{"p3": Rejection.NON_FINITE}] * 3
