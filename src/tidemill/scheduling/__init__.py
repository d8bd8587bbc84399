"""Who runs in the next step: the token-budget loop, its queues and the KV bookkeeping. Integers only."""
