"""What shows only after a while: leaks, and random transfers under random faults."""
