"""A plan and a request for every test of the native module."""

from __future__ import annotations

import numpy as np
import pytest

import kvreshard as kvr
from tests.bindings.given import TOKENS, rank, request


@pytest.fixture(scope="module")
def plan() -> kvr.Plan:
    return kvr.plan(rank(), rank("n h k[d] v[d]", side="remote"))


@pytest.fixture
def wanted() -> kvr.Request:
    return request(3 * TOKENS, [4, 2, 9], np.array([7, 1, 30], dtype=np.int64))
