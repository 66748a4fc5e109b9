"""The tables of docs/vllm.md are what the tests of pairs expect. Needs no vLLM."""

from __future__ import annotations

from tests.vllm.conftest import ROOT
from tests.vllm.show import expected


def test_tables() -> None:
    """Both tables stand in the page, word for word."""
    page = (ROOT / "docs" / "vllm.md").read_text()
    for table in expected():
        assert table in page, f"docs/vllm.md lacks this table:\n{table}"
