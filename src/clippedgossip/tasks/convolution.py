"""Convolutions of all workers on a GPU, each with a kernel of its own, without shifted copies of the images.

`vmap` makes one grouped convolution of `nn.Conv2d`: a group is a worker. `GroupedConvolutions` puts the
operations of this file in its place after the compiler has written down the forward and the backward pass, so
they need no derivatives. In memory, images are (workers, images, rows, columns, channels) and kernels
(workers, filters, rows, columns, channels). Products are summed in float32, always in the same order.
"""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

from clippedgossip.tasks.module_function import WIDTH

aten, own = torch.ops.aten, torch.ops.clippedgossip
LAYOUT = (
    aten.permute.default,
    aten.clone.default,
    aten.reshape.default,
    aten.view.default,
    aten._unsafe_view.default,
)
FIXED = (torch.Tag.needs_fixed_stride_order,)
"""The compiler lays the operands out as the graph says, not as the kernel that writes them would like."""
WEIGHTS = (64, 64, 128, 4, 3, 600)
"""Of the kernels' gradient: pixels at a time, filters and (tap, channel) pairs of a tile, warps, stages, and
about how many programs (an H200 has 132 multiprocessors)."""


class Shape(NamedTuple):
    """The constants of a convolution with stride 1; the kernels are compiled for each."""

    HIGH: int
    WIDE: int
    CHANNELS: int
    FILTERS: int
    ROWS: int
    COLUMNS: int
    UP: int
    LEFT: int

    @classmethod
    def of(cls, x: Tensor, w: Tensor, up: int, left: int) -> "Shape":
        """Of images x and kernels w, with so many zeros around an image."""
        _, _, high, wide, channels = x.shape
        _, filters, rows, columns, _ = w.shape
        return cls(high, wide, channels, filters, rows, columns, up, left)

    @property
    def out(self) -> tuple[int, int]:
        """Rows and columns of the output."""
        return self.HIGH + 2 * self.UP - self.ROWS + 1, self.WIDE + 2 * self.LEFT - self.COLUMNS + 1

    @property
    def backwards(self) -> "Shape":
        """Of the convolution that makes the images' gradient of the output's."""
        up, left = self.ROWS - 1 - self.UP, self.COLUMNS - 1 - self.LEFT
        return Shape(*self.out, self.FILTERS, self.CHANNELS, self.ROWS, self.COLUMNS, up, left)


def tile_of(size: int, most: int) -> int:
    """The largest power of two that divides a size, up to `most`."""
    return min(size & -size, most)


@torch.library.custom_op("clippedgossip::convolve", mutates_args=(), device_types="cuda", tags=FIXED)
def convolve(x: Tensor, w: Tensor, up: int, left: int) -> Tensor:
    """The convolution of images x and kernels w."""
    from clippedgossip.tasks import convolution_cuda as kernels

    out: Tensor = _output(x, w, up, left)
    kernels.convolve(x, w, out, Shape.of(x, w, up, left), kernels.FORWARD, False)
    return out


@convolve.register_fake
def _output(x: Tensor, w: Tensor, up: int, left: int) -> Tensor:
    return x.new_empty(*x.shape[:2], *Shape.of(x, w, up, left).out, w.shape[1])


@torch.library.custom_op("clippedgossip::convolve_back", mutates_args=(), device_types="cuda", tags=FIXED)
def convolve_back(x: Tensor, w: Tensor, y: Tensor, up: int, left: int) -> Tensor:
    """The gradient of the images x, from the gradient y of the output."""
    from clippedgossip.tasks import convolution_cuda as kernels

    out = torch.empty_like(x)
    kernels.convolve(y, w, out, Shape.of(x, w, up, left).backwards, kernels.BACKWARD, True)
    return out


@convolve_back.register_fake
def _gradient(x: Tensor, w: Tensor, y: Tensor, up: int, left: int) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("clippedgossip::convolve_weights", mutates_args=(), device_types="cuda", tags=FIXED)
def convolve_weights(x: Tensor, w: Tensor, y: Tensor, up: int, left: int) -> Tensor:
    """The gradient of the kernels w from that of the output, as float32 (parts, …): sums over some pixels."""
    from clippedgossip.tasks import convolution_cuda as kernels

    out: Tensor = _parts(x, w, y, up, left)
    kernels.weights(x, y, out, Shape.of(x, w, up, left))
    return out


@convolve_weights.register_fake
def _parts(x: Tensor, w: Tensor, y: Tensor, up: int, left: int) -> Tensor:
    tile_p, most_f, tile_n, _, _, programs = WEIGHTS
    n, filters = w.shape[:2]
    tiles = n * (filters // tile_of(filters, most_f)) * -(-w[0, 0].numel() // tile_n)
    parts = max(1, min(programs // tiles, y[0, ..., 0].numel() // (4 * tile_p)))
    return w.new_empty(parts, *w.shape, dtype=torch.float32)


class GroupedConvolutions(CustomGraphPass):
    """Replace grouped convolutions of bfloat16, and their gradients, by the operations of this file."""

    def uuid(self) -> Any:
        """Of the cache of compiled code."""
        return get_hash_for_files((__file__, str(Path(__file__).with_name("convolution_cuda.py"))))

    def __call__(self, graph: fx.Graph) -> None:
        """Change the graph in place."""
        self.graph = graph
        self.held: dict[tuple[Any, ...], fx.Node] = {}
        for node in list(graph.nodes):
            with graph.inserting_before(node):
                if node.target is aten.convolution.default and _fits(*node.args[:9]):
                    self._forward(node)
                elif node.target is aten.convolution_backward.default and _fits(*node.args[1:10]):
                    self._backward(node)
        graph.eliminate_dead_code()

    def _forward(self, node: fx.Node) -> None:
        x, w, bias, _, (up, left), _, _, _, n = node.args
        found = self._call(own.convolve.default, self._images(x, n), self._kernels(w, n), up, left)
        found = self._call(aten.permute.default, found, [1, 0, 4, 2, 3])
        found = self._call(aten.reshape.default, found, list(node.meta["val"].shape))
        if bias is not None:
            found = self._call(aten.add.Tensor, found, self._call(aten.reshape.default, bias, [1, -1, 1, 1]))
        node.replace_all_uses_with(found)

    def _backward(self, node: fx.Node) -> None:
        y, x, w, _, _, (up, left), _, _, _, n, _ = node.args
        given = (self._images(x, n), self._kernels(w, n), self._images(y, n), up, left)
        for use in list(node.users):
            if use.args[1] == 0:
                found = self._call(own.convolve_back.default, *given)
                found = self._call(aten.permute.default, found, [1, 0, 4, 2, 3])
            elif use.args[1] == 1:
                found = self._call(own.convolve_weights.default, *given)
                found = self._call(aten.sum.dim_IntList, found, [0])
                found = self._call(torch.ops.prims.convert_element_type.default, found, w.meta["val"].dtype)
                found = self._call(aten.permute.default, found, [0, 1, 4, 2, 3])
            else:
                found = self._call(aten.sum.dim_IntList, y, [0, 2, 3])
            found = self._call(aten.reshape.default, found, list(use.meta["val"].shape))
            use.replace_all_uses_with(found)

    def _images(self, x: fx.Node, n: int) -> fx.Node:
        """(b, n·c, h, w) as (n, b, h, w, c)."""
        b, _, high, wide = x.meta["val"].shape
        return self._laid(x, [b, n, -1, high, wide], [1, 0, 3, 4, 2])

    def _kernels(self, w: fx.Node, n: int) -> fx.Node:
        """(n·f, c, rows, columns) as (n, f, rows, columns, c)."""
        return self._laid(w, [n, -1, *w.meta["val"].shape[1:]], [0, 1, 3, 4, 2])

    def _laid(self, value: fx.Node, shape: list[int], order: list[int]) -> fx.Node:
        """One copy serves the forward and the backward pass, which `vmap` gives copies of their own."""
        steps, root = [str(shape)], value
        while root.target in LAYOUT:
            steps, root = [*steps, *map(str, root.args[1:])], root.args[0]
        name = (root, *steps)
        if name not in self.held:
            value = self._call(aten.reshape.default, value, shape)
            value = self._call(aten.permute.default, value, order)
            self.held[name] = self._call(aten.clone.default, value, memory_format=torch.contiguous_format)
        return self.held[name]

    def _call(self, target: Any, *args: Any, **options: Any) -> fx.Node:
        node = self.graph.call_function(target, args, options)
        values = [arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in args]
        with values[0].fake_mode:
            node.meta["val"] = target(*values, **options)
        return node


def _fits(
    x: Any, w: Any, bias: Any, stride: Any, padding: Any, dilation: Any, turned: bool, *more: Any
) -> bool:
    (*_, n), (filters, channels, *size) = more, w.meta["val"].shape
    return (
        n > 1
        and not turned
        and len(size) == 2
        and x.meta["val"].dtype == torch.bfloat16
        and set(dilation) == {1}
        and padding[0] < size[0]
        and padding[1] < size[1]
        and channels % WIDTH == filters // n % WIDTH == 0
        and set(stride) == {1}
    )
