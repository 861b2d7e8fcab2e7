#!/usr/bin/env bash
# The page at /ui in headless Chromium, under two minutes beside the build. With --write the two pictures of
# docs/guide/observability.md are renewed. Chromium comes from Debian where it is missing.
set -euo pipefail
cd "$(dirname "$0")/../.."

if ! command -v chromium >/dev/null; then
    as_root=()
    [[ $(id -u) == 0 ]] || as_root=(sudo)
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null
fi

cargo build -q --locked -p pd-router -p pd-sim
built=${CARGO_TARGET_DIR:-target}/debug

pictures=${PICTURES:-$(mktemp -d)}
mkdir -p "$pictures"
PYTHONDONTWRITEBYTECODE=1 timeout 120 python3 tests/ui/check.py \
    "$built/pd-router" "$built/pd-sim" "$(command -v chromium)" "$pictures"

if [[ ${1:-} == --write ]]; then
    mkdir -p docs/guide/img
    for name in ui-calm ui-engine-down; do
        cp "$pictures/$name-1240-light.png" "docs/guide/img/$name.png"
    done
    ls -l docs/guide/img
fi
