"""A quadratic task whose L, σ², ζ² and optimum are known, for testing the theory."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from clippedgossip.errors import DataError
from clippedgossip.randomness import Word, generator, hash_normal


@dataclass(frozen=True, kw_only=True, eq=False)
class Quadratic:
    """f_i(x) = ½ (x-b_i)ᵀ A (x-b_i), its gradient observed with Gaussian noise of total variance σ².

    All f_i share A, so that ζ² = mean ‖∇f_i(x) - ∇f(x)‖² = mean ‖A(b_i - b̄)‖² holds with equality at every
    x, and f has its minimum at b̄. L is the largest eigenvalue of A.
    """

    curvature: Tensor  # A (d, d), symmetric and positive semidefinite, float64
    centres: Tensor  # b (n, d), one row per node, float64
    sigma2: float
    seed: int

    @property
    def smoothness(self) -> float:
        """L."""
        return float(torch.linalg.eigvalsh(self.curvature)[-1])

    @property
    def zeta2(self) -> float:
        """ζ², the mean squared distance of the nodes' gradients from their mean."""
        spread = (self.centres - self.optimum) @ self.curvature
        return float(spread.square().sum(-1).mean())

    @property
    def optimum(self) -> Tensor:
        """x* = b̄."""
        return self.centres.mean(0)

    def loss(self, x: Tensor) -> Tensor:
        """f(x) = mean_i f_i(x) for x (*lead, d)."""
        apart = x[..., None, :] - self.centres
        return (apart @ self.curvature).mul(apart).sum(-1).mean(-1) / 2

    def exact(self, x: Tensor, nodes: Tensor) -> Tensor:
        """∇f_i(x_i) for x (n, d)."""
        return torch.matmul(x - self.centres[nodes], self.curvature)

    def gradients(self, x: Tensor, nodes: Tensor, round: Word) -> Tensor:
        """g_i(x_i) = ∇f_i(x_i) + noise for x (n, d); the noise is fresh for each (seed, node, round)."""
        places = torch.arange(x.shape[-1], device=x.device)
        noise = hash_normal(self.seed, "quadratic", nodes[:, None], round, places, dtype=x.dtype)
        return self.exact(x, nodes) + noise * math.sqrt(self.sigma2 / x.shape[-1])


def quadratic(
    nodes: int,
    dim: int,
    *,
    seed: int,
    smoothness: float = 1.0,
    convexity: float = 0.1,
    sigma2: float = 0.0,
    zeta2: float = 0.0,
) -> Quadratic:
    """A random task with exactly these L, μ, σ² and ζ²."""
    if not 0 <= convexity <= smoothness or smoothness == 0 or min(sigma2, zeta2) < 0:
        raise DataError(
            f"quadratic task with L={smoothness}, μ={convexity}, σ²={sigma2}, ζ²={zeta2}; "
            "it needs 0 ≤ μ ≤ L, L > 0, σ² ≥ 0 and ζ² ≥ 0"
        )
    if zeta2 and nodes < 2:
        raise DataError(f"ζ²={zeta2} needs at least 2 nodes; one node alone has ζ²=0")
    draw = generator(seed, "quadratic task")
    basis = torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64, generator=draw)).Q
    values = torch.linspace(convexity, smoothness, dim, dtype=torch.float64)
    if dim == 1:
        values.fill_(smoothness)
    curvature = basis @ torch.diag(values) @ basis.T
    curvature = (curvature + curvature.T) / 2
    mean = torch.randn(dim, dtype=torch.float64, generator=draw)
    apart = torch.randn(nodes, dim, dtype=torch.float64, generator=draw)
    apart -= apart.mean(0)
    spread = (apart @ curvature).square().sum(-1).mean()
    apart *= (zeta2 / spread) ** 0.5 if zeta2 else 0.0
    return Quadratic(curvature=curvature, centres=mean + apart, sigma2=sigma2, seed=seed)
