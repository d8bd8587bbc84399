"""What several gateways know together, in Redis: what keys have used, and answers."""
