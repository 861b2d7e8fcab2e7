#!/usr/bin/env bash
# pd-router, the floor and vllm-router 0.1.17 side by side, in turns, on mock engines: README.md beside this file.
#   run.sh [--quick] [--binaries DIR] [further options of `pd-bench run`]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
quick="" binaries="" more=()
while (($#)); do
    case $1 in
    --quick) quick=1 ;;
    --binaries) binaries=$(cd "${2:?--binaries needs a directory}" && pwd) && shift ;;
    *) more+=("$1") ;;
    esac
    shift
done
out=${OUT:-$root/target/compare}
mkdir -p "$out"
if [[ $binaries ]]; then
    bin=$binaries
else
    (cd "$root" && cargo build --release --locked -p pd-router -p pd-bench)
    bin=${CARGO_TARGET_DIR:-$root/target}/release
fi
work=$root/target/compare-python
# The wheel's files are enough: nothing is installed, and it runs where there is no network.
if [[ ! -d $work/vllm_router ]]; then
    mkdir -p "$work/wheel"
    if [[ $binaries ]]; then
        cp "$binaries"/vllm_router-0.1.17-*.whl "$work/wheel/"
    else
        python3 -m venv "$work/venv"
        "$work/venv/bin/pip" download -q --no-deps -d "$work/wheel" vllm-router==0.1.17
    fi
    (cd "$work" && python3 -m zipfile -e wheel/vllm_router-0.1.17-*.whl .)
fi
export PYTHONPATH=$work
cores=$(nproc)
threads=$((cores >= 12 ? 4 : 1))
if [[ $quick ]]; then
    plan=(--seconds 1.5 --repeats 3 --work small-1,small-64,ids-16k,text-4m,burst,slow-512)
else
    plan=(--seconds 3 --repeats 3)
fi
{
    echo "machine: $cores cores, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), Linux $(uname -r)"
    echo "pd-router: $(git -C "$root" rev-parse --short HEAD 2>/dev/null || echo unknown commit)"
    echo "date: $(date -u +%FT%TZ)"
    "$bin/pd-bench" run "${plan[@]}" --generator-threads "$threads" --engine-threads "$threads" \
        --json "$out/compare.json" \
        --subject "pd-router=$bin/pd-router --port {port} --prometheus-port {metrics_port} {prefill} {decode}" \
        --subject "vllm-router=python3 $here/start_vllm_router.py --vllm-pd-disaggregation --port {port} --prometheus-port {metrics_port} --worker-startup-check-interval 1 {prefill} {decode}" \
        "${more[@]}"
} | tee "$out/compare.txt"
