"""Numbers as people of the field write them."""

from __future__ import annotations

from bisect_recompute.measurement.shift import Shift

_BINARY = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def amount(value: float | None, unit: str) -> str:
    """``71.42 GiB`` or ``412.3 TFLOP/s/GPU``; ``unit`` is a metric's."""
    if value is None:
        return "not measured"
    if unit == "steps/s":
        return f"{value:,.4g} {unit}"
    if unit != "bytes":
        return f"{value:,.1f} {unit}"
    for name, size in _BINARY:
        if abs(value) >= size:
            return f"{value / size:,.2f} {name}"
    return f"{value:,.0f} bytes"


def signed(value: float, unit: str) -> str:
    return ("+" if value > 0 else "") + amount(value, unit)


def percent(value: float | None) -> str:
    """``+3.1 %``, with more digits where fewer would show nothing."""
    if value is None:
        return ""
    return f"{value:+.{1 if abs(value) >= 0.1 else 3}f} %" if value else "0.0 %"


def change(shift: Shift) -> str:
    """``71.42 GiB -> 73.61 GiB (+2.19 GiB, +3.1 %)``"""
    before, after = amount(shift.good, shift.unit), amount(shift.bad, shift.unit)
    if shift.good is None or shift.bad is None:
        return f"{before} -> {after}"
    if shift.good == shift.bad:
        return f"{before}, the same at both"
    return f"{before} -> {after} ({signed(shift.bad - shift.good, shift.unit)}, {percent(shift.change_pct)})"
