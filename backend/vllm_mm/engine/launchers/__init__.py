"""Where engines run: one launcher per kind of place, all with the protocol `ports.Launcher`.

`local` starts subprocesses of this machine. A launcher owns identity (who is provably which engine), the end of whole
process trees, and the log; when to start or stop is decided elsewhere.
"""
