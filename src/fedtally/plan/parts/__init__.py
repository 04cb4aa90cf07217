"""The parts of a plan: what follows from each of its kinds, in numbers, noise and flags.

A part is one class, with one field that says which kind it is. Ask a part for what follows from
its kind, and compare no kind. A part is made of values, so that it is there before a plan is.
"""
