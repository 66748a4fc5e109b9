"""Whether pages are what a format says, asked of the engine's own writer.

A declared format is a claim. :func:`check_writer` puts it to the function that writes the cache: change some elements,
see which bytes move. :func:`infer` finds the format of a writer that declares none. :mod:`~kvreshard.probe.contact`
sends a marked page through writer, plan and reader before any request does, and compares sampled digests of pages on
both sides.

Offsets come from :meth:`kvreshard.PageFormat.offsets`; nothing here computes one. numpy is enough; torch tensors, on a
GPU too, are taken where torch is installed.
"""

from .contact import Marks, marks, page_digest
from .errors import NotANest, ProbeError, WriterMismatch
from .inference import infer
from .memory import PageMemory
from .sources import Source
from .writer import check_writer

__all__ = [
    "Marks",
    "NotANest",
    "PageMemory",
    "ProbeError",
    "Source",
    "WriterMismatch",
    "check_writer",
    "infer",
    "marks",
    "page_digest",
]
