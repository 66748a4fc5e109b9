"""Connectors over agents of one process that copy memory themselves: each step is the test's to let happen."""
