"""What each strategy brings on a load: it against its slow twin, from the registry of strategies."""
