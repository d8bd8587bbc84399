"""HTTP from the asking side: what the gateway and the benchmarks reach servers with."""
