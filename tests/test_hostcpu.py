"""CPU lists: reading and writing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpad_bench.errors import UsageError
from kpad_bench.hostcpu import format_cpu_list, parse_cpu_list


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0", {0}),
        ("0-2,8", {0, 1, 2, 8}),
        (" 3 , 1-1", {1, 3}),
        ("0-47,56-103", {*range(48), *range(56, 104)}),
    ],
)
def test_a_list_in_taskset_s_notation_is_read(text, cpus):
    """Single CPUs and ranges, blanks allowed."""
    assert parse_cpu_list(text, "cpus.server") == cpus


@pytest.mark.parametrize(
    "text", ["", ",", "a", "1-", "-1", "3-1", "0-4:2", "0;1", "1.5", "²", "0-99999999999", "9000"]
)
def test_what_is_no_list_is_refused_with_its_place(text):
    """Empty parts, strides, backward ranges and numbers no kernel has are a fault of the key."""
    with pytest.raises(UsageError, match=r"cpus\.server") as caught:
        parse_cpu_list(text, "cpus.server")
    assert repr(text) in str(caught.value)
    assert "0-47,56-103" in str(caught.value)


@given(st.sets(st.integers(0, 8191), min_size=1, max_size=60))
def test_a_written_list_reads_back_the_same(cpus):
    """Writing and reading are each other's inverse, and runs are written as ranges."""
    text = format_cpu_list(cpus)
    assert parse_cpu_list(text, "here") == cpus
    assert len(text.split(",")) == sum(cpu - 1 not in cpus for cpu in cpus)
