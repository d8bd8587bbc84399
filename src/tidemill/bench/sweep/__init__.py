"""Where a system's limit lies: the highest rate of requests that it serves well."""
