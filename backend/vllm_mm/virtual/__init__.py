"""The scheduler in virtual time: `domain.scheduling.decide` and `domain.residency` over a trace, without engines or waiting.

`trace` and `generate` make the requests, `engine` says how long engines take for what, `fleet` lets the time pass,
`policies` names what can be compared, and `results` says how it went.
"""
