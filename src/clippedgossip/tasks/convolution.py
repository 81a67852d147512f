"""Convolutions of all workers on a GPU, each with a kernel of its own, without shifted copies of the images.

`vmap` makes one grouped convolution of `nn.Conv2d`: a group is a worker. `GroupedConvolutions` puts the
operations of this file in its place after the compiler has written down the forward and the backward pass, so
they need no derivatives. In memory, images are (workers, images, rows, columns, channels) and kernels
(workers, filters, rows, columns, channels). Products are summed in float32, always in the same order.

Hopper's TF32 products read both operands along the sum. So in TF32 the images' gradient takes kernels that
lie (workers, channels, rows, columns, filters), and the kernels' gradient, a sum over images and pixels,
takes images that lie (workers, rows, columns, channels, images).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

from clippedgossip.tasks.module_function import WIDTH

aten, prims, own = torch.ops.aten, torch.ops.prims, torch.ops.clippedgossip
VIEWS = (aten.reshape.default, aten.view.default, aten._unsafe_view.default)
COPIES = (aten.clone.default, *VIEWS)
FIXED = (torch.Tag.needs_fixed_stride_order,)
"""The compiler lays the operands out as the graph says, not as the kernel that writes them would like."""
BODIES: dict[Any, Callable[..., Tensor]] = {}
"""What each operation calls."""
PROGRAMS = 600
"""About how many programs share the kernels' gradient; an H200 has 132 multiprocessors."""
WEIGHTS = (64, 128, 128, 4, 3)
"""Of the kernels' gradient: pixels at a time, the most filters and (tap, channel) pairs of a tile, warps,
stages."""
BY_IMAGE = (128, 256, 32, 8, 3)
"""The same in TF32: the most filters and channels of a tile, images at a time, warps, stages."""
SMALL_TILE = 64 * 64
"""Of filters and channels: a GPU works on several smaller tiles at a time."""


class Shape(NamedTuple):
    """The constants of a convolution; the kernels are compiled for each. Output pixel (0, 0) starts `UP` rows
    above the image. Its neighbours start `STEP` further on. `SPREAD` − 1 zeros lie between two pixels of the
    image: so the gradient of a convolution with steps is a convolution too."""

    HIGH: int
    WIDE: int
    CHANNELS: int
    FILTERS: int
    ROWS: int
    COLUMNS: int
    UP: int
    LEFT: int
    OUT_HIGH: int
    OUT_WIDE: int
    STEP: int
    SPREAD: int = 1

    @classmethod
    def of(cls, x: Sequence[int], w: Sequence[int], up: int, left: int, step: int) -> "Shape":
        """Of images x (…, rows, columns, channels) and kernels w (…, filters, rows, columns, channels), with
        so many zeros around an image."""
        (high, wide, channels), (filters, rows, columns, _) = x[-3:], w[-4:]
        out = (high + 2 * up - rows) // step + 1, (wide + 2 * left - columns) // step + 1
        return cls(high, wide, channels, filters, rows, columns, up, left, *out, step)

    @property
    def backwards(self) -> "Shape":
        """Of the convolution that makes the images' gradient of the output's."""
        up, left = self.ROWS - 1 - self.UP, self.COLUMNS - 1 - self.LEFT
        given, made = (self.OUT_HIGH, self.OUT_WIDE, self.FILTERS), (self.HIGH, self.WIDE)
        return Shape(*given, self.CHANNELS, self.ROWS, self.COLUMNS, up, left, *made, 1, self.STEP)


def tile_of(size: int, most: int) -> int:
    """The largest power of two that divides a size, up to `most`."""
    return min(size & -size, most)


def operation(body: Callable[..., Tensor]) -> Any:
    """An operation of PyTorch's, on a GPU, with the name and the arguments of this function."""
    name = body.__name__
    found = torch.library.custom_op(
        f"clippedgossip::{name}", body, mutates_args=(), device_types="cuda", tags=FIXED
    )
    BODIES[getattr(own, name).default] = body
    return found


@operation
def convolve(x: Tensor, w: Tensor, up: int, left: int, step: int) -> Tensor:
    """The convolution of images x and kernels w."""
    from clippedgossip.tasks import convolution_cuda as kernels

    out: Tensor = _output(x, w, up, left, step)
    kernels.convolve(x, w, out, Shape.of(x.shape, w.shape, up, left, step))
    return out


@convolve.register_fake
def _output(x: Tensor, w: Tensor, up: int, left: int, step: int) -> Tensor:
    shape = Shape.of(x.shape, w.shape, up, left, step)
    return x.new_empty(*x.shape[:2], shape.OUT_HIGH, shape.OUT_WIDE, shape.FILTERS)


@operation
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


@operation
def convolve_back(w: Tensor, y: Tensor, size: Sequence[int], up: int, left: int, step: int) -> Tensor:
    """The gradient of images of this size, (rows, columns, channels), from the gradient y of the output. In
    float32 the kernels w are turned round."""
    from clippedgossip.tasks import convolution_cuda as kernels

    out: Tensor = _gradient(w, y, size, up, left, step)
    turned = w.dtype == torch.float32
    kernel = [y.shape[-1], *w.shape[2:4], size[2]]
    kernels.convolve(y, w, out, Shape.of(size, kernel, up, left, step).backwards, turn=not turned)
    return out


@convolve_back.register_fake
def _gradient(w: Tensor, y: Tensor, size: Sequence[int], up: int, left: int, step: int) -> Tensor:
    return y.new_empty(*y.shape[:2], *size)


@operation
def convolve_weights(x: Tensor, y: Tensor, size: Sequence[int], up: int, left: int, step: int) -> Tensor:
    """The gradient of kernels of this size, (rows, columns), from that of the output, as (parts, …): sums
    over some pixels."""
    from clippedgossip.tasks import convolution_cuda as kernels

    out: Tensor = _parts(x, y, size, up, left, step)
    kernels.weights(x, y, out, Shape.of(x.shape, out.shape, up, left, step))
    return out


@convolve_weights.register_fake
def _parts(x: Tensor, y: Tensor, size: Sequence[int], up: int, left: int, step: int) -> Tensor:
    tile_p, most_f, tile_n, *_ = WEIGHTS
    n, channels, filters = len(x), x.shape[-1], y.shape[-1]
    tiles = n * (filters // tile_of(filters, most_f)) * -(-size[0] * size[1] * channels // tile_n)
    return _room(x, (n, filters, *size, channels), PROGRAMS // tiles, y[0, ..., 0].numel() // (4 * tile_p))


@operation
def weights_by_image(x: Tensor, y: Tensor, size: Sequence[int], up: int, left: int, step: int) -> Tensor:
    """The same from images and gradients (workers, rows, columns, channels, images)."""
    from clippedgossip.tasks import convolution_cuda as kernels

    out: Tensor = _parts_by_image(x, y, size, up, left, step)
    shape = Shape.of(x.shape[1:4], [y.shape[3], *size, x.shape[3]], up, left, step)
    kernels.weights_by_image(x, y, out, shape)
    return out


@weights_by_image.register_fake
def _parts_by_image(x: Tensor, y: Tensor, size: Sequence[int], up: int, left: int, step: int) -> Tensor:
    (n, _, _, channels, _), (_, high, wide, filters, images) = x.shape, y.shape
    tile_f, tile_c = tile_of(filters, BY_IMAGE[0]), tile_of(channels, BY_IMAGE[1])
    tiles = n * size[0] * size[1] * (filters // tile_f) * (channels // tile_c)
    programs = PROGRAMS * max(1, SMALL_TILE // (tile_f * tile_c))
    return _room(
        x, (n, filters, *size, channels), programs // tiles, high * wide * images // (8 * BY_IMAGE[2])
    )


def _room(like: Tensor, shape: Sequence[int], enough: int, most: int) -> Tensor:
    """For the parts of a gradient: as many as keep the GPU busy. More than one are added in float32."""
    parts = max(1, min(enough, most))
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
                elif node.target is aten.max_pool2d_with_indices_backward.default:
                    self._pool_backward(node)
        self._merge_views()
        graph.eliminate_dead_code()

    def _merge_views(self) -> None:
        """Leave out views that undo each other. `vmap` joins workers and channels for each convolution; the
        compiler would simplify the indices of both views for every kernel, which takes seconds."""
        for node in self.graph.nodes:
            if node.target in VIEWS:
                before = node
                while before.target in VIEWS:
                    before = before.args[0]
                    if before.meta["val"].shape == node.meta["val"].shape:
                        node.replace_all_uses_with(before)
            elif node.target is aten.permute.default and node.args[0].target is aten.permute.default:
                before, order = node.args[0].args
                node.args = (before, [order[i] for i in node.args[1]])

    def _forward(self, node: fx.Node) -> None:
        x, w, bias, (step, _), (up, left), _, _, _, n = node.args
        found = self._call(own.convolve.default, self._images(x, n), self._kernels(w, n), up, left, step)
        found = self._call(aten.permute.default, found, [1, 0, 4, 2, 3])
        if bias is not None:
            found = self._call(aten.add.Tensor, found, self._call(aten.reshape.default, bias, [n, -1, 1, 1]))
        node.replace_all_uses_with(self._call(aten.reshape.default, found, list(node.meta["val"].shape)))

    def _backward(self, node: fx.Node) -> None:
        y, x, w, _, (step, _), (up, left), _, _, _, n, _ = node.args
        for use in list(node.users):
            if use.args[1] == 0:
                found = self._images_gradient(x, w, y, n, (up, left, step))
                found = self._call(aten.permute.default, found, [1, 0, 4, 2, 3])
            elif use.args[1] == 1:
                found = self._kernels_gradient(x, w, y, n, (up, left, step))
                found = self._call(aten.permute.default, found, [0, 1, 4, 2, 3])
            else:
                found = self._call(aten.sum.dim_IntList, y, [0, 2, 3])
            found = self._call(aten.reshape.default, found, list(use.meta["val"].shape))
            use.replace_all_uses_with(found)

    def _images_gradient(self, x: fx.Node, w: fx.Node, y: fx.Node, n: int, steps: Sequence[int]) -> fx.Node:
        _, channels, *size = x.meta["val"].shape
        if x.meta["val"].dtype == torch.bfloat16:
            kernels = self._kernels(w, n)
        else:
            kernels = self._call(own.turn.default, self._by_worker(w, n))
        size = [*size, channels // n]
        return self._call(own.convolve_back.default, kernels, self._images(y, n), size, *steps)

    def _kernels_gradient(self, x: fx.Node, w: fx.Node, y: fx.Node, n: int, steps: Sequence[int]) -> fx.Node:
        size = list(w.meta["val"].shape[2:])
        if x.meta["val"].dtype == torch.bfloat16:
            laid = self._images(x, n), self._images(y, n)
            found = self._call(own.convolve_weights.default, *laid, size, *steps)
        else:
            by_image = self._images(x, n, [1, 3, 4, 2, 0]), self._images(y, n, [1, 3, 4, 2, 0])
            found = self._call(own.weights_by_image.default, *by_image, size, *steps)
        if len(found.meta["val"]) == 1:
            return self._call(aten.select.int, found, 0, 0)
        found = self._call(aten.sum.dim_IntList, found, [0])
        return self._call(prims.convert_element_type.default, found, w.meta["val"].dtype)

    def _pool_backward(self, node: fx.Node) -> None:
        """Behind a convolution, lay out the gradient and the places of the maxima channels last too, as the
        result will lie. Else each of its pixels reads them from all over the memory."""
        given, source, places = node.args[0], node.args[1], node.args[7]
        while isinstance(source, fx.Node) and source.target is not own.convolve.default:
            source = source.args[0] if source.args else None
        if source is None or given.meta["val"].dim() != 4:
            return
        node.update_arg(0, self._channels_last(given))
        while places.target in (*COPIES, aten.permute.default):
            places = places.args[0]
        if places.target is prims._low_memory_max_pool_offsets_to_indices.default:
            with self.graph.inserting_before(places):
                places.update_arg(0, self._channels_last(places.args[0]))

    def _channels_last(self, x: fx.Node) -> fx.Node:
        _, channels, high, wide = x.meta["val"].shape
        return self._in_order(x, [channels * high * wide, 1, wide * channels, channels])

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
            value = self._call(aten.clone.default, value, memory_format=torch.contiguous_format)
            self.held[name] = self._in_order(value, value.meta["val"].stride())
        return self.held[name]

    def _in_order(self, x: fx.Node, strides: Sequence[int]) -> fx.Node:
        """Lay it out once. Of a `clone` alone, the compiler makes one for each operation that uses it."""
        return self._call(prims.inductor_force_stride_order.default, x, list(strides))

    def _call(self, target: Any, *args: Any, **options: Any) -> fx.Node:
        node = self.graph.call_function(target, args, options)
        values = [arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in args]
        with values[0].fake_mode:
            node.meta["val"] = target(*values, **options)
            if target in BODIES and values[0].is_cuda:
                BODIES[target](*values)  # compiles its kernel elsewhere, while the compiler goes on
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
            and stride[0] == stride[1]
        )
