from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from metrics.instruments import Instruments
from metrics.series import show


def built() -> Instruments:
    return Instruments(
        version="1.2.3",
        tiers=["paid", "free"],
        executors=["main"],
        ends=[("finished", "stop"), ("rejected", "rate_limit_exceeded")],
        policies=["aimd"],
        decision_codes=["applied", "held"],
        guard_codes=["thin", "cooldown"],
        dispatch_reasons=["full", "timeout"],
        change_reasons=["policy", "pinned"],
        shadows=["threshold"],
    )


def populated() -> Instruments:
    instruments = built()
    paid, main = instruments.tiers["paid"], instruments.executors["main"]
    paid.offered.inc()
    paid.queue_requests.set(3)
    paid.ttft_s.observe(0.2)
    main.step_duration_s.observe(0.09)
    main.running["paid"].set(2)
    main.show_utilization(0.4, "busy")
    show(main.kv_usage, 0.25)
    instruments.ended.labels("paid", "finished", "stop").inc()
    instruments.groups["default"].batch_size.set(16)
    instruments.tick_s.observe(0.0004)
    return instruments


def samples(instruments: Instruments) -> dict[str, float]:
    """Every sample as it is exposed, `name{label="value"}` to its figure."""
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in instruments.render().decode().splitlines()
        if not line.startswith("#")
    }


def test_every_family_has_a_series_before_anything_happened() -> None:
    families = list(text_string_to_metric_families(built().render().decode()))
    assert len(families) > 35
    assert [family.name for family in families if not family.samples] == []


def test_every_metric_that_the_manual_names_exists_with_the_labels_given_there() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    named = re.findall(r"`headway_(\w+)(?:\{([\w,]+)\})?`", manual)
    families = text_string_to_metric_families(built().render().decode())
    known = {
        family.name + ("_total" if family.type == "counter" else ""): {
            label for sample in family.samples for label in sample.labels
        }
        for family in families
    }
    assert len(named) > 15
    for name, labels in named:
        assert f"headway_{name}" in known
        assert {*filter(None, labels.split(","))} <= known[f"headway_{name}"]


def test_a_label_value_that_nobody_foresaw_is_counted_all_the_same() -> None:
    instruments = built()
    instruments.ended.labels("free", "failed", "executor_failed").inc()
    key = 'headway_requests_ended_total{outcome="failed",reason="executor_failed",tier="free"}'
    assert samples(instruments)[key] == 1.0


def test_what_is_not_known_is_nan_and_not_zero() -> None:
    shown = samples(built())
    assert str(shown['headway_kv_usage_ratio{executor="main"}']) == "nan"
    assert str(shown["headway_kv_cache_usage_ratio"]) == "nan"


def test_utilization_stands_under_its_source_only() -> None:
    instruments = built()
    main = instruments.executors["main"]
    main.show_utilization(0.9, "nvml")
    main.show_utilization(0.4, "busy")
    shown = samples(instruments)
    name = 'headway_device_utilization_ratio{{executor="main",source="{}"}}'
    assert shown[name.format("busy")] == 0.4
    assert str(shown[name.format("nvml")]) == "nan"


def test_queue_wait_is_told_apart_from_one_millisecond_on() -> None:
    first = next(key for key in samples(built()) if "queue_wait_seconds_bucket" in key)
    assert 'le="0.001"' in first


def test_two_daemons_in_one_process_count_for_themselves() -> None:
    one, other = built(), built()
    one.tiers["paid"].offered.inc()
    key = 'headway_requests_offered_total{tier="paid"}'
    assert (samples(one)[key], samples(other)[key]) == (1.0, 0.0)


def test_names_have_the_prefix_and_labels_carry_no_ids() -> None:
    text = populated().render().decode()
    names = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert [name for name in names if not re.fullmatch(r"headway_[a-z0-9_]+", name)] == []
    labels = set(re.findall(r'[{,](\w+)="', text))
    assert labels == {
        "bound",
        "code",
        "direction",
        "executor",
        "group",
        "le",
        "limit",
        "outcome",
        "policy",
        "reason",
        "source",
        "tier",
        "version",
    }


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is absent"
)
def test_promtool_finds_nothing_to_criticise() -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=populated().render(),
        capture_output=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
