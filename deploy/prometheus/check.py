"""What check.sh asks a Prometheus: `queries URL` runs every query of the dashboard, `up URL` prints how many
routers it scrapes, `firing URL ALERT` those for which an alert fires."""

import json
import math
import sys
import urllib.parse
import urllib.request
from pathlib import Path

DASHBOARD = Path(__file__).resolve().parent.parent / "grafana" / "pd-router.json"


def get(url, path, **query):
    with urllib.request.urlopen(f"{url}{path}?{urllib.parse.urlencode(query)}", timeout=10) as answer:
        return json.load(answer)["data"]


def queries(url):
    empty, count, zero = [], 0, []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"].replace("$__rate_interval", "30s").replace("$instance", ".*")
            values = [float(one["value"][1]) for one in get(url, "/api/v1/query", query=query)["result"]]
            numbers = [value for value in values if not math.isnan(value)]
            count += 1
            if not numbers:
                empty.append(f"{panel['title']}: {query}")
            elif not any(numbers):
                zero.append(panel["title"])
    if empty:
        print("no data for:\n" + "\n".join(empty))
        return 1
    print(f"{count} queries return data; only zeros: {', '.join(sorted(set(zero))) or 'none'}")
    return 0


def up(url):
    print(len(get(url, "/api/v1/query", query="up == 1")["result"]))
    return 0


def firing(url, name):
    alerts = get(url, "/api/v1/alerts")["alerts"]
    found = [one for one in alerts if one["labels"]["alertname"] == name and one["state"] == "firing"]
    print("\n".join(sorted(one["labels"]["instance"] for one in found)))
    return 0


if __name__ == "__main__":
    sys.exit({"queries": queries, "firing": firing, "up": up}[sys.argv[1]](*sys.argv[2:]))
