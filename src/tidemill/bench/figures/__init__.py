"""From records to figures. Knows nothing of servers, sockets or clocks."""
