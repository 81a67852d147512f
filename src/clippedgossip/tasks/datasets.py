"""Data sets as tensors: the embedded digits, the fetched ones from the cache, and a user's own."""

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clippedgossip.decode import Kind
from clippedgossip.devices import free_memory
from clippedgossip.errors import DataError, unknown_name
from clippedgossip.randomness import generator
from clippedgossip.tasks.sources.cache import cache_dir
from clippedgossip.tasks.sources.catalog import CATALOG, File, Spec
from clippedgossip.tasks.sources.fetch import EMBEDDED, fetch_spec, file_state, find_spec
from clippedgossip.tasks.sources.formats import read_cifar, read_idx

Data = Tensor | NDArray[Any]
TENSORS = ("train_x", "train_y", "test_x", "test_y", "mean", "std")
KEEP = ("auto", "device", "host")
FILES = "npy"  # the name of data in files of the user's own
CHECKED = 1 << 24  # numbers that are looked at together
IGNORED = -100  # a label that no loss and no metric counts, as in PyTorch: padding of a sequence
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)  # PyTorch reads them, but computes nothing with them


@dataclass(frozen=True, kw_only=True, eq=False)
class DataSet:
    """Inputs and targets. Inputs are a tensor with a row for each sample, or tuples and dicts of such
    tensors: `module(x)`, `module(*x)` or `module(**x)` takes a batch of them. Targets are class numbers
    0 … classes-1 (for each sample, or for each place of a sequence), or real numbers (`classes` is None).

    Inputs are kept in their own dtype (bytes, for images: a quarter of the memory of floats); `normalise`
    gives the inputs of a model. `mean` and `std` are per channel, in the units of the raw inputs.
    """

    name: str
    train_x: Any
    train_y: Any
    test_x: Any
    test_y: Any
    classes: int | None
    mean: Tensor | None = None
    std: Tensor | None = None
    keep: str = "auto"
    """Where the samples are: on the device that trains, or in host memory, drawn ahead of each step."""
    in_files: bool = False  # whether the training data are files that are mapped into memory

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.shape))
        return (
            f"DataSet({self.name!r}: {len(self.train_y):,} to train, {len(self.test_y):,} to test, "
            f"inputs {shape}, {self.classes} classes)"
        )

    def __post_init__(self) -> None:
        if self.keep not in KEEP:
            raise DataError(unknown_name("keep", str(self.keep), KEEP))
        for part, x, y in (("train", self.train_x, self.train_y), ("test", self.test_x, self.test_y)):
            counts = [len(leaf) for leaf in leaves((x, y))]
            if not all(counts):
                raise DataError(f"{self.name}: there are no {part} samples\ngive at least one")
            if len(inputs := {len(leaf) for leaf in leaves(x)}) > 1:
                raise DataError(
                    f"{self.name}: {part} inputs have {' and '.join(map(str, sorted(inputs)))} rows\n"
                    "every tensor of a tuple or dict needs one row for each sample"
                )
            if len(set(counts)) != 1:
                what = "label" if self.classes is not None else "target"
                raise DataError(
                    f"{self.name}: {counts[0]} {part} inputs for {counts[-1]} {what}s; "
                    f"give one {what} per input"
                )
            if self.classes is not None:
                self._check_labels(part, y)
        both = {"inputs": (self.train_x, self.test_x), "targets": (self.train_y, self.test_y)}
        for what, (one, other) in both.items():
            for fact, of in (("shape", _row), ("dtype", _dtype)):
                same = mapped(of, one) == mapped(of, other)
                if not same and (what == "inputs" or (isinstance(one, Tensor) and isinstance(other, Tensor))):
                    raise DataError(
                        f"{self.name}: train {what} have {fact} {mapped(of, one)} but test {what} "
                        f"{mapped(of, other)}; they must agree"
                    )

    def _check_labels(self, part: str, y: Any) -> None:
        if not isinstance(y, Tensor) or y.dtype not in (torch.long, *UNSIGNED):
            kind = f"shape {tuple(y.shape)} and dtype {y.dtype}" if isinstance(y, Tensor) else "no tensor"
            raise DataError(
                f"{self.name}: {part} labels have {kind}\n"
                "give the number of each input's class, from 0, in a tensor of dtype torch.long"
            )
        counted = [part[part != IGNORED] for _, part in parts_of(y)]
        bounds = [part.aminmax() for part in counted if part.numel()]
        if not bounds:
            raise DataError(
                f"{self.name}: all {part} labels are {IGNORED}, which does not count\n"
                "give at least one sample a class, from 0"
            )
        low, high = min(int(low) for low, _ in bounds), max(int(high) for _, high in bounds)
        if low < 0 or high >= (self.classes or 0):
            raise DataError(
                f"{self.name}: {part} labels go from {low} to {high}; "
                f"{self.classes} classes are whole numbers from 0 to {(self.classes or 0) - 1}\n"
                "number the classes from 0, or give DataSet.of(…, classes=…) as many as there are"
            )

    @classmethod
    def of(
        cls,
        train_x: Any,
        train_y: Any,
        test_x: Any,
        test_y: Any,
        name: str = "own",
        *,
        classes: int | None = None,
    ) -> Self:
        """A user's own tensors, arrays or tables, or tuples and dicts of them. Floating types become float32,
        as models are. Targets that are whole numbers are classes; without `classes`, there are as many as the
        labels show. Targets that are not are real values.

            data = cg.tasks.DataSet.of(x, y, x_test, y_test)
        """
        in_files = any(isinstance(leaf, np.memmap) for leaf in leaves((train_x, train_y)))
        train_x, test_x = _inputs(train_x, "train"), _inputs(test_x, "test")
        train_y, test_y = _inputs(train_y, "train", "targets"), _inputs(test_y, "test", "targets")
        whole = [y for y in leaves((train_y, test_y)) if not y.is_floating_point()]
        if whole and len(whole) != len(leaves((train_y, test_y))) and isinstance(train_y, Tensor):
            raise DataError(
                f"{name}: train targets are {train_y.dtype}, but test targets {test_y.dtype}\n"
                "give both as whole numbers (classes), or both as real numbers"
            )
        if whole and isinstance(train_y, Tensor):
            train_y, test_y = (y if y.dtype in UNSIGNED else y.long() for y in (train_y, test_y))
            if classes is None:
                most = (int(part.max()) for y in whole for _, part in parts_of(y) if part.numel())
                classes = 1 + max([0, *most])
        return cls(
            name=name,
            train_x=train_x,
            train_y=train_y,
            test_x=test_x,
            test_y=test_y,
            classes=classes,
            in_files=in_files,
        )

    @classmethod
    def from_files(cls, folder: Path | str) -> Self:
        """train_x.npy, train_y.npy, test_x.npy and test_y.npy of a folder. They may be larger than memory:
        samples are read when they are drawn, and once before, part by part, to look for NaN."""
        from clippedgossip.tasks.large_data import open_files

        train_x, train_y, test_x, test_y = open_files(Path(folder))
        return cls.of(train_x, train_y, test_x, test_y, Path(folder).name)

    @property
    def count(self) -> int:
        """Samples to train on."""
        return len(leaves(self.train_y)[0])

    @property
    def tests(self) -> int:
        """Samples to test on."""
        return len(leaves(self.test_y)[0])

    @property
    def labels(self) -> Tensor:
        """What a partition divides by: the targets (count,), if each is one number; else (count, …) as they
        are, or (count, 0) if they are several tensors."""
        y = self.train_y
        if not isinstance(y, Tensor):
            return torch.zeros(self.count, 0)
        return wide(y.flatten()) if y.numel() == len(y) else y

    @property
    def shape(self) -> Any:
        """Shape of one input, in the structure of the inputs."""
        return mapped(_row, self.train_x)

    def normalise(self, x: Any) -> Any:
        """Inputs as a model sees them, with any leading dimensions; a user's own are left as they are."""
        return x if self.mean is None or self.std is None else (x - self.mean) / self.std

    def to(self, device: torch.device | str) -> "DataSet":
        """The same data on another device; samples that stay in host memory are not moved."""
        parts = ("mean", "std") if self.on_host(torch.device(device)) else TENSORS
        held = {name: getattr(self, name) for name in parts}
        return replace(self, **{name: mapped(lambda x: x.to(device), value) for name, value in held.items()})

    def on_host(self, device: torch.device) -> bool:
        """Whether samples stay in host memory, or in files, and are drawn ahead of each step."""
        size = sum(x.numel() * x.element_size() for x in leaves([getattr(self, n) for n in TENSORS[:4]]))
        return stays_on_host(size, self.keep, device, in_files=self.in_files)

    def samples(self, rows: Tensor, device: torch.device) -> tuple[Any, Any]:
        """These training samples on a device: inputs, normalised, and targets."""
        held = self.train_x, self.train_y
        x, y = mapped(lambda leaf: at(leaf, rows.to(leaf.device)).to(device), held)
        return self.normalise(x), y

    def take(self, train: int, test: int | None = None, *, seed: int = 0) -> "DataSet":
        """A random part of the data, the same for the same seed."""
        whole = {"train": self.count, "test": self.tests}
        test = whole["test"] if test is None else test
        for part, count in (("train", train), ("test", test)):
            if not 1 <= count <= whole[part]:
                raise DataError(f"{self.name} has {whole[part]} {part} samples; {count} cannot be taken")
        rows = torch.randperm(whole["train"], generator=generator(seed, "take", 0))[:train]
        held = torch.randperm(whole["test"], generator=generator(seed, "take", 1))[:test]
        return replace(
            self,
            train_x=at(self.train_x, rows),
            train_y=at(self.train_y, rows),
            test_x=at(self.test_x, held),
            test_y=at(self.test_y, held),
        )

    def part(self, samples: int | None, test_samples: int | None) -> "DataSet":
        """This number of samples, all by default; the same for every run."""
        if samples is None and test_samples is None:
            return self
        return self.take(self.count if samples is None else samples, test_samples)


def stays_on_host(size: int, keep: str, device: torch.device, *, in_files: bool = False) -> bool:
    """Whether so many bytes of samples stay in host memory or in files: if `keep` says so, or if they would
    take more than half of what a GPU has free. A GPU that is only planned for is taken to have enough."""
    if keep != "auto":
        return keep == "host"
    if device.type == "cpu":
        return in_files
    here = device.type == "cuda" and torch.cuda.is_available()
    return here and size > free_memory(device) // 2


def leaves(tree: Any) -> list[Tensor]:
    """The tensors of tuples, lists and dicts of tensors."""
    if isinstance(tree, dict):
        return [leaf for part in tree.values() for leaf in leaves(part)]
    if isinstance(tree, tuple | list):
        return [leaf for part in tree for leaf in leaves(part)]
    return [] if tree is None else [tree]


def mapped(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """The same structure, with `function` of each tensor, and of those in its place in other structures."""
    if isinstance(tree, dict):
        return {key: mapped(function, part, *(o[key] for o in others)) for key, part in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(mapped(function, *parts) for parts in zip(tree, *others, strict=True))
    return None if tree is None else function(tree, *others)


def at(tree: Any, rows: Any) -> Any:
    """These rows of every tensor, in a type that PyTorch computes with."""
    return wide(tree[rows]) if isinstance(tree, Tensor) else mapped(lambda leaf: at(leaf, rows), tree)


def wide(value: Tensor) -> Tensor:
    """Numbers of a dtype that PyTorch only reads, as int64."""
    return value.long() if value.dtype in UNSIGNED else value


def parts_of(value: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Consecutive rows, each with the number of the first: files may be larger than the memory."""
    step = max(1, CHECKED // max(1, value[0].numel() if len(value) else 1))
    return ((start, at(value, slice(start, start + step))) for start in range(0, len(value), step))


def cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Floating values in this dtype."""
    return value.to(dtype) if value.is_floating_point() else value


def _row(leaf: Tensor) -> tuple[int, ...]:
    return tuple(leaf.shape[1:])


def _dtype(leaf: Tensor) -> torch.dtype:
    return torch.int64 if leaf.dtype in UNSIGNED else leaf.dtype


def _inputs(x: Any, part: str, what: str = "inputs") -> Any:
    if isinstance(x, dict | tuple) and not x:
        raise DataError(f"{part} {what} are {x!r}, without a tensor\ngive a row for each sample")
    if isinstance(x, dict) or (isinstance(x, tuple) and all(hasattr(leaf, "__len__") for leaf in x)):
        kept = x.items() if isinstance(x, dict) else enumerate(x)
        found = {key: _inputs(leaf, part, what) for key, leaf in kept}
        return found if isinstance(x, dict) else tuple(found.values())
    inputs = _tensor(x, f"{part} {what}")
    kinds = {"nested": inputs.is_nested, "one number": not inputs.ndim, "without values": inputs.is_meta}
    kinds |= {"masked": hasattr(inputs, "get_mask"), "quantized": inputs.is_quantized}
    kinds |= {str(inputs.layout): inputs.layout != torch.strided}
    if any(kinds.values()):
        raise DataError(
            f"{part} {what} are {next(kind for kind, found in kinds.items() if found)}\n"
            "give a dense tensor or array with a row for each sample: x.to_dense(), or x.to_padded_tensor(0) "
            "of a nested one, x.to_tensor(0) of a masked one, x.dequantize() of a quantized one"
        )
    if inputs.is_complex() and what == "targets":
        raise DataError(f"{part} {what} are complex numbers\ngive real ones, such as torch.view_as_real(y)")
    if not inputs.is_floating_point():
        return inputs if isinstance(x, np.memmap) else wide(inputs)
    for start, some in parts_of(inputs):
        bad = ~torch.isfinite(some.float())
        if bool(bad.any()):
            row = start + int(bad.reshape(len(bad), -1).any(1).int().argmax())
            raise DataError(
                f"some {part} {what} are NaN or infinite in float32, the first in row {row}\n"
                "leave those samples out, or fill the gaps"
            )
    return inputs.float()


def _tensor(values: Any, what: str) -> Tensor:
    """A tensor from anything that PyTorch or numpy can read; copied only if necessary."""
    if isinstance(values, Tensor):
        return values.detach()
    if np.ma.is_masked(values):
        row = int(np.ma.getmaskarray(values).reshape(len(values), -1).any(1).argmax())
        raise DataError(
            f"some {what} are masked, the first in row {row}\nleave those samples out, or fill the gaps"
        )
    try:
        if isinstance(values, np.memmap):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # files are not written to, and nobody does
                return torch.from_numpy(values)
        array = np.require(values, requirements=["C", "W"])
        if array.dtype == object and array.ndim == 2 and hasattr(values, "items"):  # a table of several types
            array = np.column_stack([_column(name, said, what) for name, said in values.items()])
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
    except (TypeError, ValueError) as error:
        kind = getattr(values, "dtype", type(values).__name__)
        raise DataError(
            f"{what} of type {kind} cannot be made a tensor\n"
            "give numbers of one shape for every sample, in the byte order of this machine; for labels, the "
            "number of the class, from 0"
        ) from error


def _column(name: object, values: Any, what: str) -> NDArray[Any]:
    """A column of a table."""
    column = np.asarray(values)
    if column.dtype.kind not in "biuf":
        raise DataError(
            f"column {name!r} of {what} is of type {values.dtype}\n"
            "make it numbers without gaps: pandas.get_dummies(x) for text, x.fillna(…) for gaps"
        )
    return column


def load(name: str, root: Path | str | None = None) -> DataSet:
    """A data set by name. It is never downloaded here: `fetch` does that.

    If it is not in the cache, it is copied from `root` or from the folder that CLIPPEDGOSSIP_DATA names.
    """
    return _digits() if name == EMBEDDED else load_spec(find_spec(name), root)


def _loader(name: str) -> Callable[[], DataSet]:
    return lambda: load(name)


def _npy(
    path: Annotated[str, "a folder with train_x.npy, train_y.npy, test_x.npy and test_y.npy"],
    digest: str | None = None,
    config_folder: Path | None = None,
) -> DataSet:
    """The .npy files of a folder, beside the config or by its whole path; the digest was compared before."""
    return DataSet.from_files((config_folder or Path()) / path)


DATASET = Kind(
    word="data set",
    names={name: _loader(name) for name in (EMBEDDED, *CATALOG)} | {FILES: _npy},
    offered=("config_folder",),
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
        "keep",
    ),
    error=DataError,
)


@lru_cache(maxsize=4)
def load_part(
    name: str, root: str | None = None, samples: int | None = None, test_samples: int | None = None
) -> DataSet:
    """A data set, or the same part of it for every run. It is cached: runs of a process share one copy."""
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
    table = _digits_table()
    x = torch.from_numpy(table[:, :64]).reshape(-1, 1, 8, 8)
    y = torch.from_numpy(table[:, 64].astype(np.int64))
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


def _digits_table() -> NDArray[np.uint8]:
    """(1797, 65) a digit's 64 grey values, and which digit it is. Read from scikit-learn's file, since to
    import scikit-learn takes longer than a small run."""
    package = importlib.util.find_spec("sklearn")
    try:
        path = Path(str(package and package.origin)).parent / "datasets" / "data" / "digits.csv.gz"
        return np.loadtxt(path, dtype=np.uint8, delimiter=",")
    except OSError:  # a later scikit-learn may keep it elsewhere
        from sklearn.datasets import load_digits

        digits = load_digits()
        return np.column_stack([digits.data, digits.target]).astype(np.uint8)
