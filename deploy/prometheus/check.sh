#!/usr/bin/env bash
# A real Prometheus reads running routers: config, rules and test cases are good, every query of the dashboard
# returns data, and the alert for "no decode engine" fires when the only decode engine is killed, not before.
# Takes about half a minute once built, on loopback; what it starts ends with it.
set -euo pipefail
cd "$(dirname "$0")/../.."
built=${CARGO_TARGET_DIR:-target}
work=$(mktemp -d)
pids=()
finish() {
    local code=$? pid
    # each by its own id, the newest first
    for ((i = ${#pids[@]} - 1; i >= 0; i--)); do kill "${pids[i]}" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
    if [ "$code" != 0 ]; then tail -n 20 "$work"/*.log >&2 || true; fi
    rm -rf "$work"
}
trap finish EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
start() { # NAME COMMAND...: runs it with its output in NAME.log; its id is in $!
    local name=$1
    shift
    "$@" >"$work/$name.log" 2>&1 &
    pids+=($!)
}

# Debian's package, unpacked and not installed: its service would listen on every address.
if ! command -v prometheus >/dev/null || ! command -v promtool >/dev/null; then
    tools=$built/prometheus
    if [ ! -x "$tools/usr/bin/promtool" ]; then
        echo "fetching the package prometheus"
        (cd "$work" && apt-get download prometheus >apt.log 2>&1) ||
            fail "prometheus is missing and its package could not be had (apt-get update?): install prometheus"
        mkdir -p "$tools"
        dpkg-deb -x "$work"/prometheus_*.deb "$tools"
    fi
    PATH=$(cd "$tools/usr/bin" && pwd):$PATH
fi

rules=deploy/prometheus
promtool check config "$rules/prometheus.yml"
promtool check rules "$rules/alerts.yml"
promtool test rules "$rules/alerts_test.yml"

for kind in release debug ""; do
    [ -n "$kind" ] || { cargo build --locked -p pd-router -p pd-sim; kind=debug; }
    if [ -x "$built/$kind/pd-router" ] && [ -x "$built/$kind/pd-sim" ]; then break; fi
done
router=$built/$kind/pd-router sim=$built/$kind/pd-sim
read -r demo demo_metrics pair pair_metrics prefill decode prom < <(python3 -c '
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(7)]
print(*(one.getsockname()[1] for one in sockets))')

start demo "$router" --demo 2x2 --port "$demo" --prometheus-port "$demo_metrics"
start prefill "$sim" --role prefill --port "$prefill"
start decode "$sim" --role decode --port "$decode"
decode_pid=$!
start pair "$router" --prefill "http://127.0.0.1:$prefill" --decode "http://127.0.0.1:$decode" \
    --port "$pair" --prometheus-port "$pair_metrics" --health-check-interval-secs 1
# the rules as they are, but sooner
sed -E 's/^( +for: ).*/\13s/' "$rules/alerts.yml" >"$work/alerts.yml"
cat >"$work/prometheus.yml" <<YAML
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [alerts.yml]
scrape_configs:
  - job_name: pd-router
    static_configs: [{targets: ["127.0.0.1:$demo_metrics", "127.0.0.1:$pair_metrics"]}]
YAML
start prometheus prometheus --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/data" \
    --web.listen-address="127.0.0.1:$prom"

ready() { curl -sf -m 2 -o /dev/null "$1"; }
for url in "http://127.0.0.1:$demo/readiness" "http://127.0.0.1:$pair/readiness" "http://127.0.0.1:$prom/-/ready"; do
    for _ in $(seq 100); do ready "$url" && break; sleep 0.2; done
    ready "$url" || fail "$url is not ready within 20 s"
done
for _ in $(seq 50); do grep -q '^Serving' "$work/demo.log" && break; sleep 0.2; done

ask() { # PATH BODY
    curl -s -m 10 -o /dev/null "http://127.0.0.1:$demo$1" -H 'content-type: application/json' -d "$2" || true
}
fault() { # ROLE FAULT: the next request of the first engine of that role has it
    local url
    url=$(sed -n "s/^$1  *\(http:[^ ]*\).*/\1/p" "$work/demo.log" | head -n 1)
    curl -sf -m 5 -o /dev/null "$url/sim/fault" -d "$2" || fail "the $1 engine takes no fault"
}
traffic() { # some good requests, and some of each trouble
    for round in 1 2 3; do
        for number in 1 2 3 4; do
            ask /v1/chat/completions "{\"model\":\"sim\",\"stream\":true,\"max_tokens\":8,\"messages\":[{\"role\":\"user\",\"content\":\"round $round, number $number\"}]}"
        done
        ask /v1/completions '{"model":"sim","prompt":"hello","max_tokens":4,"kv_transfer_params":{"do_remote_prefill":true}}'
        ask /v1/completions 'not JSON'
        fault decode '{"kind":{"status":{"status":500,"body":"{}"}},"times":1}'
        fault prefill '{"kind":{"missing":"absent"},"times":1}'
    done
}
# a rate needs a scrape before the first request and one after the last
for _ in $(seq 50); do [ "$(python3 "$rules/check.py" up "http://127.0.0.1:$prom")" = 2 ] && break; sleep 0.2; done
traffic
sleep 3
dead=$(python3 "$rules/check.py" queries "http://127.0.0.1:$prom") || fail "$dead"
echo "$dead"

firing() { python3 "$rules/check.py" firing "http://127.0.0.1:$prom" PdRouterNoDecodeEngine; }
[ -z "$(firing)" ] || fail "PdRouterNoDecodeEngine fires while decode engines are up: $(firing)"
# without the shell's own word on a child that was killed
{ kill -9 "$decode_pid" && wait "$decode_pid" || true; } 2>/dev/null
for _ in $(seq 60); do [ -n "$(firing)" ] && break; sleep 0.5; done
[ "$(firing)" = "127.0.0.1:$pair_metrics" ] || fail "PdRouterNoDecodeEngine fires for: '$(firing)', not for the one router that lost its decode engine"
echo "PdRouterNoDecodeEngine fires for the router whose only decode engine was killed, and did not before"
