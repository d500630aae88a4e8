"""What goes out to other servers: the only HTTP client beside those of the wire and of the command line."""
