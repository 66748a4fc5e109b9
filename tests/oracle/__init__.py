"""Brute force: every element of every page, one by one, with no arithmetic on strides.

It shares no code with the planner, reads notations with a parser of its own, and is meant to be obviously right
rather than fast. `notation` says where a page keeps its elements, `model` describes what ranks hold, `transfer` pairs
the bytes that must move between two ranks, `engines` between all ranks of two engines. `cases` reads the worked pairs
of formats; `scenarios` has engines of every kind, laid out by `ranks`, and `enumerate` writes down what must come out.
"""
