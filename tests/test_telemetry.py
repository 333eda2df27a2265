"""What GPUs did during a pass, who else used the host, and trials that are measured again for it."""

from __future__ import annotations

import itertools
import threading
from types import SimpleNamespace
from typing import Any

import fake_nvml
import pytest
from conftest import Lab
from fake_nvml import GIB, NOT_SUPPORTED, NVMLError, install

from kpad_bench import reading
from kpad_bench.attempts import Measured, keep_undisturbed
from kpad_bench.config import Thresholds
from kpad_bench.errors import UsageError
from kpad_bench.gpu import Moment
from kpad_bench.hostload import HostLoad
from kpad_bench.telemetry import Sample, Watch, energy_j, flagged, gpu_columns, throttle_shares

S = 10**9


def moment(**changes: Any) -> Moment:
    """One GPU at work."""
    usual = {"sm_clock_mhz": 1965, "memory_clock_mhz": 3996, "power_w": 600.0, "temperature_c": 60}
    return Moment(**{**usual, "throttle": (), "memory_used": 150 * GIB, **changes})


def watch(*samples: Sample) -> Watch:
    """A watch that is over."""
    made = Watch((0, 1)[: len(samples[0].gpus)] if samples else ())
    made.samples.extend(samples)
    return made


def test_columns_of_two_gpus() -> None:
    """Clocks over all, power and energy together; a sample outside the pass counts for energy alone."""
    found = gpu_columns(
        watch(
            Sample(0, (moment(sm_clock_mhz=345, energy_j=100.0), moment(energy_j=1000.0))),
            Sample(2 * S, (moment(sm_clock_mhz=1800, energy_j=1300.0), moment(energy_j=2200.0))),
            Sample(3 * S, (moment(temperature_c=71, energy_j=1900.0), moment(energy_j=2800.0))),
            Sample(4 * S, (moment(memory_used=151 * GIB, energy_j=2500.0), moment(energy_j=3400.0))),
            Sample(6 * S, (moment(temperature_c=80, energy_j=2700.0), moment(energy_j=3600.0))),
        ),
        1 * S,
        5 * S,
    )
    assert found == {
        "gpu_indices": [0, 1],
        "gpu_samples": 3,
        "gpu_clock_mhz_min": 1800.0,
        "gpu_clock_mhz_mean": 1937.5,
        "gpu_clock_mhz_max": 1965.0,
        "gpu_memory_clock_mhz_min": 3996.0,
        "gpu_memory_clock_mhz_mean": 3996.0,
        "gpu_memory_clock_mhz_max": 3996.0,
        "gpu_power_w_mean": 1200.0,
        "gpu_energy_j": (2600.0 - 700.0) + (3500.0 - 1600.0),
        "gpu_temperature_c_max": 71.0,
        "gpu_memory_gib_max": 151.0,
        "throttle_reasons": [],
    }


def test_nothing_to_watch() -> None:
    """No GPU: no column. One that answers nothing: no number."""
    assert gpu_columns(watch(), 0, S) == {"gpu_indices": None}
    silent = gpu_columns(watch(Sample(1, (Moment(),)), Sample(2, (Moment(),))), 0, S)
    given = ("gpu_indices", "gpu_samples")
    assert {value for name, value in silent.items() if name not in given} == {None}


def test_a_pass_shorter_than_a_second() -> None:
    """The samples next to it stand for it."""
    found = gpu_columns(watch(Sample(0, (moment(),)), Sample(10, (moment(power_w=700.0),))), 2, 8)
    assert (found["gpu_samples"], found["gpu_power_w_mean"]) == (2, 650.0)


@pytest.mark.parametrize(
    ("counters", "joules"),
    [
        ([0.0, 600.0, 1200.0], 1200.0),
        ([None, None, None], 1000.0),
        ([0.0, None, 900.0], 900.0),
        ([5.0, None, None], 1000.0),
        ([900.0, 3.0, 600.0], 1000.0),
    ],
    ids=["counter", "none", "a gap", "one reading", "reset in between"],
)
def test_energy(counters, joules) -> None:
    """NVML's counter where it can be used, else power times time."""
    samples = [Sample(at * S, (moment(energy_j=joule),)) for at, joule in enumerate(counters)]
    assert energy_j(samples, 0, 2 * S, 500.0) == joules
    assert energy_j(samples, S, S, 500.0) is None
    assert energy_j([], 0, S, 500.0) is None


def test_throttling_by_reason() -> None:
    """Share of the samples in which any GPU was held back; not known where none tells."""
    slow = moment(throttle=("sw_power_cap",))
    samples = [
        Sample(1, (moment(), slow)),
        Sample(2, (moment(), moment(throttle=None))),
        Sample(3, (slow, moment(throttle=("hw_slowdown", "sw_power_cap")))),
        Sample(4, (moment(), moment())),
    ]
    assert throttle_shares(samples, 0, 9) == {"hw_slowdown": 0.25, "sw_power_cap": 0.5}
    assert throttle_shares([Sample(1, (Moment(),))], 0, 9) is None
    assert throttle_shares([], 0, 9) is None


def flags(others: float | None, *reasons: str, **limits: Any) -> tuple[Any, Any, list[str]]:
    """throttled, disturbed, warnings."""
    seen = watch(Sample(1, (moment(throttle=reasons),)))
    columns = {"other_cpu_share": others, "warnings": ["before"]}
    span = SimpleNamespace(start_ns=0, end_ns=9)
    found = flagged(columns, seen, span, Thresholds(**limits))
    return found["throttled"], found["disturbed"], found["warnings"][1:]


def test_flags() -> None:
    """Each with its figure in a warning; null where nobody knows."""
    assert flags(0.3) == (False, False, [])
    assert flags(None, "sw_power_cap", throttle_reasons=("hw_slowdown",)) == (False, None, [])
    throttled, disturbed, warnings = flags(1.25, "sw_power_cap")
    assert (throttled, disturbed) == (True, True)
    assert "sw_power_cap in 100% of the samples" in warnings[0]
    assert "1.25 CPUs" in warnings[1]
    assert "thresholds.other_cpu_share 1" in warnings[1]


def test_reasons_of_a_configuration_are_checked() -> None:
    """A reason that NVML does not have is named, with those it has."""
    with pytest.raises(ValueError, match=r"gpu_idle; allowed: sw_power_cap"):
        Thresholds(throttle_reasons=("gpu_idle",))


def test_a_watch_samples_in_a_thread_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """From before the first to after the last moment, without a question asked by the thread that drives."""
    energy = itertools.count(0, 1000)
    fake = install(monkeypatch, fake_nvml.gpu(nvmlDeviceGetTotalEnergyConsumption=lambda: next(energy)))
    with Watch((0,), period_s=0.001) as made:
        n_first = len(made.samples)
        while len(made.samples) < 5:
            threading.Event().wait(0.001)
        n_last = len(made.samples)
    assert n_first >= 1
    assert len(made.samples) > n_last
    assert [one.gpus[0].energy_j for one in made.samples] == list(range(len(made.samples)))
    assert not made.is_silent
    assert threading.current_thread() not in {thread for _, thread in fake.calls}


def test_a_watch_without_gpus_starts_nothing() -> None:
    """No thread, no sample."""
    with Watch(()) as made:
        assert "gpu telemetry" not in {thread.name for thread in threading.enumerate()}
    assert (made.samples, made.is_silent) == ([], False)


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sampled, nothing waits."""
    install(monkeypatch, fake_nvml.gpu())
    with Watch((7,)) as made:
        pass
    assert (made.samples, made.is_silent) == ([], False)


def test_a_driver_that_hangs_holds_up_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass goes on; the row says that NVML was silent."""
    answer = threading.Event()
    install(monkeypatch, fake_nvml.gpu(nvmlDeviceGetPowerUsage=lambda: answer.wait() and 1))
    with Watch((0,), answer_s=0.01) as made:
        assert made.is_silent
    assert made.is_silent
    found = flagged({}, made, SimpleNamespace(start_ns=0, end_ns=9), Thresholds())
    assert "NVML did not answer" in found["warnings"][0]
    assert (found["throttled"], found["disturbed"]) == (None, None)
    answer.set()
    assert made._thread is not None
    made._thread.join()


class Attempts:
    """Scripted attempts at one trial, and what was stored."""

    def __init__(self, *rows: dict[str, Any]) -> None:
        self.left = [{"trial_id": "t", "status": "ok", **row} for row in rows]
        self.written: list[tuple[dict[str, Any], bool]] = []
        self.said: list[str] = []

    def measure(self) -> Measured:
        """The next one."""
        return Measured(self.left.pop(0), [], {})

    def write(self, row: Any, requests: Any, raw: Any, *, replace_ok: bool) -> None:
        """Store it."""
        self.written.append((dict(row), replace_ok))

    def run(self, most: int) -> dict[str, Any]:
        """The row that is kept."""
        return keep_undisturbed(self.measure, self.write, most, self.said.append)


BAD, GOOD = {"disturbed": True}, {"disturbed": False, "throttled": None}


@pytest.mark.parametrize(
    ("rows", "most", "n_written", "is_flagged"),
    [
        ([GOOD], 3, 1, False),
        ([BAD], 0, 1, True),
        ([BAD, GOOD], 3, 2, False),
        ([{"throttled": True}, BAD, GOOD], 3, 3, False),
        ([BAD, BAD, BAD], 2, 3, True),
        ([{"status": "failed", "disturbed": True}], 3, 1, True),
        ([{"status": "invalid", "disturbed": True}, GOOD], 3, 2, False),
    ],
    ids=["clean", "not asked for", "second", "third", "never", "failed", "invalid"],
)
def test_how_often_a_trial_is_measured(rows, most, n_written, is_flagged) -> None:
    """Until one has no flag or the limit; every attempt is stored before the next."""
    attempts = Attempts(*rows)
    assert bool(attempts.run(most).get("disturbed")) is is_flagged
    assert [replace for _, replace in attempts.written] == [False, *[True] * (n_written - 1)]
    assert attempts.left == []
    assert len(attempts.said) == n_written - 1


def test_an_attempt_that_fails_takes_nothing_away() -> None:
    """The flagged row stays, and says what came of the other attempt."""
    attempts = Attempts(BAD, {"status": "failed", "reason": "engine_died", "detail": "gone"}, GOOD)
    row = attempts.run(3)
    assert (row["status"], row["disturbed"]) == ("ok", True)
    assert row["warnings"] == ["a further attempt did not count: engine_died: gone"]
    assert attempts.written[-1] == (row, True)
    assert len(attempts.left) == 1


ON_GPU = {"platform": "cuda"}


def busy(lab: Lab, monkeypatch: pytest.MonkeyPatch, *cpus: float) -> None:
    """Let others keep so many CPUs busy in one pass after the other; the last figure goes on."""
    shares = itertools.chain(cpus, itertools.repeat(cpus[-1]))

    def share(before: HostLoad, after: HostLoad, server_s: float | None) -> float:
        return next(shares)

    monkeypatch.setattr(reading, "other_cpu_share", share)
    lab.set(thresholds={"other_cpu_share": 1.0})


def test_a_row_without_nvml(lab: Lab) -> None:
    """GPU columns are null; the host's are there."""
    assert lab.sweep() == 0
    row = lab.row()
    names = [name for name in row if name.startswith("gpu_") or name in ("throttled", "throttle_reasons")]
    assert {row[name] for name in names} == {None}
    assert row["other_cpu_share"] >= 0
    assert 0 <= row["other_cpu_host_share"] <= 1.05
    assert row["disturbed"] is False


def test_a_row_with_gpus(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that the server can see, and no more than it uses."""
    slow = fake_nvml.gpu(nvmlDeviceGetCurrentClocksEventReasons=0x4, nvmlDeviceGetTemperature=83)
    unseen = fake_nvml.gpu(nvmlDeviceGetTemperature=99, nvmlDeviceGetCurrentClocksEventReasons=0x8)
    install(monkeypatch, unseen, slow, unseen)
    lab.set(server={**ON_GPU, "env": {**lab.config["server"]["env"], "CUDA_VISIBLE_DEVICES": "1,2"}})
    assert lab.sweep() == 0
    row = lab.row()
    assert row["status"] == "ok"
    assert (row["gpu_indices"], row["gpu_temperature_c_max"], row["gpu_power_w_mean"]) == ([1], 83.0, 640.0)
    assert row["gpu_samples"] >= 1
    assert (row["throttled"], row["throttle_reasons"]) == (True, ["sw_power_cap"])
    assert [text for text in row["warnings"] if text.startswith("throttled: ")]
    assert row["clock_policy"] == "default, 1000 W"


def test_gpus_that_tell_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every NVML function unsupported: null, and the sweep goes on."""
    install(monkeypatch, fake_nvml.gpu(**{name: NVMLError(NOT_SUPPORTED) for name in fake_nvml.gpu()}))
    lab.set(server=ON_GPU)
    assert lab.sweep() == 0
    row = lab.row()
    assert (row["gpu_indices"], row["gpu_clock_mhz_mean"], row["throttled"]) == ([0], None, None)
    assert row["gpu_energy_j"] is None


def test_a_disturbed_trial_is_flagged(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default once, with the figure."""
    busy(lab, monkeypatch, 1.5)
    assert lab.sweep() == 0
    row = lab.row()
    assert (row["status"], row["disturbed"], row["other_cpu_share"]) == ("ok", True, 1.5)
    assert [text for text in row["warnings"] if "1.50 CPUs" in text]
    assert lab.superseded() == []


def test_a_disturbed_trial_is_measured_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same boot, from empty caches; the row without a flag counts, the other is kept aside."""
    busy(lab, monkeypatch, 1.5, 0.2)
    lab.set(arms=["kpad"], thresholds={"repeat_disturbed": 2})
    assert lab.sweep() == 0
    row = lab.row()
    assert (row["status"], row["disturbed"], row["cache_state"]) == ("ok", False, "cold")
    assert [text for text in row["warnings"] if "attempt 1 was disturbed" in text]
    (earlier,) = lab.superseded()
    assert (earlier["disturbed"], earlier["trial_id"]) == (True, row["trial_id"])
    assert len(lab.boots()) == 1
    assert len([call for call in lab.calls() if call["path"] == "/reset_prefix_cache"]) == 2
    assert len(lab.requests()) == 4
    assert lab.sweep() == 0
    assert len(lab.boots()) == 1


def test_a_trial_that_stays_disturbed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as the configuration says; then the flag stays."""
    busy(lab, monkeypatch, 1.5)
    lab.set(thresholds={"repeat_disturbed": 1})
    assert lab.sweep() == 0
    assert lab.row()["disturbed"] is True
    assert len(lab.superseded()) == 1


def test_a_negative_number_of_repeats_is_refused(lab: Lab) -> None:
    """With the key."""
    lab.set(thresholds={"repeat_disturbed": -1})
    with pytest.raises(UsageError, match="repeat_disturbed"):
        lab.sweep()
