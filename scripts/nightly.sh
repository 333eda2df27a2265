#!/usr/bin/env bash
# One night, for cron or a systemd timer; docs/nightly.md. Arguments go on to `kpad-bench nightly`.
set -euo pipefail
cd "$(dirname "$0")/.."
export TZ=UTC PATH="$PWD/.venv/bin:$PATH"
exec kpad-bench nightly --config "${KPAD_BENCH_CONFIG:-nightly-dgx-b200}" --progress plain "$@"
