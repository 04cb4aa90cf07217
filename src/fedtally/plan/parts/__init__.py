"""The parts of a plan: candidates, clients, vector, summing and protection.

Each part is a class. Its attribute `kind` names one of a few variants, such as "sketch" and
"histogram". The properties of the class return what differs between the variants. Code outside of
this package uses these properties, and never compares kinds. A part is made from plain values, so
that it can be used before there is a plan.
"""
