"""Strides of fake tensors as PyTorch's kernels give them, where its fake kernels give others.

Structured kernels and their fake versions share the code that decides on strides; these do not::

    batch norm        decomposed into arithmetic, which keeps any order of axes; the kernel knows contiguous tensors and
                      channels last only (``batch_norm_cpu`` in aten/src/ATen/native/Normalization.cpp)
    padding, pooling  kernels keep channels last (native/ReflectionPad.cpp, ReplicationPadding.cpp, MaxUnpooling.cpp,
                      ChannelShuffle.cpp), fake ones are contiguous
    two tensors       some functions of two tensors are decomposed for fake tensors, and a number or a broadcast tensor
                      among them changes the order of axes (native/TensorIterator.cpp)
    composed          PyTorch composes some operators otherwise under a mode, as if tensors had a subclass
                      (``isTensorSubclassLike`` in native/MaxPool1d.cpp, and native/Onehot.cpp), or in Python
                      (``py_impl`` in torch/_decomp/decompositions.py)
    convolution       ``_conv_determine_backend_memory_format`` asks which library computes it (native/Convolution.cpp),
                      and torch.export switches oneDNN off
    axes of one       a contiguous tensor may have any strides along axes of one element, as a channel of images with
                      channels last; elementwise kernels give them other ones than their fake versions, and ``cat``
                      and convolutions then take a tensor for one with channels last, or do not

Of the 168,905 results of torch's own samples of operators, with their axes permuted in several ways, channels last, and
every other element, they are those that differ.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import compress
from typing import Any

import torch
from torch import Tensor
from torch._dispatch.python import no_python_dispatcher
from torch._ops import OpOverload
from torch._prims_common import make_contiguous_strides_for
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from graphs.common.replaced import replaced

aten = torch.ops.aten


def _overloads(*packets: Any) -> frozenset[OpOverload]:
    return frozenset(getattr(packet, name) for packet in packets for name in packet.overloads())


COMPOSED = _overloads(aten.upsample_nearest1d, aten._upsample_nearest_exact1d) | {
    *(aten.max_pool1d.default, aten.one_hot.default, aten.multilabel_margin_loss_forward.default)
}
"""Operators that PyTorch composes of others before fake tensors see them."""
MISSHAPEN = frozenset({aten.multilabel_margin_loss_forward.default})
"""Operators whose fake kernels give other shapes, too."""
INDEXED = MISSHAPEN | {aten.one_hot.default} | _overloads(aten.max_unpool2d, aten.max_unpool3d)
"""Operators that read indices, of which 0 is always one; others may divide by what they read."""
EXECUTED = (
    COMPOSED
    | {aten.div.Tensor_mode, aten.div.Scalar_mode}
    | _overloads(
        *(aten.native_batch_norm, aten._native_batch_norm_legit, aten._native_batch_norm_legit_no_training),
        *(aten._batch_norm_with_update, aten.native_dropout_backward),
        *(aten.reflection_pad3d, aten.replication_pad3d, aten.max_unpool2d, aten.channel_shuffle),
        *(aten.copysign, aten.floor_divide, aten.heaviside, aten.logaddexp, aten.ldexp),
        *(aten.logical_and, aten.logical_or, aten.logical_xor, aten.xlogy, aten.special_xlog1py),
        *(aten.binary_cross_entropy, aten.log_sigmoid_forward, aten.isin, aten.angle),
    )
)
"""Operators that are executed once, unless all that they read is contiguous."""
CONVOLUTIONS = frozenset({aten.convolution.default, aten._convolution.default})
COMPOSITE, AUTOGRAD = torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Autograd


@contextmanager
def strides_of_kernels() -> Iterator[None]:
    """Give the results of operators on fake tensors the strides that they have on a CPU in a run.

    For those that are composed, PyTorch's dispatcher in Python has to be on, as it is in a trace.
    """
    dispatch = FakeTensorMode.dispatch

    def dispatched(mode: FakeTensorMode, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in CONVOLUTIONS:
            with _with_onednn():
                return dispatch(mode, func, types, args, kwargs)
        result = dispatch(mode, func, types, args, kwargs)
        executed = func in EXECUTED or torch.Tag.pointwise in func.tags
        return _laid_as_executed(mode, func, args, kwargs or {}, result) if executed else result

    with ExitStack() as replacements:
        replacements.enter_context(replaced(FakeTensorMode, "dispatch", dispatched))
        for func in COMPOSED:
            replacements.enter_context(_composed(func))
        yield


@contextmanager
def _composed(func: OpOverload) -> Iterator[None]:
    """Give the result of an operator that is composed of others the strides that it has as a whole."""

    def laid(compose: Callable[..., Any]) -> Callable[..., Any]:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            result = compose(*args, **kwargs)
            mode = next((leaf.fake_mode for leaf in pytree.tree_leaves(result) if isinstance(leaf, FakeTensor)), None)
            return result if mode is None else _laid_as_executed(mode, func, args, kwargs, result)

        return kernel

    kernels: dict[Any, Callable[..., Any]] = dict(func.py_kernels)
    composing = {key: kernels[key] for key in (COMPOSITE, AUTOGRAD) if key in kernels}
    composing = composing or {COMPOSITE: partial(func._op_dk, COMPOSITE)}
    with replaced(func, "py_kernels", kernels | {key: laid(compose) for key, compose in composing.items()}):
        func._dispatch_cache.clear()
        try:
            yield
        finally:
            func._dispatch_cache.clear()


@contextmanager
def _with_onednn() -> Iterator[None]:
    """Switch oneDNN on, without the warning of `torch.backends.mkldnn.flags` on TF32."""
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(True)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


def _laid_as_executed(mode: FakeTensorMode, func: OpOverload, args: Any, kwargs: Any, result: Any) -> Any:
    """Return the results of an operator on fake tensors with the strides of real ones where these may differ."""
    read = (leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))
    tensors = [tensor for tensor in read if tensor.layout is torch.strided]
    contiguous = [tensor.is_contiguous() for tensor in tensors]
    unlike = func in MISSHAPEN or (func in EXECUTED and not all(contiguous))
    if not unlike and not any(compress(map(_is_laid_otherwise, tensors), contiguous)):
        return result
    filled = 0 if func in INDEXED else 1

    def real(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        made = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="cpu").fill_(filled)
        return made.requires_grad_(leaf.requires_grad)  # on which the kernel of a pooling depends

    with _disable_current_modes(), no_python_dispatcher():
        executed = func(*pytree.tree_map(real, args), **pytree.tree_map(real, kwargs))

    def laid(fake: Any, made: Any) -> Any:
        if not isinstance(fake, Tensor) or (fake.shape, fake.stride()) == (made.shape, made.stride()):
            return fake
        if fake.numel() != made.numel():  # statistics of a batch norm in evaluation, which nothing reads
            return fake
        empty = torch.empty_strided(made.shape, made.stride(), dtype=fake.dtype, device=fake.device)
        return empty.copy_(fake.reshape(made.shape))  # with its gradients

    leaves, spec = pytree.tree_flatten(result)
    with mode:
        return pytree.tree_unflatten(map(laid, leaves, pytree.tree_leaves(executed)), spec)


def _is_laid_otherwise(tensor: Tensor) -> bool:
    """Return whether a contiguous tensor has other strides than a new one, which it can along axes of one element."""
    return tensor.stride() != make_contiguous_strides_for(tensor.shape)
