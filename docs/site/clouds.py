"""Pictures of what a rule or an attack does to a small cloud of messages in the plane, as SVG for a page.

Colours come from the page (`currentColor`) or suit both light and dark.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import networkx as nx
import torch
from torch import Tensor

from clippedgossip.attacks import Attack, View
from clippedgossip.mixing.inbox import Context
from clippedgossip.mixing.slots import RoundLayouts
from clippedgossip.network import Network
from clippedgossip.rules import Adaptive, ClippedGossip, Gossip, Rule

BYZANTINE, OUTCOME, PLAIN = "#d55e00", "#1f7fc4", "#7a7a7a"
WIDTH = 300
OWN = torch.tensor([3.3, 3.5], dtype=torch.float64)
CLOUD = torch.tensor(
    [[4.5, 4.2], [3.7, 4.8], [4.9, 3.5], [4.1, 3.1], [5.1, 4.7], [3.2, 4.2], [4.4, 5.2]], dtype=torch.float64
)
FAR = torch.tensor([[9.2, 5.9], [9.7, 4.9]], dtype=torch.float64)
STEPS = 24


@dataclass
class Panel:
    """A part of the plane. Points outside it are drawn on its edge, hollow."""

    title: str
    low: Tensor
    high: Tensor
    parts: list[str] = field(default_factory=list)

    @property
    def height(self) -> float:
        """As wide as high, in the plane's own measure."""
        size = self.high - self.low
        return WIDTH * float(size[1] / size[0])

    def _place(self, point: Tensor) -> tuple[float, float, bool]:
        share = (point - self.low) / (self.high - self.low)
        inside = share.clamp(0.03, 0.97)
        x, y = float(inside[0]) * WIDTH, 24 + (1 - float(inside[1])) * self.height
        return x, y, bool((share == inside).all())

    def dots(self, points: Tensor, color: str = "currentColor", shape: str = "circle") -> None:
        for point in points:
            if not bool(torch.isfinite(point).all()):
                continue
            x, y, inside = self._place(point)
            look = f'fill="{color}"' if inside else f'fill="none" stroke="{color}"'
            if shape == "circle":
                self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" {look}/>')
            elif shape == "square":
                self.parts.append(f'<rect x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10" {look}/>')
            elif shape == "cross":
                path = f"M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10"
                dash = "" if inside else ' stroke-dasharray="2 2"'
                self.parts.append(f'<path d="{path}" stroke="{color}" stroke-width="3"{dash}/>')
            else:
                path = f"M{x:.1f} {y - 8:.1f}l8 8l-8 8l-8 -8z"
                self.parts.append(f'<path d="{path}" {look}/>')

    def line(self, points: Sequence[Tensor], color: str, width: float = 1.5, dash: str = "") -> None:
        places = [self._place(point)[:2] for point in points]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        extra = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<path d="{path}" fill="none" stroke="{color}" stroke-width="{width}"{extra}/>')

    def svg(self) -> str:
        size = f'width="{WIDTH}" height="{self.height:.0f}"'
        frame = f'<rect x="1" y="24" {size} fill="none" stroke="currentColor" opacity="0.3"/>'
        return (
            f'<svg viewBox="0 0 {WIDTH + 2} {self.height + 26:.0f}" role="img" aria-label="{self.title}">'
            f'<text x="1" y="15">{self.title}</text>{frame}{"".join(self.parts)}</svg>'
        )


def _figure(panels: Sequence[Panel], caption: str) -> str:
    body = "".join(panel.svg() for panel in panels)
    return f'<figure class="cloud"><div>{body}</div><figcaption>{caption}</figcaption></figure>'


def _mark(shape: str, color: str) -> str:
    """A sign of the caption."""
    sign = {"circle": "●", "square": "■", "cross": "✕", "diamond": "◆"}[shape]
    return f'<span style="color:{color}">{sign}</span>'


def rule_picture(name: str, rule: Rule) -> str:
    """The node's round without and with Byzantine messages, and while these move away."""
    low, high = OWN.new_tensor([2.7, 2.6]), OWN.new_tensor([10.2, 6.6])
    clean = Panel("All nine neighbours regular", low, high)
    attacked = Panel("Two of nine neighbours Byzantine", low, high)
    regular = torch.cat([CLOUD, CLOUD.new_tensor([[4.0, 3.9], [4.6, 4.7]])])
    start = regular[-2:]
    ray = [start + (FAR - start) * share for share in torch.linspace(0, 1, STEPS).tolist()]
    for panel, last in ((clean, start), (attacked, FAR)):
        panel.dots(CLOUD)
        panel.dots(
            last,
            BYZANTINE if panel is attacked else "currentColor",
            "cross" if panel is attacked else "circle",
        )
        end = _mixed(rule, torch.cat([CLOUD, last]))
        if panel is attacked:
            panel.line([_mixed(rule, torch.cat([CLOUD, there])) for there in ray], OUTCOME, 1.5, "3 2")
        panel.line([OWN, end], OUTCOME, 2.5)
        panel.dots(OWN[None], "currentColor", "square")
        panel.dots(end[None], OUTCOME, "diamond")
    caption = (
        f"■ own model, ● messages of regular nodes, {_mark('cross', BYZANTINE)} of Byzantine nodes, "
        f"{_mark('diamond', OUTCOME)} the outcome of {name}. The dashed line is where the outcome goes while the "
        "Byzantine messages move from the cloud to where they are."
    )
    return _figure([clean, attacked], caption)


def _mixed(rule: Rule, received: Tensor) -> Tensor:
    weights = torch.full((len(received),), 1 / (len(received) + 1), dtype=torch.float64)
    byzantine = torch.zeros(len(received), dtype=torch.bool)
    byzantine[-2:] = True
    senders = torch.arange(1, len(received) + 1)
    context = Context(round=0, rounds=1, byzantine=byzantine, nodes=torch.tensor(0), senders=senders)
    return rule(OWN, received, weights, context)


def attack_picture(name: str, attack: Attack) -> str:
    """What one node receives from two Byzantine nodes, and where gossip and ClippedGossip then go."""
    models = torch.cat([OWN[None], CLOUD])
    network = Network(nx.complete_graph(len(models) + 2), byzantine=[len(models), len(models) + 1])
    layout = RoundLayouts(network, 0, models.device).at(0)
    rules = {"gossip": Gossip(), "clipped gossip": ClippedGossip(Adaptive(network.delta_max))}
    memory = models.new_zeros(attack.memory, 2) if attack.memory else None
    own = models.mean(0) + models.new_tensor([[0.4, -0.7], [-0.5, 0.6]])
    view = View(
        network=network,
        layout=layout,
        models=models,
        rule=rules["clipped gossip"],
        context=Context(round=0, rounds=10),
        byzantine_models=own,
        memory=memory,
    )
    attack.learn(view)
    inbox = attack.inbox(view)
    rows = [inbox.linear.to(models.dtype) @ models] if inbox.linear is not None else []
    sent = torch.cat([*rows, *([inbox.extra] if inbox.extra is not None else []), models[:0]])
    messages = sent[view.receivers == 0] if len(sent) == len(view.receivers) else models[:0]
    messages = messages[torch.isfinite(messages).all(1)] if len(messages) else messages
    both = torch.cat([models, messages])
    middle, reach = models.mean(0), 1.6
    reach = min(max(reach, float((both - middle).abs().max()) * 1.12), 11.0)
    wide = Panel(f"{name}: the messages to one node", middle - reach, middle + reach)
    near = Panel("Nearer: where the node goes", middle - 1.7, middle + 1.7)
    for panel in (wide, near):
        panel.dots(models[1:])
        for rule, color, dash in ((rules["gossip"], PLAIN, "4 3"), (rules["clipped gossip"], OUTCOME, "")):
            end = rule.mix(inbox)[0]
            if math.isfinite(float(end.sum())):
                panel.line([OWN, end], color, 2.5, dash)
                panel.dots(end[None], color, "diamond")
        panel.dots(messages, BYZANTINE, "cross")
        panel.dots(OWN[None], "currentColor", "square")
    count = "nothing that counts" if not len(messages) else f"{_mark('cross', BYZANTINE)}"
    caption = (
        f"Ten nodes, all linked, two of them Byzantine. ■ the receiver, ● its regular neighbours; Byzantine nodes send "
        f"{count}. {_mark('diamond', PLAIN)} the outcome of gossip, {_mark('diamond', OUTCOME)} of ClippedGossip "
        "with the adaptive radius. A hollow or dashed sign lies beyond the edge."
    )
    return _figure([wide, near], caption)
