"""Kernels between pages and a buffer: the gather and scatter of packed and landed transfers.

The planner says what moves (:class:`kvreshard.Tiles`) and where (:class:`kvreshard.Chunk`); a :class:`Mover` moves it.
Backends, all with the same bytes:

========  ==============================================================================================
host      numpy on host memory: any object with a buffer, or a registered region
torch     torch on CPU or device tensors, through strided views
triton    one Triton kernel family on device memory; on host memory under Triton's interpreter, for tests
========  ==============================================================================================

No backend knows an offset that the planner did not give it.
"""

from .mover import Mover, Room, Work, mover

__all__ = ["Mover", "Room", "Work", "mover"]
