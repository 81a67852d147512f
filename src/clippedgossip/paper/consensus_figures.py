"""Robust consensus under attack: fig. (error against δ/γ²) and fig. (iteration-to-error curves)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from clippedgossip.paper.base import Experiment, Needs, Options
from clippedgossip.paper.consensus_chains import BETAS, DELTAS, ROUNDS, SETTINGS, ChainErrors, simulate
from clippedgossip.report.claims import Claim, Floats, Verdict, exact
from clippedgossip.report.figures import Panel, Points, Scale, scatter, small_multiples
from clippedgossip.report.page import Figure, PagePart, Panels, Section, Table, Text
from clippedgossip.report.palette import styles
from clippedgossip.report.statistics import Series

FLOOR = 1e-4  # smaller errors are drawn here
LISTED = (0.06, 0.05, 0.04, 0.03, 0.02, 0.01, 0.005, 0.0014, 3.7e-4, 1e-4, 1e-5)  # "p" in the text
CLASSES = {
    "ClippedGossip": "ClippedGossip",
    "TM": "TrimmedMean",
    "Median": "Median",
    "TM*": "WeightedTrimmedMean",
    "Median*": "WeightedMedian",
}

INITIAL = 10_000.0
CONVERGED = 1.0
RELEASED = "The authors' released results."
SAME = 1.002  # errors whose ratio is smaller count as equal
NOTHING = 1e-6  # errors below this depend on the number of rounds alone

PUBLISHED: Mapping[tuple[float, float], str] = {
    (beta, delta): error
    for delta, errors in {
        0.05: ("0.0", ".006", "11.4", "937", "4440", "9814"),
        0.2: (".001", "1.0", "401", "3373", "7009", "9958"),
        0.5: (".32", "36.8", "1504", "5415", "8292", "10011"),
    }.items()
    for beta, error in zip((0.12, 0.08, 0.04, 0.02, 0.01, 0.001), errors, strict=True)
}
"""Squared error after 100 rounds of ClippedGossip in the authors' released results."""


class Consensus(Experiment[ChainErrors]):
    name = "consensus"
    title = "Robust consensus under attack"
    lead = """Four regular nodes in a chain hold 0, 0, 200, 200 and look for their average, 100. Each of the
    two nodes in the middle has a Byzantine neighbour that pushes it back. γ tells how well the chain is
    connected, δ is the weight of a Byzantine node. The error is the mean squared distance to 100 after 100
    rounds. At the start it is 10,000."""

    section = "The paper's findings and released results"

    def needs(self, options: Options) -> Needs[ChainErrors]:
        return Needs(simulate)

    def rows(self, result: ChainErrors) -> list[dict[str, Any]]:
        chains = list(zip(SETTINGS, result.gammas.tolist(), result.ratios.tolist(), strict=True))
        return [
            {
                "rule": CLASSES[rule],
                "beta": beta,
                "delta": delta,
                "gamma": gamma,
                "ratio": ratio,
                "error": error,
            }
            for rule in result.errors
            for ((beta, delta), gamma, ratio), error in zip(chains, result.last(rule).tolist(), strict=True)
        ]

    def findings(self, result: ChainErrors) -> Iterator[Claim]:
        yield from _published(result)
        yield from _text(result)

    def figures(self, result: ChainErrors) -> Mapping[str, PagePart]:
        return {
            "Error against δ/γ²": _error_against_ratio(result),
            "What explains the error": _explanations(result),
            "Error over the rounds": _curves(result),
        }

    def notes(self, result: ChainErrors) -> Sequence[Section]:
        gammas = {beta: gamma for (beta, _), gamma in zip(SETTINGS, result.gammas, strict=True)}
        rows = [
            [f"{beta:g}", f"{gammas[beta]:.4g}", f"{gammas[beta] ** 2:.3g}", f"{listed:g}"]
            for beta, listed in zip(BETAS, LISTED, strict=True)
        ]
        words = (
            "The text lists γ² as p. Its last entry, 1e-5, must be 1e-6: with β = 0.001 we get the released "
            "errors. Combinations with δ > 1 − ⅓ − β do not fit into W; 53 remain."
        )
        table = Table(["β", "γ", "γ²", "γ² in the text"], rows)
        return [*super().notes(result), Section("The networks", [Text(words), table])]

    def table(self, result: ChainErrors) -> Table:
        errors = dict(zip(SETTINGS, result.last("ClippedGossip"), strict=True))
        gammas = dict(zip(SETTINGS, result.gammas, strict=True))
        rows = [
            [
                f"{beta:g}",
                f"{gammas[beta, DELTAS[0]]:.4f}",
                *(_number(errors[beta, delta]) if (beta, delta) in errors else "" for delta in DELTAS),
            ]
            for beta in BETAS
        ]
        title = "ClippedGossip: squared error after 100 rounds (10,000 at the start)"
        return Table(["β", "γ", *(f"δ={delta:g}" for delta in DELTAS)], rows, title)


def _number(value: float) -> str:
    return f"{value:.0e}" if value < 0.001 else f"{value:,.3f}" if value < 1 else f"{value:,.1f}"


def _error_against_ratio(result: ChainErrors) -> Figure:
    clouds = [
        Points(name=rule, x=result.ratios.tolist(), y=np.maximum(result.last(rule), FLOOR).tolist())
        for rule in ("TM", "Median", "ClippedGossip")
    ]
    svg = scatter(clouds, x_label="δ / γ²", y_label="squared error after 100 rounds", size=(4.6, 3.3))
    return Figure(
        svg,
        "Each point is one of the 53 settings. TM and Median never move: their points coincide at 10,000. "
        f"Errors below {FLOOR:g} are drawn there.",
    )


def _explanations(result: ChainErrors) -> Panels:
    looks = styles(["ClippedGossip"])
    explanations: list[tuple[str, Floats, Scale]] = [
        ("δ / γ²", result.ratios, "log"),
        ("1 / γ²", 1 / result.gammas**2, "log"),
        ("δ", result.deltas, "linear"),
    ]
    svgs = []
    for label, values, scale in explanations:
        clouds = [Points(name="ClippedGossip", x=values.tolist(), y=result.last("ClippedGossip").tolist())]
        look: dict[str, Any] = {"x_scale": scale, "y_scale": "linear", "looks": looks, "legend": False}
        svgs.append(scatter(clouds, x_label=label, y_label="squared error", size=(4.2, 2.8), **look))
    return Panels(
        svgs,
        "The error of ClippedGossip on a linear scale. Against δ/γ² all settings are close to one curve. "
        "Settings of the same 1/γ², or of the same δ, have very different errors.",
        looks,
    )


def _curves(result: ChainErrors) -> Figure:
    rounds, index = list(range(ROUNDS + 1)), {setting: place for place, setting in enumerate(SETTINGS)}

    def panel(beta: float, delta: float) -> Panel | None:
        if (beta, delta) not in index:
            return None
        shown = {r: np.maximum(errors[:, index[beta, delta]], FLOOR) for r, errors in result.errors.items()}
        series = [Series(name=rule, x=rounds, y=errors.tolist()) for rule, errors in shown.items()]
        return Panel(title=f"β={beta:g} δ={delta:g}", series=series)

    panels = [panel(beta, delta) for beta in BETAS for delta in DELTAS]
    svg = small_multiples(
        panels, columns=len(DELTAS), y_label="squared error", y_limits=(FLOOR / 3, 1e6), panel_size=(1.7, 1.0)
    )
    return Figure(
        svg,
        "One plot per setting. From top to bottom the connection of the chain gets worse. From left to right "
        "the Byzantine weight grows. A star marks the versions of TM and Median that use the weights.",
        wide=True,
    )


def _published(result: ChainErrors) -> Iterator[Claim]:
    """Each released number. Ours, rounded to as many digits, must be the same."""
    errors = dict(zip(SETTINGS, result.last("ClippedGossip"), strict=True))
    source = f"{RELEASED[:-1]}, to as many digits."
    for (beta, delta), paper in PUBLISHED.items():
        ours, digits = float(errors[beta, delta]), len(paper.partition(".")[2])
        text, same = f"ClippedGossip, β={beta:g}, δ={delta:g}", round(ours, digits) == float(paper)
        yield exact(text, f"{ours:.{digits}f}", same, paper=paper, source=source)


def _text(result: ChainErrors) -> Iterator[Claim]:
    """What the text says about the two figures."""
    ours, weighted = result.last("ClippedGossip"), result.last("TM*")
    naive = np.minimum(result.last("TM"), result.last("Median"))
    told = np.maximum(ours, weighted) > NOTHING
    apart = float(np.abs(result.errors["TM"] - result.errors["Median"]).max())
    yield _stuck(result, "TM")
    yield _stuck(result, "Median")
    yield exact(
        "TM and Median have identical performance",
        f"{apart:.2g}",
        apart < 1e-6 * INITIAL,
        note="largest difference of their errors, all settings and rounds",
        source='Caption: "Median and TM have identical performance".',
    )
    yield _stuck(result, "Median*", most_delta=0.4)
    yield from _weighted(result)
    yield _better(ours[told], weighted[told], "TM*", f"; settings where either is above {NOTHING:g}")
    yield _better(ours, naive, "TM and Median", "; β=0.001, δ=0.5 gave 10011 in the paper as well")
    monotone, source = _monotone(ours), '"worse with increasing δ" and "with decreasing γ".'
    seen = "always" if monotone else "not always"
    yield exact("error grows with δ, and as γ falls", seen, monotone, source=source)
    yield _threshold(result)
    yield from _explained(result)


def _threshold(result: ChainErrors) -> Claim:
    """The δ/γ² up to which ClippedGossip is excellent: all settings below converge, none far above does."""
    fine = result.last("ClippedGossip") < CONVERGED
    threshold, latest = float(result.ratios[~fine].min()), float(result.ratios[fine].max())
    return exact(
        "ClippedGossip is excellent below a threshold of δ/γ², degrades above",
        f"{threshold:.3g}",
        latest < 10 * threshold,
        note=f"smallest δ/γ² with an error above {CONVERGED:g}; the largest with one below is {latest:.3g}",
        source='Caption: "excellent when the ratio is less than a threshold"; the bound of 10 is ours.',
    )


def _weighted(result: ChainErrors) -> Iterator[Claim]:
    """Where TM* converges, and TM* beside the other baselines and ClippedGossip."""
    weighted = result.last("TM*")
    ours = [setting for setting, error in zip(SETTINGS, weighted, strict=True) if error < CONVERGED]
    least_beta = min((beta for beta, _ in ours), default=0.0)
    most_delta = max((delta for _, delta in ours), default=1.0)
    others = np.min([result.last(rule) for rule in ("TM", "Median", "Median*")], axis=0)
    yield exact(
        "TM* converges only for large β, δ ≤ 0.3",
        f"{len(ours)} of {len(SETTINGS)}",
        most_delta <= 0.3 and least_beta > min(BETAS),
        note=f"error below {CONVERGED:g}: β ≥ {least_beta:g} and δ ≤ {most_delta:g} only",
        source=RELEASED,
    )
    better, worse = weighted < others / SAME, weighted > others * SAME
    least = f", all with δ ≥ {result.deltas[worse].min():g}" if worse.any() else ""
    yield exact(
        "TM* does better than the other baselines",
        f"{better.sum()} of {len(SETTINGS)}",
        bool(better.any() and not worse.any()),
        note=f"settings; level on {(~better & ~worse).sum()} (within 0.2 %), worse on {worse.sum()}{least}",
        source='"performing better than the other baselines".',
    )
    lead, hard = weighted - result.last("ClippedGossip"), result.ratios > np.median(result.ratios)
    means, medians = ([float(of(lead[part])) for part in (~hard, hard)] for of in (np.mean, np.median))
    yield Claim(
        text="TM* is worse than ClippedGossip, most where δ/γ² is large",
        ours=f"{medians[0]:.2g} to {medians[1]:,.0f}",
        verdict=_agreed(*(easy < harder for easy, harder in (means, medians))),
        note="how much more error it has, median of the easier and of the harder half of the settings; "
        f"means: {means[0]:,.0f} to {means[1]:,.0f}. Where γ is smallest, both hardly move",
        source='"especially on the challenging cases where γ is small and δ is large".',
    )


def _agreed(*measures: bool) -> Verdict:
    """Holds by all measures or by none, and is undecided otherwise."""
    return "holds" if all(measures) else "undecided" if any(measures) else "does not hold"


def _stuck(result: ChainErrors, rule: str, most_delta: float | None = None) -> Claim:
    """A rule leaves the error as it was."""
    errors = result.last(rule)[result.deltas <= (most_delta or 1)]
    low, high = f"{errors.min():.0f}", f"{errors.max():.0f}"
    text = f"{rule} never moves" + (f" for δ ≤ {most_delta:g}" if most_delta else "")
    ours, same = low if low == high else f"{low}–{high}", bool(np.allclose(errors, INITIAL, rtol=1e-9))
    return exact(text, ours, same, paper=f"{INITIAL:.0f}", source=RELEASED)


def _better(ours: Floats, theirs: Floats, names: str, note: str) -> Claim:
    """ClippedGossip has the smaller error. Where both are stuck, a difference of 0.2 % does not count."""
    return exact(
        f"ClippedGossip does better than {names}",
        f"{(ours < theirs).sum()} of {len(ours)}",
        bool((ours <= SAME * theirs).all()),
        note=f"the rest within 0.2 %{note}",
        source='Caption: ClippedGossip "is consistently better".',
    )


def _monotone(errors: Floats) -> bool:
    """A larger δ or a smaller β never lowers an error. Errors below the floor count as equal."""
    seen = dict(zip(SETTINGS, np.maximum(errors, NOTHING), strict=True))
    return all(
        seen[beta, delta] <= seen[other]
        for beta, delta in SETTINGS
        for other in SETTINGS
        if other[0] <= beta and other[1] >= delta
    )


def _explained(result: ChainErrors) -> Iterator[Claim]:
    """How much of the error a non-decreasing function of δ/γ² explains, of δ or γ alone, and of δ over
    another power of γ."""
    from scipy.stats import spearmanr

    ours, gammas, deltas = result.last("ClippedGossip"), result.gammas, result.deltas
    alone = {"1/γ²": 1 / gammas**2, "δ": deltas}
    powers = {"δ/γ": deltas / gammas, "δ/γ³": deltas / gammas**3}
    measures = {"δ/γ²": result.ratios, **alone, **powers}
    shares = {name: _explained_share(values, ours) for name, values in measures.items()}
    seen = np.maximum(ours, NOTHING)
    ranks = {name: float(spearmanr(values, seen).statistic) for name, values in measures.items()}

    def best(held: Mapping[str, float], among: Mapping[str, Floats]) -> bool:
        return held["δ/γ²"] > max(held[name] for name in among)

    def said(held: Mapping[str, float], among: Mapping[str, Floats]) -> str:
        return ", ".join(f"by {name} {held[name]:.3f}" for name in among)

    def correlation(most: float) -> float:
        few = ours <= most
        return float(np.corrcoef(result.ratios[few], ours[few])[0, 1])

    parts = [correlation(tenths * INITIAL / 10) for tenths in range(1, 10)]
    yield Claim(
        text="δ/γ² explains the error better than γ or δ alone",
        ours=f"{shares['δ/γ²']:.3f}",
        verdict=_agreed(best(shares, alone), best(ranks, alone)),
        note=f"variance explained; {said(shares, alone)}. Rank correlation: by δ/γ² {ranks['δ/γ²']:.3f}, "
        f"{said(ranks, alone)}",
        source='"not observed by looking at γ⁻² or δ_max alone".',
    )
    yield exact(
        "δ/γ² explains the error best",
        f"{shares['δ/γ²']:.3f}",
        best(shares, alone | powers),
        note=f"variance explained; {said(shares, powers)}",
        source='Caption: "best explained by the magnitude of (δ/γ²)".',
    )
    yield exact(
        "error almost linear in δ/γ²",
        f"{correlation(np.inf):.2f}",
        correlation(np.inf) > 0.95,
        note="correlation over all settings; the error cannot go far above 10,000. Of settings with errors "
        f"up to 1,000, 2,000 … 9,000 it is {min(parts):.2f} to {max(parts):.2f}: the cut-off decides",
        source='"increases almost linearly with δ_max/γ²"; the bound of 0.95 is ours.',
    )


def _explained_share(values: Floats, errors: Floats) -> float:
    """R² of the best non-decreasing function."""
    from sklearn.isotonic import IsotonicRegression

    fitted = IsotonicRegression().fit_transform(values, errors)
    return float(1 - np.square(errors - fitted).sum() / np.square(errors - errors.mean()).sum())
