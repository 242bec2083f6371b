"""Effective recompute settings of recipes, resolved from git objects: nothing is checked out, imported or executed.

``source`` splits a file into statements and fingerprints its symbols, ``world`` is one revision's files, ``values`` are
what expressions evaluate to, ``interpreter`` and its neighbours evaluate statements, ``settings`` reads a recipe's
fields, ``timeline`` walks a range and says what each commit changes.
"""
