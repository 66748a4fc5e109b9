"""Hypothesis strategies: page formats, ranks that hold them and requests between two ranks, as values of the oracle.

Pages stay small (a few hundred bytes, rarely above 4 KiB) so that the oracle can list every byte of a transfer.
"""

from tests.strategies.engines import exchanges
from tests.strategies.formats import Content, contents, notations, page_pairs, pages
from tests.strategies.transfers import Transfer, transfers

__all__ = ["Content", "Transfer", "contents", "exchanges", "notations", "page_pairs", "pages", "transfers"]
