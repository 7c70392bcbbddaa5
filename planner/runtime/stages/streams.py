"""Tensors on their way between places: by reference on the CPU, in the order of streams on GPUs."""

import torch


def bring(
    tensor: torch.Tensor, torch_device: torch.device, written: torch.cuda.Event | None, stream: torch.cuda.Stream | None
) -> torch.Tensor:
    """A tensor that another thread wrote, where and when the calling thread can read it.

    Args:
        tensor: on another device, or written by another stream of the same GPU, or on the CPU like everybody.
        torch_device: of the calling thread.
        written: is over when the tensor is there; None where it is there already.
        stream: of the calling thread, if it is a GPU's.
    """
    if stream is None and tensor.device == torch_device:
        return tensor
    if written is not None and stream is not None:
        stream.wait_event(written)
    elif written is not None:
        written.synchronize()  # a CPU device cannot wait on a stream
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))  # its memory is kept until this has read it
    return tensor if tensor.device == torch_device else tensor.to(torch_device, non_blocking=stream is not None)


def mark(device: torch.device) -> torch.cuda.Event:
    """An event that is over when the GPU has done what the calling thread has given it so far."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has no types here
    event.record(torch.cuda.current_stream(device))
    return event
