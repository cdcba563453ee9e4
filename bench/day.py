"""How traffic goes over a day: the shape of one that was measured, in half hours.

`python -m bench.day RATES.csv` derives it anew from ServeGen's rates and prints it.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

HALF_HOURS = 48

# Requests per second of a production model in ServeGen (alibaba/ServeGen at f891d118, Apache-2.0;
# "M-large", summed over its clients, 14 days in windows of ten minutes), relative to the busiest
# half hour: of the fourteen days the one whose ratio of busiest to quietest half hour is the upper
# median, the seventh (1 to 3.2; the others have 1 to 1.4 up to 1 to 5.4).
DAY = (
    0.51, 0.54, 0.47, 0.46, 0.39, 0.43, 0.42, 0.39, 0.38, 0.39, 0.31, 0.36,
    0.42, 0.40, 0.43, 0.42, 0.38, 0.41, 0.48, 0.55, 0.60, 0.72, 0.79, 0.86,
    0.93, 0.94, 1.00, 0.85, 0.88, 0.87, 0.80, 0.79, 0.73, 0.75, 0.70, 0.79,
    0.70, 0.75, 0.93, 0.94, 0.86, 0.85, 0.96, 0.83, 0.82, 0.76, 0.65, 0.69,
)  # fmt: skip


def shape_of(rates: Sequence[float]) -> tuple[float, ...]:
    """The day of the upper median, from rates in equal windows over whole days of 144 windows.

    Each half hour relative to the busiest one, to two digits. Raises ValueError.
    """
    windows = 3 * HALF_HOURS
    if not rates or len(rates) % windows:
        raise ValueError(f"{len(rates)} windows of ten minutes are no whole days of {windows}")
    means = [statistics.fmean(rates[at : at + 3]) for at in range(0, len(rates), 3)]
    days = [means[at : at + HALF_HOURS] for at in range(0, len(means), HALF_HOURS)]
    middle = sorted(days, key=lambda day: max(day) / min(day))[len(days) // 2]
    return tuple(round(mean / max(middle), 2) for mean in middle)


def rates_of(path: Path) -> list[float]:
    """The column `agg_rate_rps` of a file of rates. Raises OSError, KeyError, ValueError."""
    with path.open(encoding="utf-8", newline="") as file:
        return [float(row["agg_rate_rps"]) for row in csv.DictReader(file)]


if __name__ == "__main__":
    print(shape_of(rates_of(Path(sys.argv[1]))))
