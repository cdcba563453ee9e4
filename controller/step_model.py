"""How long a step takes: learnt from every step, and honest about how well it is known.

`time = a + b*context + c*min(n, knee) + c_above*max(0, n - knee) + d*prefill + e*squares` by
non-negative least squares with exponential forgetting. Steps are regressed on what they held,
never the other way round: regressing size on latency turns noise into bias.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import msgspec

from executor.contract import StepSample
from policies.contract import StepEstimate

# Published A100 profiles (DistServe) bend where attention stops being free.
KNEE = 95
# The model follows a change of hardware or workload within some thousand steps.
HALF_LIFE_STEPS = 2000.0
# When residuals drift off one way, the past is wrong and is forgotten ten times faster.
DRIFT_HALF_LIFE_STEPS = 200.0
_DRIFT_MEMORY = 0.98
# Solving takes a tenth of a millisecond: whoever asks at every step gets the fit of lately.
SOLVE_STEPS = 64
# Long before floats lose the oldest samples that still count.
_MOST_GAIN = 1e6
_ENOUGH = 20.0
# Units that bring the columns to comparable size, so that the normal equations stay well posed.
_SCALE = (1.0, 1e3, 1.0, 1.0, 1e2, 1e5)
_SIZE = len(_SCALE)

Matrix = list[list[float]]


class StepSums(msgspec.Struct, frozen=True):
    """Everything that a step model knows, as plain numbers. `basis` is what the columns of the
    moments mean: their units and the knee."""

    basis: list[float]
    moments: Matrix
    answers: list[float]
    gain: float
    weight: float
    rows: float
    rows_squared: float
    samples: int
    variance: float
    bias: float


@dataclass(slots=True, eq=False)
class StepModel:
    """The running fit of one executor. One step is one sample.

    `_moments` keeps the upper triangle of the normal equations; what stands in it, in `_answers`
    and in the sums of rows is `_gain` times what it would be if the newest sample weighed 1.
    """

    knee: int = KNEE
    _moments: Matrix = field(default_factory=lambda: [[0.0] * _SIZE for _ in range(_SIZE)])
    _answers: list[float] = field(default_factory=lambda: [0.0] * _SIZE)
    _gain: float = 1.0
    _weight: float = 0.0
    _rows: float = 0.0
    _rows_squared: float = 0.0
    _samples: int = 0
    _variance: float = 0.0
    _bias: float = 0.0
    _fit: list[float] | None = None
    _fresh: bool = False
    _lately: StepEstimate | None = None
    _until_solve: int = 0

    def learn(self, sample: StepSample, *, steps: int = 1, weight: float = 1.0) -> None:
        """Take in a step, or `steps` equal ones whose `duration_s` is that of all together.

        `weight` above 1 is for a prior: a warm-up step counts like that many.
        """
        row, seconds = self._row(sample), sample.duration_s / steps
        weight *= steps
        if self._fit is not None:
            weight *= self._note_residual(seconds - _dot(self._fit, row), steps)
        # Letting each sample weigh more than the one before forgets as decaying all would, and
        # touches only what the sample touches.
        self._gain /= self._keep(steps)
        weight *= self._gain
        for i, value in enumerate(row):
            if value:
                share = weight * value
                moments = self._moments[i]
                for j in range(i, _SIZE):
                    moments[j] += share * row[j]
                self._answers[i] += share * seconds
        self._weight += weight
        self._rows += weight * sample.sequences
        self._rows_squared += weight * sample.sequences**2
        self._samples += steps
        self._until_solve -= steps
        self._fresh = False
        if self._gain > _MOST_GAIN:
            self._rescale()
        if self._fit is None and self._samples >= _ENOUGH:
            self._solve()

    def sums(self) -> StepSums | None:
        """What `from_sums` makes the same model of; None before there is a step."""
        if not self._samples:
            return None
        return StepSums(
            basis=[*_SCALE, float(self.knee)],
            moments=[list(row) for row in self._moments],
            answers=list(self._answers),
            gain=self._gain,
            weight=self._weight,
            rows=self._rows,
            rows_squared=self._rows_squared,
            samples=self._samples,
            variance=self._variance,
            bias=self._bias,
        )

    @classmethod
    def from_sums(cls, sums: StepSums) -> StepModel:
        """The model that these are of. Raises ValueError for what no model has said."""
        model = cls()
        if sums.basis != [*_SCALE, float(model.knee)]:
            raise ValueError("its columns are others")
        rows = [*sums.moments, sums.answers]
        if len(sums.moments) != _SIZE or any(len(row) != _SIZE for row in rows):
            raise ValueError(f"it should be of {_SIZE} columns")
        counted = (sums.weight, sums.rows, sums.rows_squared, sums.variance, *map(min, rows))
        if not all(0 <= value < math.inf for value in counted + tuple(map(max, rows))):
            raise ValueError("it has sums that are none")
        if not (1 <= sums.gain <= _MOST_GAIN and sums.samples >= 1 and math.isfinite(sums.bias)):
            raise ValueError("it has a weight that is none")
        model._moments = [list(row) for row in sums.moments]
        model._answers = list(sums.answers)
        model._gain, model._weight = sums.gain, sums.weight
        model._rows, model._rows_squared = sums.rows, sums.rows_squared
        model._samples, model._variance, model._bias = sums.samples, sums.variance, sums.bias
        return model

    def estimate(self) -> StepEstimate | None:
        """The model as it is now; None before there is a step to go by."""
        if not self._samples:
            return None
        fit = self._solve()
        a, b, c, c_above, d, e = (value / unit for value, unit in zip(fit, _SCALE, strict=True))
        return StepEstimate(
            a=a,
            b=b,
            c=c,
            # Nothing was seen beyond the knee: then it goes on as before it.
            c_above=c_above if self._moments[3][3] > 0 else c,
            knee=self.knee,
            d=d,
            e=e,
            sigma_s=math.sqrt(self._variance),
            samples=self._samples,
            identifiable=self._identifiable(),
        )

    def lately(self) -> StepEstimate | None:
        """The model as it was within the last `SOLVE_STEPS` steps; None before there is one."""
        if self._until_solve <= 0:
            self._lately = self.estimate()
            self._until_solve = SOLVE_STEPS if self._lately is not None else 0
        return self._lately

    def _row(self, sample: StepSample) -> list[float]:
        above = max(0, sample.sequences - self.knee)
        return [
            1.0,
            sample.context_tokens / _SCALE[1],
            float(sample.sequences - above),
            float(above),
            sample.prefill_tokens / _SCALE[4],
            sample.prefill_squares / _SCALE[5],
        ]

    def _note_residual(self, residual: float, steps: int) -> float:
        """Follow spread and drift; answers the weight of the sample: 1, less for an outlier.

        Huber's weight at 3 sigma: a hiccup of the machine is no property of the step.
        """
        sigma = math.sqrt(self._variance)
        outlier = 0 < 3 * sigma < abs(residual)
        weight = 3 * sigma / abs(residual) if outlier else 1.0
        keep = _DRIFT_MEMORY**steps
        self._variance = keep * self._variance + (1 - keep) * weight * residual**2
        self._bias = keep * self._bias + (1 - keep) * residual
        return weight

    def _keep(self, steps: int) -> float:
        """What the past is worth after these steps, as a fraction of what it was."""
        drifting = abs(self._bias) > math.sqrt(self._variance) * 0.5 > 0
        half_life = DRIFT_HALF_LIFE_STEPS if drifting else HALF_LIFE_STEPS
        return float(0.5 ** (steps / half_life))

    def _rescale(self) -> None:
        """Bring the weights back to where the newest sample weighs 1."""
        down = 1.0 / self._gain
        self._moments = [[value * down for value in row] for row in self._moments]
        self._answers = [value * down for value in self._answers]
        self._weight *= down
        self._rows *= down
        self._rows_squared *= down
        self._gain = 1.0

    def _identifiable(self) -> bool:
        """Whether sizes varied enough to tell what a sequence costs from what a step costs."""
        if self._weight < _ENOUGH * self._gain:
            return False
        mean = self._rows / self._weight
        spread = math.sqrt(max(0.0, self._rows_squared / self._weight - mean**2))
        return spread > max(0.5, 0.1 * mean)

    def _solve(self) -> list[float]:
        if self._fit is None or not self._fresh:
            whole = [
                [self._moments[min(i, j)][max(i, j)] for j in range(_SIZE)] for i in range(_SIZE)
            ]
            self._fit, self._fresh = _non_negative(whole, self._answers), True
        return self._fit


def _non_negative(moments: Matrix, answers: list[float]) -> list[float]:
    """Least squares with coefficients >= 0, by dropping the most negative until none is.

    The backward half of Lawson and Hanson's active set method (1974): exact for columns that are
    not strongly opposed, and cheap enough for every tick.
    """
    active = [i for i in range(_SIZE) if moments[i][i] > 0]
    while active:
        solution = _gauss(
            [
                [moments[i][j] + (1e-6 * moments[i][i] if i == j else 0.0) for j in active]
                for i in active
            ],
            [answers[i] for i in active],
        )
        worst = min(range(len(active)), key=lambda k: solution[k] * moments[active[k]][active[k]])
        if solution[worst] >= 0:
            found = dict(zip(active, solution, strict=True))
            return [found.get(i, 0.0) for i in range(_SIZE)]
        del active[worst]
    return [0.0] * _SIZE


def _gauss(matrix: Matrix, answers: list[float]) -> list[float]:
    """Solve a small positive definite system by elimination."""
    size = len(answers)
    rows = [[*row, answer] for row, answer in zip(matrix, answers, strict=True)]
    for i in range(size):
        pivot = max(range(i, size), key=lambda k: abs(rows[k][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for k in range(i + 1, size):
            factor = rows[k][i] / rows[i][i]
            if factor:
                rows[k] = [x - factor * y for x, y in zip(rows[k], rows[i], strict=True)]
    solution = [0.0] * size
    for i in reversed(range(size)):
        known = sum(rows[i][j] * solution[j] for j in range(i + 1, size))
        solution[i] = (rows[i][size] - known) / rows[i][i]
    return solution


def _dot(left: list[float], right: list[float]) -> float:
    return sum(x * y for x, y in zip(left, right, strict=True))
