"""What each recompute choice costs and saves against the same training without recomputation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bisect_recompute.probe.choices import CONTROL, Choice
from bisect_recompute.probe.result import ProbeResult

WORTH = 0.002
"""Share of the control's peak; a label that saves less is next to nothing and part of no combination."""


@dataclass(frozen=True)
class Row:
    choice: Choice
    result: ProbeResult | None
    ruled_out: str = ""
    """Why it was not measured: a check of the revision, with the way out."""

    @property
    def peak(self) -> int | None:
        """Bytes."""
        return self.result.memory.peak_bytes if self.result and self.result.memory else None

    @property
    def seconds(self) -> float | None:
        """Of a step."""
        return self.result.throughput.step_seconds if self.result and self.result.throughput else None

    def fits(self, memory: int) -> bool:
        return self.peak is not None and self.peak <= memory


def saved(row: Row, control: Row) -> int:
    """Bytes of the control's peak."""
    return control.peak - row.peak if row.peak is not None and control.peak is not None else 0


def ranked_labels(rows: Sequence[Row], control: Row) -> list[str]:
    """Single labels that save something, the cheapest first: seconds for each byte saved."""
    worth = [row for row in rows if len(row.choice.modules) == 1 and saved(row, control) > WORTH * (control.peak or 0)]
    price = {row.choice.modules[0]: (row.seconds - control.seconds) / saved(row, control) for row in worth}
    return sorted(price, key=lambda label: (price[label], label))


def cheapest(rows: Sequence[Row], memory: int) -> Row | None:
    """Of those that fit into ``memory`` bytes the fastest, of equally fast ones (to a thousandth) the smallest."""
    fitting = [row for row in rows if row.fits(memory)]
    return min(fitting, key=lambda row: (float(f"{row.seconds:.3g}"), row.peak), default=None)


def control_of(rows: Sequence[Row]) -> Row:
    return next(row for row in rows if row.choice == CONTROL)
