"""The parts of a plan: candidates, clients, vector, summing and protection.

A part is one class, and its field `kind` says which of a few kinds it is. Its properties return
what follows from the kind: call these, and do not compare kinds elsewhere. A part is made of plain
values, so that it can be made before there is a plan.
"""
