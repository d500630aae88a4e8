"""What a request cost: device-seconds and money."""

import pytest
from msgspec.structs import replace

from vllm_mm.domain.usage import NANO, Outcome, Price, RequestRecord, Usage, device_seconds

ROW = RequestRecord(
    "req_1", "req_1", 1.0, "/v1/completions", "a", "a", "key_1", False, Outcome.OK, 200, None, 2.0, 3.0, 10.0, 1, 1, Usage(), 1
)  # fmt: skip


@pytest.mark.parametrize(
    ("row", "devices", "seconds"),
    [
        (ROW, 1, 8.0),
        (ROW, 4, 32.0),
        (replace(ROW, frozen_s=3.0), 2, 10.0),
        (replace(ROW, queued_s=None), 2, 0.0),
        (replace(ROW, frozen_s=9.0), 2, 0.0),
    ],
)
def test_device_seconds(row: RequestRecord, devices: int, seconds: float) -> None:
    """From the lease to the end, without standing still, times the devices; nothing for what never had a lease."""
    assert device_seconds(row, devices) == seconds


@pytest.mark.parametrize(
    ("price", "usage", "cost"),
    [
        (Price(2.0, 6.0), Usage(1_000_000, 500_000), 5.0),
        (Price(2.0, 6.0), Usage(1_000_000, 0, 400_000), 2.0),
        (Price(2.0, 6.0, 0.5), Usage(1_000_000, 0, 400_000), 1.4),
        (Price(2.0, 6.0, 0.0), Usage(10, None, 10), 0.0),
        (Price(2.0, 6.0), Usage(None, 1), 0.000_006),
        (Price(0.000_3, 0.0), Usage(1), 0.0),
        (Price(), Usage(5, 5), 0.0),
    ],
)
def test_cost(price: Price, usage: Usage, cost: float) -> None:
    """By the million; cached ones by their own price where there is one; exact to the billionth."""
    assert price.cost(usage) == round(cost * NANO)


def test_what_is_not_known_has_no_cost() -> None:
    """Nothing is not the same as nothing known."""
    assert Price(1.0, 1.0).cost(Usage()) is None
