#!/usr/bin/env bash
# Measure configs/h200-evidence.yaml in short windows of GPU time: run it again to go on where it stopped,
# on the same host or on another one of the same GPU kind with the results folder copied there.
#
#   scripts/h200_evidence.sh SECONDS RESULTS [options of kpad-bench sweep]
#
# Before the first time, on a machine with the sources:
#   kpad-bench models fetch smollm2-135m
#   for corpus in humaneval mbpp swebench mix-code; do
#       kpad-bench corpora freeze "$corpus" --tokenizer smollm2-135m     # mbpp, swebench: --source, offline
#   done
# Ends with the best-K table of what is there. Exit 130: the time was over in the middle of a round.
set -uo pipefail
seconds=${1:?seconds} results=${2:?results folder}
shift 2
kpad=(python3 -m kpad_bench.cli)
timeout --signal=INT --kill-after=60 "$seconds" \
    "${kpad[@]}" sweep --config h200-evidence --out "$results" --progress plain "$@"
status=$?
"${kpad[@]}" reduce "$(ls -td "$results"/h200-evidence/*/ | head -n 1)" --candidates kpad,kfill
exit "$status"
