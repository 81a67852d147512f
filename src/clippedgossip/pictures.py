"""A network as a small drawing, for pages and for the folders of runs."""

from clippedgossip.draw import draw_on
from clippedgossip.network import Network
from clippedgossip.report.svg import drawing, to_svg


def network_svg(network: Network, title: str = "") -> str:
    """Byzantine nodes as red squares, the numbers that matter beneath; the title is for who cannot see it."""
    numbers = f"γ = {network.spectral_gap:.4g}"
    if len(network.byzantine):
        numbers += f", δ_max = {network.delta_max:.3g}"
    with drawing(4.2, 2.9) as figure:
        axes = figure.add_subplot()
        draw_on(axes, network)
        figure.supxlabel(numbers, fontsize=9)
        regular, byzantine = len(network.regular), len(network.byzantine)
        nodes = f"{regular} regular and {byzantine} Byzantine nodes, {numbers}"
        return to_svg(figure, f"{title}: {nodes}" if title else nodes)
