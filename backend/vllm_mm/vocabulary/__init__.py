"""Words that the configuration and the simulated engine have to read alike: quantities, the keys of a profile, faults.

At the very bottom: the simulated engine may know nothing of the controller, and the settings know nobody above them.
"""
