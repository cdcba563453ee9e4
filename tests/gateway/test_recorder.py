from __future__ import annotations

from pathlib import Path

import pytest

from bench.traces import Line, read
from controller.errors import ConfigError
from controller.request import Ended, Outcome, Request
from executor.contract import Sampling
from gateway.recorder import HEADER, Recorder


def ended(
    arrived_at: float = 1000.25,
    *,
    tokens: int = 3,
    expected: int | None = None,
    client: str = "secret-client",
) -> Ended:
    request = Request(
        id="r",
        tier="paid",
        client=client,
        prompt=[7, 8],
        max_new_tokens=50,
        sampling=Sampling(),
        arrival=1.0,
        arrived_at=arrived_at,
        expected_new_tokens=expected,
        tokens=[9] * tokens,
    )
    return Ended(request, Outcome.FINISHED, "stop")


def recorder(path: Path, *, max_bytes: int = 10_000, keep: int = 2) -> Recorder:
    return Recorder(path, max_bytes=max_bytes, keep=keep, wall=lambda: 1001.5)


def test_a_line_has_sizes_and_no_content(tmp_path: Path) -> None:
    path = tmp_path / "traffic.csv"
    made = recorder(path)
    made.ended(ended(), 2.0)
    made.close()
    header, line = path.read_text().splitlines()
    fields, client = line.rsplit(",", 1)
    assert header == "arrival_s,tier,prompt_tokens,output_tokens,asked_tokens,outcome,client"
    assert fields == "1000.250000,paid,2,3,50,finished"
    assert client.isdigit()


def test_clients_are_told_apart_within_a_run_and_known_by_nobody(tmp_path: Path) -> None:
    numbers = []
    for run in ("one", "other"):
        path = tmp_path / run
        made = recorder(path)
        for client in ("ann", "bob", "ann"):
            made.ended(ended(client=client), 2.0)
        made.close()
        numbers.append([line.rsplit(",", 1)[1] for line in path.read_text().splitlines()[1:]])
    (ann, bob, again), other = numbers
    assert ann == again != bob
    assert other[0] != ann


def test_a_client_that_sets_no_bound_has_none_in_the_record(tmp_path: Path) -> None:
    path = tmp_path / "traffic.csv"
    made = recorder(path)
    made.ended(ended(expected=256), 2.0)
    made.close()
    line = path.read_text().splitlines()[1]
    assert line.startswith("1000.250000,paid,2,3,,finished,")


def test_a_replay_reads_what_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "traffic.csv"
    made = recorder(path)
    made.ended(ended(), 2.0)
    made.rejected("free", 2, "rate_limit_exceeded", 2.0)
    made.close()
    turned_away = Line(1001.5, None, None, "free", 0, False)
    lines = read(path)
    asked = Line(1000.25, 2, 3, "paid", 50, True, lines[0].key)
    assert lines == [asked, turned_away, turned_away]
    assert asked.key is not None


def test_a_full_file_is_put_aside_and_the_oldest_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "traffic.csv"
    made = recorder(path, max_bytes=len(HEADER) + 1, keep=2)
    for second in range(4):
        made.ended(ended(float(second)), 2.0)
    made.close()
    firsts = {
        file.name: file.read_text().splitlines()[1].split(",")[0] for file in tmp_path.iterdir()
    }
    assert firsts == {
        "traffic.csv": "3.000000",
        "traffic.csv.1": "2.000000",
        "traffic.csv.2": "1.000000",
    }


def test_a_record_is_continued_by_the_next_daemon(tmp_path: Path) -> None:
    path = tmp_path / "traffic.csv"
    for second in (1.0, 2.0):
        made = recorder(path)
        made.ended(ended(second), 2.0)
        made.close()
    assert len(path.read_text().splitlines()) == 3


def test_a_path_that_cannot_be_written_is_told_at_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"record\.path: cannot write .*: No such file"):
        recorder(tmp_path / "nowhere" / "traffic.csv")


def test_a_disk_that_fails_ends_the_record_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    made = recorder(folder / "traffic.csv", max_bytes=1)
    (folder / "traffic.csv").unlink()
    folder.rmdir()
    made.ended(ended(), 2.0)
    made.ended(ended(), 2.0)
    made.close()
    assert not folder.exists()
