"""What a sweep is made of: frozen objects, unknown keys refused.

Types and their rules only; ``configfile`` reads them from YAML. Nothing here touches a file.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, PlainValidator, field_validator, model_validator

from kpad_bench.design import Design, read_rounds
from kpad_bench.gpu import SLOWING
from kpad_bench.load import Frozen, Kind, Load, LoadConfig, PositiveInt
from kpad_bench.slotconfig import Cpus, Slot, slot_faults

__all__ = ["Cpus", "Frozen", "Load", "LoadConfig", "PositiveInt", "Slot"]

#: A slip of the finger: lists of capture sizes grow with it.
MOST_K = 10_000
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)]
#: Settings vLLM 0.25.1 and 0.32.0 use when --speculative-config does not name them.
VLLM_SUFFIX_DEFAULTS = {
    "suffix_decoding_max_tree_depth": 24,
    "suffix_decoding_max_spec_factor": 1.0,
    "suffix_decoding_min_token_prob": 0.1,
    "suffix_decoding_max_cached_requests": 10000,
}


class ModelEntry(Frozen):
    """One model of ``models.yaml``. ``local`` is a folder, or a name under the fetched-models cache."""

    hf_id: str | None = None
    local: str | None = None
    revision: str | None = None
    family: str
    size_b: float | None = None
    kind: Kind = "dense"
    is_reasoning: bool = False
    tensor_parallel: PositiveInt = 1
    boot_timeout_s: float = Field(default=900.0, gt=0)
    boot_estimate_s: float = Field(default=120.0, gt=0)
    stalled_s: float | None = Field(default=None, gt=0)
    trust_remote_code: bool = False
    #: the hub gives it only to accounts that have accepted its terms
    gated: bool = False
    extra_args: tuple[str, ...] = ()
    #: flags that only some builds of vLLM have: given when ``--help`` of the installed one lists them
    optional_args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default={})

    @model_validator(mode="after")
    def _one_source(self) -> ModelEntry:
        if (self.hf_id is None) == (self.local is None):
            raise ValueError("name exactly one of hf_id and local")
        return self

    @property
    def load_class(self) -> str:
        """The class that ``load.by_class`` speaks of: reasoning, moe, fp8, distill or dense."""
        return "reasoning" if self.is_reasoning else self.kind


class Arm(Frozen):
    """A server variant. ``k`` is an integer, null (no speculation) or ``sweep`` (each K of the sweep)."""

    description: str = ""
    speculation: Literal["none", "suffix"] = "none"
    k: PositiveInt | Literal["sweep"] | None = None
    pad: bool = False
    #: what a free slot holds: auto, last (the last sampled token), -1 (CUDA only) or a token id
    pad_token: Literal["auto", "last"] | Annotated[int, Field(ge=-1, strict=True)] = "auto"
    cudagraph_mode: str | None = None
    suffix: dict[str, float | int] = Field(default={})
    extra_args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default={})

    @field_validator("k", mode="before")
    @classmethod
    def _is_a_k(cls, value: Any) -> Any:
        is_positive = type(value) is int and 0 < value <= MOST_K
        if not (is_positive or value is None or value == "sweep"):
            raise ValueError("allowed: a positive integer, sweep (each K of the sweep) or null")
        return value

    @field_validator("suffix", mode="before")
    @classmethod
    def _known_settings(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        unknown = sorted(str(name) for name in value if name not in VLLM_SUFFIX_DEFAULTS)
        if unknown:
            raise ValueError(f"unknown {', '.join(unknown)}; allowed: {', '.join(VLLM_SUFFIX_DEFAULTS)}")
        wrong = [name for name, number in value.items() if type(number) not in (int, float)]
        if wrong:
            raise ValueError(f"{', '.join(wrong)}: must be a number")
        return value

    @model_validator(mode="after")
    def _k_fits_speculation(self) -> Arm:
        if (self.speculation == "none") != (self.k is None):
            raise ValueError("k goes with speculation: suffix, and only with it")
        if self.pad and self.speculation == "none":
            raise ValueError("pad goes with speculation: suffix")
        return self


class Server(Frozen):
    """How vLLM is started. ``vllm_version`` is the target the plan's argv is written for."""

    vllm_version: str
    platform: Literal["cuda", "cpu"] = "cuda"
    launcher: Annotated[tuple[str, ...], Field(min_length=1)] = (
        "{python}",
        "-m",
        "vllm.entrypoints.openai.api_server",
    )
    #: TCP on 127.0.0.1 instead of a Unix socket, for a vLLM without --uds; 0 takes any free port
    port: Annotated[int, Field(ge=0, le=65535)] | None = None
    max_model_len: PositiveInt
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    cudagraph_mode: str | None = None
    #: common: exact decode sizes under one ceiling for all arms (capture.py). vllm: its own list
    capture_sizes: Literal["common", "vllm"] = "common"
    max_num_seqs: PositiveInt | None = None
    max_num_batched_tokens: PositiveInt | None = None
    dtype: str | None = None
    extra_args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default={})


class Thresholds(Frozen):
    """Limits above (or below) which a trial is not ok; why these: docs/decisions/0005."""

    success_share: float = 0.99
    full_share_decode: float = 0.9
    client_cpu_share: float = 0.9
    loop_lag_p99_ms: float = 20.0
    front_end_cpu_share: float = 0.9
    chunk_merge_share: float = 0.1
    stalled_s: float = 120.0
    refused_share: float = 0.05
    low_disk_gb: float = 10.0
    #: CPUs (1: one of them, all the time) that processes of others may keep busy during a pass; a trial above
    #: it is flagged as disturbed
    other_cpu_share: Annotated[float, Field(gt=0)] = 1.0
    #: what holds GPU clocks back and flags a trial as throttled
    throttle_reasons: tuple[str, ...] = tuple(SLOWING)
    #: so often a flagged trial is measured again in the same boot; the first one without a flag is kept
    repeat_disturbed: Annotated[int, Field(ge=0, le=10, strict=True)] = 0
    #: a trial, from its warm-up on, ends as failed after so long; null: an hour, or what 5 tokens a second
    #: for each request would take if that is more
    trial_deadline_s: Annotated[float, Field(gt=0)] | None = None

    @field_validator("throttle_reasons")
    @classmethod
    def _known_reasons(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        unknown = sorted(set(value) - set(SLOWING))
        if unknown:
            raise ValueError(f"no such reason: {', '.join(unknown)}; allowed: {', '.join(SLOWING)}")
        return value


class RetryRule(Frozen):
    """How often a boot that failed for one cause is tried, the first time included, and what lies between."""

    attempts: Annotated[int, Field(gt=0, le=100, strict=True)] = 3
    wait_s: Annotated[float, Field(ge=0)] = 60.0


#: Why a boot may fail. Only the first two are nobody's fault in the command, and pass.
BOOT_CAUSES = (
    *("gpu_busy", "address_in_use", "boot_timeout", "server_killed", "unknown"),
    *("kv_none", "kv_too_small", "oom", "capture_oom", "illegal_access"),
    *("config_error", "plugin_error", "runner_refused", "launcher_error", "model_missing", "gated"),
)


class Sentinel(Frozen):
    """One cell measured at the start, between blocks and at the end of a run, to compare nights by.

    Its model, corpus and arm need not be among those of the sweep. ``arm`` names its K: ``kpad@8``.
    """

    model: str
    corpus: Name
    arm: str
    times: Annotated[int, Field(gt=0, le=100, strict=True)] = 3


class SweepConfig(Frozen):
    """One sweep: models x corpora x arms x Ks x rounds, and how each is run."""

    sweep: Name
    models: Annotated[tuple[str, ...], Field(min_length=1)]
    corpora: Annotated[tuple[Name, ...], Field(min_length=1)]
    arms: Annotated[tuple[str, ...], Field(min_length=1)]
    k: Annotated[tuple[Annotated[int, Field(gt=0, le=MOST_K, strict=True)], ...], Field(min_length=1)]
    rounds: Annotated[Design, PlainValidator(read_rounds), PlainSerializer(Design.as_given)] = Design(1, 1)
    repeats: PositiveInt = 1
    #: boot: a server per trial. reset: per arm and K, caches emptied between its trials. resident: as reset,
    #: with all servers of a block up at once and one driven at a time; they have to fit beside each other
    isolation: Literal["boot", "reset", "resident"] = "boot"
    seed: int = 0
    sentinel: Sentinel | None = None
    load: LoadConfig
    server: Server
    cpus: Cpus = Cpus()
    #: parts of the host on which servers run side by side; none: one server at a time, on all of it
    slots: tuple[Slot, ...] = ()
    thresholds: Thresholds = Thresholds()
    #: boots that are tried again, by the cause of their failure; what is named takes the default's place
    retry: dict[str, RetryRule] = Field(
        default={"gpu_busy": RetryRule(), "address_in_use": RetryRule(wait_s=5.0)}
    )

    @field_validator("retry")
    @classmethod
    def _known_causes(cls, value: dict[str, RetryRule]) -> dict[str, RetryRule]:
        unknown = sorted(set(value) - set(BOOT_CAUSES))
        if unknown:
            raise ValueError(f"no such cause: {', '.join(unknown)}; allowed: {', '.join(BOOT_CAUSES)}")
        return value

    @model_validator(mode="after")
    def _cpu_is_greedy(self) -> SweepConfig:
        hottest = self.load.highest_temperature()
        if self.server.platform == "cpu" and hottest > 0:
            raise ValueError(
                f"load temperature {hottest}: vLLM's CPU build samples wrong tokens with speculation; "
                "set temperature to 0, or run on a GPU"
            )
        return self

    @model_validator(mode="after")
    def _slots_are_apart(self) -> SweepConfig:
        if self.slots and self.cpus != Cpus():
            raise ValueError("cpus and slots: CPU lists are part of each slot; leave cpus out")
        server = self.server
        for fault in slot_faults(self.slots, server.platform, server.port, server.env):
            raise ValueError(fault)
        return self

    @field_validator("models", "corpora", "arms", "k")
    @classmethod
    def _no_repeats(cls, value: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(set(value)) != len(value):
            twice = dict.fromkeys(str(entry) for entry in value if value.count(entry) > 1)
            raise ValueError(f"{', '.join(twice)} is there twice; allowed: each entry once")
        return value


class Resolved(Frozen):
    """A sweep with every name looked up: what ``plan`` works from and what the manifest records.

    ``models`` and ``arms`` hold the sentinel's too; those of the sweep are the ones ``config`` lists.
    """

    config: SweepConfig
    models: dict[str, ModelEntry]
    arms: dict[str, Arm]

    @property
    def corpora(self) -> tuple[str, ...]:
        """Every corpus that is sent, the sentinel's too."""
        sentinel = self.config.sentinel
        return tuple(dict.fromkeys([*self.config.corpora, *([sentinel.corpus] if sentinel else [])]))

    def without_sentinel(self) -> Resolved:
        """The same sweep without one."""
        config = self.config.model_copy(update={"sentinel": None})
        models = {tag: self.models[tag] for tag in config.models}
        arms = {spec: self.arms[spec] for spec in config.arms}
        return Resolved(config=config, models=models, arms=arms)

    def without_slots(self) -> Resolved:
        """The same sweep with one server at a time."""
        return self.model_copy(update={"config": self.config.model_copy(update={"slots": ()})})

    def arm_of(self, name: str, arm_at_k: str) -> Arm:
        """The arm of a server variant, configured by its name or as ``name@K``."""
        return self.arms.get(name) or self.arms[arm_at_k]
