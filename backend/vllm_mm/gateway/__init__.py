"""The data plane between a client's connection and a lease: who asks, for what, and what it used."""
