"""The native module as Python sees it: arrays, ids, errors, values, threads and memory."""
