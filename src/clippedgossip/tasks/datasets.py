"""Data sets as tensors: the embedded digits, the fetched ones from the cache, and a user's own."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clippedgossip.decode import Kind
from clippedgossip.errors import DataError
from clippedgossip.randomness import generator
from clippedgossip.tasks.sources.cache import cache_dir
from clippedgossip.tasks.sources.catalog import CATALOG, File, Spec
from clippedgossip.tasks.sources.fetch import EMBEDDED, fetch_spec, file_state, find_spec
from clippedgossip.tasks.sources.formats import read_cifar, read_idx

Data = Tensor | NDArray[Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class DataSet:
    """Images (count, channels, height, width) or rows of features, with labels 0 … classes-1.

    Inputs are kept in their own dtype (bytes, for images: a quarter of the memory of floats); `normalise`
    gives the inputs of a model. `mean` and `std` are per channel, in the units of the raw inputs.
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int
    mean: Tensor | None = None
    std: Tensor | None = None

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.shape))
        return (
            f"DataSet({self.name!r}: {len(self.train_y):,} to train, {len(self.test_y):,} to test, "
            f"inputs {shape}, {self.classes} classes)"
        )

    def __post_init__(self) -> None:
        for part, x, y in (("train", self.train_x, self.train_y), ("test", self.test_x, self.test_y)):
            if len(x) != len(y) or not len(x):
                raise DataError(
                    f"{self.name}: {len(x)} {part} inputs for {len(y)} labels; give one label per input"
                )
            if y.dtype != torch.long or y.ndim != 1:
                raise DataError(
                    f"{self.name}: {part} labels have shape {tuple(y.shape)} and dtype {y.dtype}\n"
                    "give the number of each input's class, from 0, in a 1-dim tensor of dtype torch.long"
                )
            if int(y.min()) < 0 or int(y.max()) >= self.classes:
                raise DataError(
                    f"{self.name}: {part} labels go from {y.min()} to {y.max()}; "
                    f"{self.classes} classes are whole numbers from 0 to {self.classes - 1}"
                )
        if self.train_x.shape[1:] != self.test_x.shape[1:]:
            raise DataError(
                f"{self.name}: train inputs have shape {tuple(self.train_x.shape[1:])} "
                f"but test inputs {tuple(self.test_x.shape[1:])}; they must agree"
            )

    @classmethod
    def of(
        cls,
        train_x: Data,
        train_y: Data,
        test_x: Data,
        test_y: Data,
        name: str = "own",
        *,
        classes: int | None = None,
    ) -> Self:
        """A user's own tensors, arrays or tables. Inputs of any floating type become float32, as models are.
        Labels are whole numbers of any type; without `classes`, there are as many classes as the labels show.

            data = cg.tasks.DataSet.of(x, y, x_test, y_test)
        """
        train_x, test_x = _inputs(train_x, "train"), _inputs(test_x, "test")
        train_y, test_y = _labels(train_y, "train"), _labels(test_y, "test")
        if classes is None:
            classes = 1 + max((int(y.max()) for y in (train_y, test_y) if y.numel()), default=0)
        return cls(name=name, train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y, classes=classes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.train_x.shape[1:])

    def normalise(self, x: Tensor) -> Tensor:
        """Inputs as a model sees them, with any leading dimensions; a user's own are left as they are."""
        return x if self.mean is None or self.std is None else (x - self.mean) / self.std

    def to(self, device: torch.device | str) -> "DataSet":
        """The same data on another device."""
        return replace(self, **moved_tensors(self, device))

    def normalised(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """train_x, train_y, test_x, test_y with the inputs normalised."""
        return self.normalise(self.train_x), self.train_y, self.normalise(self.test_x), self.test_y

    def take(self, train: int, test: int | None = None, *, seed: int = 0) -> "DataSet":
        """A random part of the data, the same for the same seed."""
        test = len(self.test_y) if test is None else test
        for part, count, have in (("train", train, len(self.train_y)), ("test", test, len(self.test_y))):
            if not 1 <= count <= have:
                raise DataError(f"{self.name} has {have} {part} samples; {count} cannot be taken")
        rows = torch.randperm(len(self.train_y), generator=generator(seed, "take", 0))[:train]
        held = torch.randperm(len(self.test_y), generator=generator(seed, "take", 1))[:test]
        return replace(
            self,
            train_x=self.train_x[rows],
            train_y=self.train_y[rows],
            test_x=self.test_x[held],
            test_y=self.test_y[held],
        )

    def part(self, samples: int | None, test_samples: int | None) -> "DataSet":
        """This number of samples, all by default; the same for every run."""
        if samples is None and test_samples is None:
            return self
        return self.take(len(self.train_y) if samples is None else samples, test_samples)


def _inputs(x: Data, part: str) -> Tensor:
    inputs = _tensor(x, f"{part} inputs")
    if not inputs.is_floating_point():
        return inputs
    if not bool(torch.isfinite(inputs).all()):
        raise DataError(f"some {part} inputs are NaN or infinite\nleave those samples out, or fill the gaps")
    return inputs.float()


def _labels(y: Data, part: str) -> Tensor:
    labels = _tensor(y, f"{part} labels")
    return labels if labels.is_floating_point() else labels.long()


def _tensor(values: Data, what: str) -> Tensor:
    """A tensor from anything that PyTorch or numpy can read; copied only if necessary."""
    if isinstance(values, Tensor):
        return values.detach()
    try:
        return torch.from_numpy(np.require(values, requirements=["C", "W"]))
    except (TypeError, ValueError) as error:
        kind = getattr(values, "dtype", type(values).__name__)
        raise DataError(
            f"{what} of type {kind} cannot be made a tensor\n"
            "give numbers of one shape for every sample; for labels, the number of the class, from 0"
        ) from error


def moved_tensors(owner: object, device: torch.device | str) -> dict[str, Any]:
    """Every tensor field of a dataclass, on another device."""
    return {name: value.to(device) for name, value in vars(owner).items() if isinstance(value, Tensor)}


def load(name: str, root: Path | str | None = None) -> DataSet:
    """A data set by name. It is never downloaded here: `fetch` does that.

    If it is not in the cache, it is copied from `root` or from the folder that CLIPPEDGOSSIP_DATA names.
    """
    return _digits() if name == EMBEDDED else load_spec(find_spec(name), root)


def _loader(name: str) -> Callable[[], DataSet]:
    return lambda: load(name)


DATASET = Kind(
    word="data set",
    names={name: _loader(name) for name in (EMBEDDED, *CATALOG)},
    base=DataSet,
    group="clippedgossip.datasets",
    fix="make it a function that returns clippedgossip.tasks.DataSet.of(x, y, x_test, y_test)",
    reserved=(
        "root",
        "partition",
        "alpha",
        "samples",
        "test_samples",
        "augment",
        "byzantine_share",
        "byzantine_copies",
        "poison",
    ),
    error=DataError,
)


@lru_cache(maxsize=4)
def load_part(
    name: str, root: str | None = None, samples: int | None = None, test_samples: int | None = None
) -> DataSet:
    """A data set or a part of it, the same part for every run. It is cached, so that runs of one process
    share one copy."""
    return load(name, root).part(samples, test_samples)


def load_spec(spec: Spec, root: Path | str | None = None) -> DataSet:
    """`load` for a data set that need not be in the catalogue."""
    folder = cache_dir() / spec.name
    if any(file_state(folder, file) != "ready" for file in spec.files):
        fetch_spec(spec, folder=root, online=False)
    read = _read_idx if spec.format == "idx" else _read_cifar
    (train_x, train_y), (test_x, test_y) = read(folder, spec.train), read(folder, spec.test)
    return DataSet(
        name=spec.name,
        train_x=torch.from_numpy(train_x.copy()),
        train_y=torch.from_numpy(train_y.astype(np.int64)),
        test_x=torch.from_numpy(test_x.copy()),
        test_y=torch.from_numpy(test_y.astype(np.int64)),
        classes=spec.classes,
        mean=_per_channel(spec.mean, 255.0),
        std=_per_channel(spec.std, 255.0),
    )


Arrays = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def _read_idx(folder: Path, files: tuple[File, ...]) -> Arrays:
    images, labels = (read_idx((folder / file.name).read_bytes(), file.name) for file in files)
    return images[:, None], labels


def _read_cifar(folder: Path, files: tuple[File, ...]) -> Arrays:
    batches = [read_cifar((folder / file.name).read_bytes(), file.name) for file in files]
    return np.concatenate([x for x, _ in batches]), np.concatenate([y for _, y in batches])


def _per_channel(values: tuple[float, ...], scale: float) -> Tensor:
    return scale * torch.tensor(values)[:, None, None]


def _digits() -> DataSet:
    """scikit-learn's 1,797 digits of 8×8 grey values 0 … 16, a fifth of every class held out for testing."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = torch.from_numpy(digits.images.astype(np.uint8))[:, None]
    y = torch.from_numpy(digits.target.astype(np.int64))
    order = torch.randperm(len(y), generator=generator(0, "digits"))
    members = [order[y[order] == label] for label in range(10)]
    train = torch.cat([rows[len(rows) // 5 :] for rows in members]).sort().values
    test = torch.cat([rows[: len(rows) // 5] for rows in members]).sort().values
    return DataSet(
        name=EMBEDDED,
        train_x=x[train],
        train_y=y[train],
        test_x=x[test],
        test_y=y[test],
        classes=10,
        mean=_per_channel((0.3057,), 16.0),
        std=_per_channel((0.3764,), 16.0),
    )
