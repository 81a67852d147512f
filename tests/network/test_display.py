"""What a network shows of itself, and what one asks it for."""

import networkx as nx
import pytest

from clippedgossip.audit import audit
from clippedgossip.audit.text import render
from clippedgossip.errors import NetworkError
from clippedgossip.network import Network


def test_neighbours_go_by_label() -> None:
    network = Network(nx.path_graph(["ann", "bob", "cy"]), byzantine=["cy"])
    assert network.neighbors("bob") == ("ann", "cy")
    assert Network(nx.path_graph([5, 3, 4])).neighbors(3) == (5, 4)
    with pytest.raises(NetworkError, match="unknown node 'bo'; did you mean 'bob'"):
        network.neighbors("bo")


def test_the_audit_of_a_network_is_the_audit_and_prints_in_words() -> None:
    network = Network(nx.petersen_graph(), byzantine=[7])
    found = network.audit(suggestions=1)
    assert found.to_json() == audit(network, suggestions=1).to_json()
    assert str(found) == render(found, "network")


def test_a_notebook_shows_the_drawing_and_the_numbers() -> None:
    network = Network(nx.relabel_nodes(nx.cycle_graph(5), {0: "<ann>"}), byzantine=[2])
    shown = network._repr_html_()
    assert shown.count("<svg") == 1
    assert f"γ = {network.spectral_gap:.4g}, δ_max = {network.delta_max:.4g}" in shown
    assert "<ann>" not in shown


def test_a_large_network_shows_its_numbers_alone() -> None:
    shown = Network(nx.cycle_graph(1000))._repr_html_()
    assert "<svg" not in shown
    assert "1000 nodes" in shown
    assert "γ = " in shown
