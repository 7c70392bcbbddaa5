"""Tensors that go from one torch device to another: by reference on the CPU, in the order of streams on GPUs."""

import torch


def bring(
    tensor: torch.Tensor, torch_device: torch.device, written: torch.cuda.Event | None, stream: torch.cuda.Stream | None
) -> torch.Tensor:
    """Return a tensor that another thread wrote, where and when the calling thread can read it.

    Args:
        tensor: a tensor of another device, of another stream of the same GPU, or of the CPU.
        torch_device: torch device of the calling thread.
        written: event that is over when the tensor is written; None if it is written already.
        stream: stream of the calling thread, if that is a GPU's.
    """
    if stream is None and tensor.device == torch_device:
        return tensor
    if written is not None and stream is not None:
        stream.wait_event(written)
    elif written is not None:
        written.synchronize()  # a CPU device cannot wait on a stream
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))  # keeps its memory until it has been read
    return tensor if tensor.device == torch_device else tensor.to(torch_device, non_blocking=stream is not None)


def mark(device: torch.device, timed: bool = False) -> torch.cuda.Event:
    """Return an event that is over when the GPU has done what the calling thread has given it so far.

    An event that is ``timed`` tells when that was.
    """
    event = torch.cuda.Event(enable_timing=timed)  # type: ignore[no-untyped-call]  # torch has no types here
    event.record(torch.cuda.current_stream(device))
    return event
