"""What code of a user may hold: each is made from a number that changes what it computes."""

import array
import collections
import contextlib
import dataclasses
import datetime
import enum
import functools
import itertools
import operator
import re
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from torch import nn
from torch.nn import functional

import clippedgossip as cg

GLOBAL: Any = 0


class Own:
    def __init__(self, value: Any) -> None:
        self.value = value

    @functools.cached_property
    def twice(self) -> Any:
        return 2 * self.value


class OwnDict(dict[str, Any]):
    pass


class OwnFloat(float):
    tag: Any = 0


class OwnModule(nn.Module):
    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held


class Pair(NamedTuple):
    one: Any
    two: Any


class Locked:
    def __init__(self, value: Any) -> None:
        self.lock, self.value, self.me = threading.Lock(), value, self
        self.weak = weakref.ref(self)


@dataclasses.dataclass(frozen=True, slots=True)
class Slots:
    value: Any


def wrapping(inner: Callable[..., Any], v: float) -> Callable[..., Any]:
    return functools.wraps(inner)(lambda *given: v * inner(*given))


def with_attribute(v: float) -> Any:
    def f() -> Any:
        return vars(f)["k"]

    return with_one(f, "k", v)


def with_property(v: float) -> type:
    class Made:
        @property
        def k(self) -> Any:
            return v

    return Made


def in_a_class(v: Any) -> type:
    class Made:
        held = v

    return Made


def with_one(made: Any, name: str, v: Any) -> Any:
    setattr(made, name, v)
    return made


def uses_global(v: Any) -> Callable[[], Any]:
    return types.FunctionType((lambda: GLOBAL).__code__, {"GLOBAL": v, "__name__": "main"})


def graph(v: float) -> Any:
    made = nx.Graph([(0, 1, {"w": v})])
    list(made.nodes)
    return made


def tensor_list(v: float) -> Any:
    a, b = Own(1), Own(1)
    return [a, b, a if v == 1 else b]


@enum.unique
class Choice(enum.Enum):
    ONE = 1.0
    TWO = 2.0


HELD: dict[str, Callable[[float], Any]] = {
    "distribution": lambda v: torch.distributions.Normal(0.0, v),
    "series": lambda v: pd.Series([1.0, v], index=["a", "b"]),
    "frame": lambda v: pd.DataFrame({"a": [1.0, v], "b": ["x", str(v)]}),
    "graph": graph,
    "sparse matrix": lambda v: sp.csr_matrix([[v]]),
    "polynomial": lambda v: np.poly1d([v]),
    "deque": lambda v: collections.deque([v]),
    "defaultdict": lambda v: collections.defaultdict(HELD["lambda"](v)),
    "counter": lambda v: collections.Counter({"a": int(v)}),
    "bytearray": lambda v: bytearray([int(v)]),
    "array": lambda v: array.array("d", [v]),
    "itemgetter": lambda v: operator.itemgetter(int(v)),
    "methodcaller": lambda v: operator.methodcaller("clip", v),
    "pattern": lambda v: re.compile(f"a{v}"),
    "date": lambda v: datetime.datetime(int(v), 1, 1),
    "iterator": lambda v: itertools.repeat(v),
    "dict.get": lambda v: {0: v}.get,
    "ndarray.item": lambda v: np.full(3, v).item,
    "tensor.mul": lambda v: torch.full((3,), v).mul,
    "float.__mul__": lambda v: v.__mul__,
    "rng.normal": lambda v: np.random.default_rng(int(v)).normal,
    "C function": lambda v: [torch.tanh, torch.sigmoid][int(v) - 1],
    "C method": lambda v: [torch.Tensor.tanh, torch.Tensor.sigmoid][int(v) - 1],
    "ufunc": lambda v: [np.sin, np.cos][int(v) - 1],
    "operator of PyTorch": lambda v: [torch.ops.aten.relu, torch.ops.aten.tanh][int(v) - 1],
    "lambda": lambda v: lambda: v,
    "cached function": lambda v: functools.cache(HELD["lambda"](v)),
    "partial": lambda v: functools.partial(operator.mul, v),
    "vectorized": lambda v: np.vectorize(lambda x: v * x),
    "vmap": lambda v: torch.vmap(lambda x: v * x),
    "compiled": lambda v: torch.compile(HELD["lambda"](v)),
    "no_grad": lambda v: torch.no_grad()(HELD["lambda"](v)),
    "context": lambda v: contextlib.nullcontext(v),
    "wrapper of a function of PyTorch": lambda v: wrapping(functional.cross_entropy, v),
    "another wrapper": lambda v: (
        functools.wraps(graph)(lambda: 1.0) if v == 1 else functools.wraps(graph)(lambda: 2.0)
    ),
    "attribute of a function": with_attribute,
    "property": with_property,
    "attribute of a class": lambda v: in_a_class(HELD["distribution"](v)),
    "global": lambda v: uses_global(HELD["distribution"](v)),
    "global function": lambda v: uses_global([torch.tanh, torch.sigmoid][int(v) - 1]),
    "subclass of dict": lambda v: OwnDict(a=v),
    "its attribute": lambda v: with_one(OwnDict(), "k", v),
    "attribute of a number": lambda v: with_one(OwnFloat(1.0), "tag", v),
    "named tuple": lambda v: Pair(1.0, v),
    "slots": Slots,
    "locked, with a cycle": Locked,
    "set": lambda v: {Slots(str(v + i)) for i in range(9)},
    "strings": lambda v: {str(v + i) for i in range(9)},
    "frozenset in code": lambda v: (
        (lambda x: x in {"a", "b", "c"}) if v == 1 else (lambda x: x in {"a", "b", "d"})
    ),
    "weak reference": lambda v: (held := Own(v), weakref.ref(held)),
    "dict of views": lambda v: types.MappingProxyType({"a": v}),
    "nesting": lambda v: [[1, 2], [3]] if v == 1 else [[1], [2, 3]],
    "which of two equals": tensor_list,
    "which of two functions": lambda v: [torch.relu, torch.tanh, [torch.relu, torch.tanh][int(v) - 1]],
    "enum": lambda v: Choice(v),
    "dates": lambda v: np.array([int(v)], dtype="datetime64[s]"),
    "words": lambda v: np.array([str(v)]),
    "objects": lambda v: np.array([Slots(v), None], dtype=object),
    "records": lambda v: np.array([(1, v)], dtype=np.dtype([("a", "i1"), ("b", "f8")], align=True)),
    "masked array": lambda v: np.ma.masked_array([1.0, 2.0], mask=[v == 1, False]),
    "sparse tensor": lambda v: torch.eye(2).mul(v).to_sparse(),
    "float8": lambda v: torch.tensor([v]).to(torch.float8_e4m3fn),
    "conjugate": lambda v: torch.tensor([v + 1j]).conj(),
    "recurrent module": lambda v: (torch.manual_seed(0), OwnModule(nn.LSTM(2, int(v)))),
    "module with a distribution": lambda v: OwnModule(HELD["distribution"](v)),
    "rule": lambda v: cg.rules.ClippedGossip(v),
    "network": lambda v: cg.Network(nx.path_graph(int(v) + 2)),
    "loss": lambda v: cg.tasks.Loss(HELD["lambda"](v)),
    "metric": lambda v: cg.tasks.mean_metric("m", HELD["lambda"](v)),
    "metric's name": lambda v: cg.tasks.mean_metric(str(v), functional.mse_loss),
    "metric's direction": lambda v: cg.tasks.mean_metric("m", functional.mse_loss, higher_is_better=v == 1),
    "metric of sums": lambda v: cg.tasks.Metric("m", HELD["lambda"](v), HELD["lambda"](1.0)),
}

try:
    from sklearn.linear_model import LinearRegression
    from sklearn.preprocessing import StandardScaler
    from sklearn.tree import DecisionTreeRegressor
except ImportError:
    pass
else:
    points = np.arange(8.0)[:, None]
    HELD["scaler"] = lambda v: StandardScaler().fit(v * points)
    HELD["regression"] = lambda v: LinearRegression().fit(points, v * points[:, 0])
    HELD["tree"] = lambda v: DecisionTreeRegressor(random_state=0).fit(points, v * points[:, 0])
HELD["scripted module"] = lambda v: torch.jit.script(Times(v))
HELD["scripted parts"] = lambda v: torch.jit.script(nn.Sequential(Times(v), nn.Tanh()))


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor
