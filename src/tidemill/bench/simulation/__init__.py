"""An engine whose steps take the time that they are said to take: the real scheduler on a clock that is told."""
