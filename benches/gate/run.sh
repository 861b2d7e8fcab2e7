#!/usr/bin/env bash
# Instructions a request against benches/gate/baseline.json; `--write` renews that file.
set -euo pipefail
cd "$(dirname "$0")/../.."
if ! command -v valgrind >/dev/null; then
    echo "installing valgrind"
    sudo=$([ "$(id -u)" = 0 ] || echo sudo)
    $sudo apt-get install -y --no-install-recommends valgrind >/dev/null ||
        { echo "valgrind is missing and could not be installed: install the package valgrind" >&2; exit 1; }
fi
cargo build --release --locked -p pd-router -p pd-gate
built=${CARGO_TARGET_DIR:-target}/release
exec "$built/pd-gate" --router "$built/pd-router" --baseline benches/gate/baseline.json "$@"
