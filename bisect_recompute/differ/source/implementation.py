from __future__ import annotations
def changes(before, after, told):
    return []
