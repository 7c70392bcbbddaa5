"""Errors with which a trace answers questions for values, also those that the model's code catches.

::

    try:
        scale = x.max().item()      a call: a number
    except RuntimeError:            the trace: an error, and so another network than that of a call
        scale = 1.0
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor

from graphs.common.replaced import LOCK, replaced
from graphs.importers.source_location import OF_VALUES, UnansweredError, at_caller


@contextmanager
def all_answered() -> Iterator[None]:
    """Raise UnansweredError after a trace in which a question had no answer, though the trace went on."""
    unanswered: list[tuple[BaseException, str]] = []

    def noted(of: type[BaseException]) -> Callable[..., None]:
        original = of.__init__

        def begin(self: BaseException, *args: Any, **kwargs: Any) -> None:
            unanswered.append((self, at_caller()))
            original(self, *args, **kwargs)

        return begin

    def numpy(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        try:
            return of_tensors(self, *args, **kwargs)
        except RuntimeError as error:
            if not self.requires_grad:  # else a call raises it, too
                unanswered.append((error, at_caller()))
            raise

    with LOCK, ExitStack() as replacements:
        of_tensors: Any = Tensor.numpy
        for each in OF_VALUES:
            replacements.enter_context(replaced(each, "__init__", noted(each)))
        replacements.enter_context(replaced(Tensor, "numpy", numpy))
        yield
    for error, place in unanswered:
        raise UnansweredError(place) from error
