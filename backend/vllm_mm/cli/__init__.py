"""The command line. Commands talk to a running server over its API; `serve`, `sim`, `db` and `doctor` work in process.

Importing it has to be quick: whatever a command needs beyond typer it imports when it runs.
"""
