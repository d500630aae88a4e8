"""Measures the product on this machine: see each kind's `--help`."""

import argparse

import policies
import proxy
import soak
import start
import swap
import tabs

import real


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind in (proxy, start, policies, swap, soak, tabs, real):
        kind.add_to(kinds)
    options = parser.parse_args()
    return options.act(options)


if __name__ == "__main__":
    raise SystemExit(main())
