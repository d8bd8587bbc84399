"""Block pools and block tables: where the KV of sequences is, without the KV itself."""
