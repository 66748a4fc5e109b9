"""The test suite; a package so that tests can share the oracle and the strategies."""
