"""Brute force: every element of every page, one by one, with no arithmetic on strides.

It shares no code with the planner, reads notations with a parser of its own, and is meant to be obviously right
rather than fast. `notation` says where a page keeps its elements, `model` describes what two ranks hold, `transfer`
pairs the bytes that must move, `cases` reads the worked pairs of formats.
"""
