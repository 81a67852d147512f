"""The released numbers and the findings of the text, beside ours."""

from collections.abc import Mapping

import numpy as np

from clippedgossip.paper.consensus_figures.chains import BETAS, SETTINGS, ChainErrors, Floats
from clippedgossip.report.claims import Claim, Claims

INITIAL = 10_000.0
CONVERGED = 1.0
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


def claims(result: ChainErrors) -> Claims:
    """All of them."""
    return Claims([*_published(result), *_findings(result)], "The paper's findings and released results")


def _published(result: ChainErrors) -> list[Claim]:
    """Each released number. Ours, rounded to as many digits, must be the same."""
    errors = dict(zip(SETTINGS, result.last("ClippedGossip"), strict=True))
    claims = []
    for (beta, delta), paper in PUBLISHED.items():
        digits = len(paper.partition(".")[2])
        ours = float(errors[beta, delta])
        claims.append(
            Claim(
                text=f"ClippedGossip, β={beta:g}, δ={delta:g}",
                paper=paper,
                ours=f"{ours:.{digits}f}",
                holds=round(ours, digits) == float(paper),
            )
        )
    return claims


def _findings(result: ChainErrors) -> list[Claim]:
    """What the text says about the two figures."""
    ours, weighted = result.last("ClippedGossip"), result.last("TM*")
    naive = np.minimum(result.last("TM"), result.last("Median"))
    told = np.maximum(ours, weighted) > NOTHING
    return [
        _stuck(result, "TM"),
        _stuck(result, "Median"),
        _identical(result),
        _stuck(result, "Median*", most_delta=0.4),
        *_weighted(result),
        _better(ours[told], weighted[told], "TM*", f"; settings where either is above {NOTHING:g}"),
        _better(ours, naive, "TM and Median", "; β=0.001, δ=0.5 gave 10011 in the paper as well"),
        Claim(
            text="error grows with δ, and as γ falls",
            ours="always" if _monotone(ours) else "not always",
            holds=_monotone(ours),
        ),
        _threshold(result),
        *_explained(result),
    ]


def _identical(result: ChainErrors) -> Claim:
    apart = float(np.abs(result.errors["TM"] - result.errors["Median"]).max())
    return Claim(
        text="TM and Median have identical performance",
        ours=f"{apart:.2g}",
        holds=apart < 1e-6 * INITIAL,
        note="largest difference of their errors, all settings and rounds",
    )


def _threshold(result: ChainErrors) -> Claim:
    """The δ/γ² up to which ClippedGossip is excellent: all settings below converge, none far above does."""
    fine = result.last("ClippedGossip") < CONVERGED
    threshold = float(result.ratios[~fine].min())
    latest = float(result.ratios[fine].max())
    return Claim(
        text="ClippedGossip is excellent below a threshold of δ/γ², degrades above",
        ours=f"{threshold:.3g}",
        holds=latest < 10 * threshold,
        note=f"smallest δ/γ² with an error above {CONVERGED:g}; the largest with one below is {latest:.3g}",
    )


def _weighted(result: ChainErrors) -> list[Claim]:
    """Where TM* converges, and whether another baseline does anywhere."""
    converged = {
        rule: [setting for setting, error in zip(SETTINGS, errors[-1], strict=True) if error < CONVERGED]
        for rule, errors in result.errors.items()
    }
    ours = converged["TM*"]
    least_beta = min((beta for beta, _ in ours), default=0.0)
    most_delta = max((delta for _, delta in ours), default=1.0)
    others = max(len(converged[rule]) for rule in ("TM", "Median", "Median*"))
    return [
        Claim(
            text="TM* converges only for large β, δ ≤ 0.3",
            ours=f"{len(ours)} of {len(SETTINGS)}",
            holds=most_delta <= 0.3 and least_beta > min(BETAS),
            note=f"error below {CONVERGED:g}: β ≥ {least_beta:g} and δ ≤ {most_delta:g} only",
        ),
        Claim(
            text="TM* does better than other baselines",
            ours=f"{len(ours)} against {others}",
            holds=len(ours) > others,
            note="settings on which they converge",
        ),
    ]


def _stuck(result: ChainErrors, rule: str, most_delta: float | None = None) -> Claim:
    """A rule leaves the error as it was."""
    errors = result.last(rule)[result.deltas <= (most_delta or 1)]
    low, high = f"{errors.min():.0f}", f"{errors.max():.0f}"
    return Claim(
        text=f"{rule} never moves" + (f" for δ ≤ {most_delta:g}" if most_delta else ""),
        paper=f"{INITIAL:.0f}",
        ours=low if low == high else f"{low}–{high}",
        holds=bool(np.allclose(errors, INITIAL, rtol=1e-9)),
    )


def _better(ours: Floats, theirs: Floats, names: str, note: str) -> Claim:
    """ClippedGossip has the smaller error. Where both are stuck, a difference of 0.2 % does not count."""
    return Claim(
        text=f"ClippedGossip does better than {names}",
        ours=f"{(ours < theirs).sum()} of {len(ours)}",
        holds=bool((ours <= 1.002 * theirs).all()),
        note=f"the rest within 0.2 %{note}",
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


def _explained(result: ChainErrors) -> list[Claim]:
    """How much of the error a non-decreasing function of δ/γ², of 1/γ² or of δ explains."""
    ours = result.last("ClippedGossip")
    shares = {
        name: _explained_share(values, ours)
        for name, values in (
            ("δ/γ²", result.ratios),
            ("1/γ²", 1 / result.gammas**2),
            ("δ", result.deltas),
        )
    }
    early = ours <= ours.max() / 2
    correlation = float(np.corrcoef(result.ratios[early], ours[early])[0, 1])
    return [
        Claim(
            text="δ/γ² explains the error best",
            ours=f"{shares['δ/γ²']:.3f}",
            holds=max(shares, key=shares.__getitem__) == "δ/γ²" and shares["δ/γ²"] > 0.99,
            note=f"variance explained; by 1/γ² {shares['1/γ²']:.3f}, by δ {shares['δ']:.3f}",
        ),
        Claim(
            text="error almost linear in δ/γ²",
            ours=f"{correlation:.2f}",
            holds=correlation > 0.95,
            note="correlation, for errors up to half of the largest; above, they saturate",
        ),
    ]


def _explained_share(values: Floats, errors: Floats) -> float:
    """R² of the best non-decreasing function."""
    from sklearn.isotonic import IsotonicRegression

    fitted = IsotonicRegression().fit_transform(values, errors)
    return float(1 - np.square(errors - fitted).sum() / np.square(errors - errors.mean()).sum())
