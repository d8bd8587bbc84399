"""A straight line through measurements of which the newest count most."""

from __future__ import annotations

__all__ = ["LineFit"]


class LineFit:
    """``y = intercept + slope * x``, neither below 0: weighted least squares where each new point makes all before it
    count a little less (exponential forgetting; Haykin, "Adaptive filter theory", section on RLS)."""

    def __init__(self, *, memory: int = 50) -> None:
        """``memory``: about how many points count."""
        self._keep = 1.0 - 1.0 / memory
        self._n = self._x = self._y = self._xx = self._xy = 0.0
        self.points = 0
        """Ever added."""
        self.intercept = 0.0
        self.slope = 0.0

    def add(self, x: float, y: float) -> None:
        """One measurement; both at least 0."""
        keep = self._keep
        self._n = self._n * keep + 1.0
        self._x = self._x * keep + x
        self._y = self._y * keep + y
        self._xx = self._xx * keep + x * x
        self._xy = self._xy * keep + x * y
        self.points += 1
        self._solve()

    def at(self, x: float) -> float:
        """The line's value; 0 as long as there is no point."""
        return self.intercept + self.slope * x

    def _solve(self) -> None:
        """Least squares within intercept >= 0 and slope >= 0: the free optimum, or the better of the two edges."""
        n, x, y, xx, xy = self._n, self._x, self._y, self._xx, self._xy
        spread = n * xx - x * x
        if spread > 1e-9 * max(n * xx, 1e-30):
            slope = (n * xy - x * y) / spread
            intercept = (y - slope * x) / n
            if slope >= 0 and intercept >= 0:
                self.slope, self.intercept = slope, intercept
                return
            if slope < 0:  # no more for more: the mean says all there is
                self.slope, self.intercept = 0.0, y / n
                return
        # Through the origin: the points lie in one place, or the free line would start below 0.
        self.slope, self.intercept = (xy / xx, 0.0) if xx > 0 else (0.0, y / n)
