from __future__ import annotations

from bench.flat import BYTES_A_REQUEST, SLACK_BYTES, Found, Look, measured


async def test_a_daemon_keeps_its_memory_and_descriptors_over_requests_of_every_kind() -> None:
    """A thousand; `python -m bench.flat` sends 20,000."""
    found = await measured(1000, (0.4, 1.0))
    assert found.grown() == []
    # Of ten four were answered whole and three streamed, one was left, one refused, and of the
    # last, who wants 16 answers, many were turned away.
    assert found.ends["cancelled"] == 100
    assert found.ends["finished"] >= 700
    assert found.ends["rejected"] > 0
    assert [look.requests for look in found.looks] == [400, 1000]


def test_growth_is_told_from_how_an_allocator_breathes() -> None:
    first = Look(1000, 70 * 2**20, 15, 20 * 2**20, 4)
    may = SLACK_BYTES + 1000 * BYTES_A_REQUEST
    still = Look(2000, first.daemon_bytes + may, 15, first.worker_bytes + may, 4)
    assert Found((first, still), {}).grown() == []
    grown = Look(2000, first.daemon_bytes + may + 1, 16, first.worker_bytes + 2 * may, 4)
    assert Found((first, grown), {}).grown() == [
        "the daemon grew by 2.1 MiB, 2.1 may be",
        "the daemon has 1 more descriptors open",
        "the worker grew by 4.2 MiB, 2.1 may be",
    ]
