"""The demonstration: `python -m kvreshard.demo` moves pages between formats and checks every element."""
