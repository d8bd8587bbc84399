"""One door before many engines: which replica answers, and what happens when one does not."""
