"""Routes of other servers that do the same kind of work, so that their clients work here as they are (docs/compatibility.md).

They show and do what the admin API shows and does, in the other server's words, and need the same scopes. Shapes are written
down from the other servers' public documentation; tests/compat holds what their clients rely on.
"""
