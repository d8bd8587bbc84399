"""A server whose every delay, chunk and fault is given: the yardstick for whatever measures or calls servers."""
