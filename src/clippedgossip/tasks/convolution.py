"""Convolutions of all workers on a GPU, each with a kernel of its own, without shifted copies of the images.

`vmap` makes one grouped convolution of `nn.Conv2d`: a group is a worker. `GroupedConvolutions` puts the
operations of this file in its place after the compiler has written down the forward and the backward pass, so
they need no derivatives. In memory, images are (workers, images, rows, columns, channels) and kernels
(workers, filters, rows, columns, channels). Products are summed in float32, always in the same order.

Hopper's TF32 products read both operands along the sum. So in TF32 the images' gradient takes kernels that
lie (workers, channels, rows, columns, filters), and the kernels' gradient, a sum over images and pixels,
takes images that lie (workers, rows, columns, channels, images).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

from clippedgossip.tasks.module_function import WIDTH

aten, own = torch.ops.aten, torch.ops.clippedgossip
COPIES = (aten.clone.default, aten.reshape.default, aten.view.default, aten._unsafe_view.default)
FIXED = (torch.Tag.needs_fixed_stride_order,)
"""The compiler lays the operands out as the graph says, not as the kernel that writes them would like."""
PROGRAMS = 600
"""About how many programs share the kernels' gradient; an H200 has 132 multiprocessors."""
WEIGHTS = (64, 128, 128, 4, 3)
"""Of the kernels' gradient: pixels at a time, the most filters and (tap, channel) pairs of a tile, warps,
stages."""
BY_IMAGE = (128, 256, 32, 8, 3)
"""The same in TF32: the most filters and channels of a tile, images at a time, warps, stages."""


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
    kernels.convolve(x, w, out, Shape.of(x, w, up, left))
    return out


@convolve.register_fake
def _output(x: Tensor, w: Tensor, up: int, left: int) -> Tensor:
    return x.new_empty(*x.shape[:2], *Shape.of(x, w, up, left).out, w.shape[1])


@torch.library.custom_op("clippedgossip::turn", mutates_args=(), device_types="cuda", tags=FIXED)
def turn(w: Tensor) -> Tensor:
    """Kernels (n, filters, channels, rows, columns) turned round, as (n, channels, rows, columns, filters):
    the images' gradient is a convolution with them."""
    from clippedgossip.tasks import convolution_cuda as kernels

    out: Tensor = _turned(w)
    kernels.turn(w if w[0].is_contiguous() else w.contiguous(), out)
    return out


@turn.register_fake
def _turned(w: Tensor) -> Tensor:
    n, filters, *kernel = w.shape
    return w.new_empty(n, *kernel, filters)


@torch.library.custom_op("clippedgossip::convolve_back", mutates_args=(), device_types="cuda", tags=FIXED)
def convolve_back(x: Tensor, w: Tensor, y: Tensor, up: int, left: int) -> Tensor:
    """The gradient of the images x, from the gradient y of the output."""
    from clippedgossip.tasks import convolution_cuda as kernels

    out = torch.empty_like(x)
    kernels.convolve(y, w, out, Shape.of(x, w, up, left).backwards, turned=True)
    return out


@convolve_back.register_fake
def _gradient(x: Tensor, w: Tensor, y: Tensor, up: int, left: int) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("clippedgossip::convolve_weights", mutates_args=(), device_types="cuda", tags=FIXED)
def convolve_weights(x: Tensor, w: Tensor, y: Tensor, up: int, left: int) -> Tensor:
    """The gradient of the kernels w from that of the output, as (parts, …): sums over some pixels."""
    from clippedgossip.tasks import convolution_cuda as kernels

    out: Tensor = _parts(x, w, y, up, left)
    kernels.weights(x, y, out, Shape.of(x, w, up, left))
    return out


@convolve_weights.register_fake
def _parts(x: Tensor, w: Tensor, y: Tensor, up: int, left: int) -> Tensor:
    tile_p, most_f, tile_n, *_ = WEIGHTS
    n, filters = w.shape[:2]
    tiles = n * (filters // tile_of(filters, most_f)) * -(-w[0, 0].numel() // tile_n)
    return _room(w, w.shape, tiles, y[0, ..., 0].numel() // (4 * tile_p))


@torch.library.custom_op("clippedgossip::weights_by_image", mutates_args=(), device_types="cuda", tags=FIXED)
def weights_by_image(x: Tensor, y: Tensor, rows: int, columns: int, up: int, left: int) -> Tensor:
    """The same from images and gradients (workers, rows, columns, channels, images)."""
    from clippedgossip.tasks import convolution_cuda as kernels

    out: Tensor = _parts_by_image(x, y, rows, columns, up, left)
    _, high, wide, channels, _ = x.shape
    shape = Shape(high, wide, channels, y.shape[3], rows, columns, up, left)
    kernels.weights_by_image(x, y, out, shape)
    return out


@weights_by_image.register_fake
def _parts_by_image(x: Tensor, y: Tensor, rows: int, columns: int, up: int, left: int) -> Tensor:
    (n, _, _, channels, _), (_, high, wide, filters, images) = x.shape, y.shape
    tiles = n * rows * columns * (filters // tile_of(filters, BY_IMAGE[0]))
    tiles *= channels // tile_of(channels, BY_IMAGE[1])
    return _room(x, (n, filters, rows, columns, channels), tiles, high * wide * images // (8 * BY_IMAGE[2]))


def _room(like: Tensor, shape: tuple[int, ...], tiles: int, most: int) -> Tensor:
    """For the parts of a gradient: as many as keep the GPU busy. More than one are added in float32."""
    parts = max(1, min(PROGRAMS // tiles, most))
    return like.new_empty(parts, *shape, dtype=torch.float32 if parts > 1 else like.dtype)


class GroupedConvolutions(CustomGraphPass):
    """Replace grouped convolutions, and their gradients, by the operations of this file."""

    def __init__(self, precision: str) -> None:
        """Convolutions of float32 are replaced if this precision of products allows TF32."""
        self.dtypes = {"tf32": [torch.float32], "bfloat16": [torch.float32, torch.bfloat16]}.get(
            precision, []
        )

    def uuid(self) -> Any:
        """Of the cache of compiled code."""
        files = (__file__, str(Path(__file__).with_name("convolution_cuda.py")))
        return get_hash_for_files(files, str(self.dtypes))

    def __call__(self, graph: fx.Graph) -> None:
        """Change the graph in place."""
        self.graph = graph
        self.held: dict[tuple[Any, ...], fx.Node] = {}
        for node in list(graph.nodes):
            with graph.inserting_before(node):
                if node.target is aten.convolution.default and self._fits(*node.args[:9]):
                    self._forward(node)
                elif node.target is aten.convolution_backward.default and self._fits(*node.args[1:10]):
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
        for use in list(node.users):
            if use.args[1] == 0:
                found = self._images_gradient(x, w, y, up, left, n)
                found = self._call(aten.permute.default, found, [1, 0, 4, 2, 3])
            elif use.args[1] == 1:
                found = self._kernels_gradient(x, w, y, up, left, n)
                found = self._call(aten.permute.default, found, [0, 1, 4, 2, 3])
            else:
                found = self._call(aten.sum.dim_IntList, y, [0, 2, 3])
            found = self._call(aten.reshape.default, found, list(use.meta["val"].shape))
            use.replace_all_uses_with(found)

    def _images_gradient(self, x: fx.Node, w: fx.Node, y: fx.Node, up: int, left: int, n: int) -> fx.Node:
        if x.meta["val"].dtype == torch.bfloat16:
            laid = self._images(x, n), self._kernels(w, n), self._images(y, n)
            return self._call(own.convolve_back.default, *laid, up, left)
        rows, columns = w.meta["val"].shape[2:]
        around = rows - 1 - up, columns - 1 - left
        turned = self._call(own.turn.default, self._by_worker(w, n))
        return self._call(own.convolve.default, self._images(y, n), turned, *around)

    def _kernels_gradient(self, x: fx.Node, w: fx.Node, y: fx.Node, up: int, left: int, n: int) -> fx.Node:
        if x.meta["val"].dtype == torch.bfloat16:
            laid = self._images(x, n), self._kernels(w, n), self._images(y, n)
            found = self._call(own.convolve_weights.default, *laid, up, left)
        else:
            by_image = self._images(x, n, [1, 3, 4, 2, 0]), self._images(y, n, [1, 3, 4, 2, 0])
            size = w.meta["val"].shape[2:]
            found = self._call(own.weights_by_image.default, *by_image, *size, up, left)
        if len(found.meta["val"]) == 1:
            return self._call(aten.select.int, found, 0, 0)
        found = self._call(aten.sum.dim_IntList, found, [0])
        return self._call(torch.ops.prims.convert_element_type.default, found, w.meta["val"].dtype)

    def _images(self, x: fx.Node, n: int, order: Sequence[int] = (1, 0, 3, 4, 2)) -> fx.Node:
        """(b, n·c, h, w) as (n, b, h, w, c), or in another order of (b, n, c, h, w)."""
        b, _, high, wide = x.meta["val"].shape
        return self._laid(x, [b, n, -1, high, wide], list(order))

    def _kernels(self, w: fx.Node, n: int) -> fx.Node:
        """(n·f, c, rows, columns) as (n, f, rows, columns, c)."""
        return self._laid(w, [n, -1, *w.meta["val"].shape[1:]], [0, 1, 3, 4, 2])

    def _by_worker(self, w: fx.Node, n: int) -> fx.Node:
        """Kernels (n·f, c, rows, columns) as (n, f, c, rows, columns): as they were before `vmap` copied
        them, if it did."""
        shape = [n, w.meta["val"].shape[0] // n, *w.meta["val"].shape[1:]]
        found, before = None, w
        while before.target in COPIES:
            before = before.args[0]
            found = before if list(before.meta["val"].shape) == shape else found
        return found or self._call(aten.reshape.default, w, shape)

    def _laid(self, value: fx.Node, shape: list[int], order: list[int]) -> fx.Node:
        """One copy serves the forward and the backward pass, which `vmap` gives copies of their own."""
        steps, root = [str((shape, order))], value
        while root.target in (*COPIES, aten.permute.default):
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
        self, x: Any, w: Any, bias: Any, stride: Any, padding: Any, dilation: Any, turned: bool, *more: Any
    ) -> bool:
        (*_, n), (filters, channels, *size) = more, w.meta["val"].shape
        return (
            n > 1
            and not turned
            and len(size) == 2
            and x.meta["val"].dtype in self.dtypes
            and set(dilation) == {1}
            and padding[0] < size[0]
            and padding[1] < size[1]
            and channels % WIDTH == filters // n % WIDTH == 0
            and set(stride) == {1}
        )
