"""CPU lists and slots of a sweep's configuration: their types, and what can be said without a host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from kpad_bench.errors import UsageError
from kpad_bench.hostcpu import format_cpu_list, parse_cpu_list
from kpad_bench.load import Frozen

#: Variables that a slot sets, so that nobody else may.
OF_A_SLOT = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


def _checked(text: str) -> str:
    _cpu_set(text)
    return text


def _cpu_set(text: str) -> set[int]:
    try:
        return parse_cpu_list(text, "CPU list")
    except UsageError:
        raise ValueError("not a CPU list; write it like 0-47,56-103") from None


#: In taskset's notation.
CpuList = Annotated[str, AfterValidator(_checked)]


class Cpus(Frozen):
    """CPU lists of server and client; null leaves the affinity alone."""

    server: CpuList | None = None
    client: CpuList | None = None

    @model_validator(mode="after")
    def _are_apart(self) -> Self:
        if self.server is not None and self.client is not None:
            shared = _cpu_set(self.server) & _cpu_set(self.client)
            if shared:
                raise ValueError(f"server and client share CPUs {format_cpu_list(shared)}; keep them apart")
        return self


class Slot(Frozen):
    """A part of the host on which servers run while other servers run on the others.

    ``cpus``: of the server; null with ``numa`` is what is left of that node, null without it all there are.
    ``numa``: the node whose memory the server is bound to. ``cache_dir``: where its compile caches lie.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=20)]
    gpus: tuple[Annotated[int, Field(ge=0, strict=True)], ...] = ()
    cpus: CpuList | None = None
    client_cpus: CpuList | None = None
    numa: Annotated[int, Field(ge=0, strict=True)] | None = None
    cache_dir: str | None = None

    def cpu_lists(self) -> dict[str, str]:
        """Its lists by their keys."""
        lists = {"cpus": self.cpus, "client_cpus": self.client_cpus}
        return {f"slots.{self.name}.{key}": text for key, text in lists.items() if text is not None}

    def fits(self, tensor_parallel: int) -> bool:
        """Whether a server of so many GPUs runs on it; one without GPUs is for vLLM on the CPU."""
        return not self.gpus or tensor_parallel <= len(self.gpus)


def slot_faults(
    slots: Sequence[Slot], platform: str, port: int | None, env: Mapping[str, str]
) -> Iterator[str]:
    """What is wrong with slots taken together, or beside the settings of the server."""
    for one, other in combinations(slots, 2):
        yield from _shared(one, other)
    for slot in slots:
        if platform == "cuda" and not slot.gpus:
            yield f"slots.{slot.name}.gpus: missing; name the GPUs of this slot"
        if len(set(slot.gpus)) < len(slot.gpus):
            yield f"slots.{slot.name}.gpus: {list(slot.gpus)}: a GPU is there twice"
        yield from _overlaps(slot.cpu_lists(), slot.cpu_lists())
    if slots and port:
        yield f"server.port {port}: servers side by side cannot share it; set it to null (a Unix socket) or 0"
    if slots and (names := [name for name in OF_A_SLOT if name in env]):
        yield f"server.env.{names[0]}: slots set it; name GPUs in slots.*.gpus"


def _shared(one: Slot, other: Slot) -> Iterator[str]:
    """What two slots have in common and must not."""
    names = f"{one.name} and {other.name}"
    if one.name == other.name:
        yield f"two slots are called {one.name}; give each a name of its own"
    if both := sorted(set(one.gpus) & set(other.gpus)):
        yield f"{names} share GPU {', '.join(map(str, both))}; a GPU belongs to one slot"
    if one.cache_dir is not None and one.cache_dir == other.cache_dir:
        yield f"{names} share cache_dir {one.cache_dir}; give each a folder of its own"
    yield from _overlaps(one.cpu_lists(), other.cpu_lists())


def _overlaps(lists: Mapping[str, str], others: Mapping[str, str]) -> Iterator[str]:
    for key, text in lists.items():
        for other_key, other_text in others.items():
            if key < other_key and (shared := _cpu_set(text) & _cpu_set(other_text)):
                yield f"{key} and {other_key} share CPUs {format_cpu_list(shared)}; keep them apart"
