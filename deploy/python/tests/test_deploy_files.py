"""The files of deploy/: they can be read, the program knows their flags, and what ends in time has the time."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from pd_router.binary import find_binary

DEPLOY = Path(__file__).resolve().parents[2]
KUBERNETES = list(yaml.safe_load_all((DEPLOY / "kubernetes/pd-router.yaml").read_text()))
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
UNIT = (DEPLOY / "systemd/pd-router.service").read_text()
DOCKERFILE = (DEPLOY / "container/Dockerfile").read_text()
# what the program takes beyond its drain to close its last connections, at most; app.rs has 2 s, twice
CLOSE_SECONDS = 4


def of_kind(kind):
    (found,) = [document for document in KUBERNETES if document["kind"] == kind]
    return found


POD = of_kind("Deployment")["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
SETTING = {key: value for key, _, value in (line.partition("=") for line in UNIT.splitlines()) if value}
# the example in its head stands for the file that it reads
EXAMPLE = re.search(r"PD_ROUTER_FLAGS=(.*)", UNIT).group(1)
WORDS = {
    "compose": COMPOSE["services"]["router"]["command"],
    "kubernetes": CONTAINER["args"],
    "systemd": shlex.split(SETTING["ExecStart"].replace("$PD_ROUTER_FLAGS", EXAMPLE))[1:],
}


def option(words, name, default):
    """The last value of a flag in seconds."""
    values = [word.partition("=")[2] for word in words if word.startswith(f"--{name}=")]
    return int(values[-1]) if values else default


@pytest.mark.parametrize("file", WORDS)
def test_the_program_takes_the_words(file):
    # a last word that is wrong keeps it from starting, and shows that all before it were taken
    command = [find_binary(), *WORDS[file], "--no-such-flag"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "'--no-such-flag'" in done.stderr, done.stderr


@pytest.mark.parametrize("file", WORDS)
def test_both_pools_have_an_engine(file):
    for pool in ("prefill", "decode"):
        assert any(word.startswith(f"--{pool}") for word in WORDS[file])


def test_the_drain_fits_into_the_time_to_end():
    given = {
        "compose": int(COMPOSE["services"]["router"]["stop_grace_period"].rstrip("s")),
        "kubernetes": POD["terminationGracePeriodSeconds"],
        "systemd": int(SETTING["TimeoutStopSec"]),
    }
    for file, words in WORDS.items():
        needed = option(words, "drain-grace-secs", 0) + option(words, "drain-timeout-secs", 300) + CLOSE_SECONDS
        assert needed < given[file], file


def test_new_requests_are_served_until_kubernetes_has_noticed():
    probe = CONTAINER["readinessProbe"]
    assert option(CONTAINER["args"], "drain-grace-secs", 0) > probe["periodSeconds"] * probe["failureThreshold"]


def test_kubernetes_names_fit():
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    assert ports["http"] == option(CONTAINER["args"], "port", None)
    assert ports["metrics"] == option(CONTAINER["args"], "prometheus-port", None)
    probes = {name: CONTAINER[name]["httpGet"] for name in ("readinessProbe", "livenessProbe")}
    assert {probe["path"] for probe in probes.values()} == {"/readiness", "/liveness"}
    assert {probe["port"] for probe in probes.values()} == {"http"}
    labels = of_kind("Deployment")["spec"]["template"]["metadata"]["labels"]
    for selector in (
        of_kind("Deployment")["spec"]["selector"]["matchLabels"],
        of_kind("Service")["spec"]["selector"],
        of_kind("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    assert of_kind("Service")["spec"]["ports"][0]["targetPort"] in ports


def test_compose_names_engines_that_are_there():
    named = re.findall(r"=http://(\w+):8000", " ".join(WORDS["compose"]))
    assert sorted(named) == sorted(set(COMPOSE["services"]) - {"router"})
    stages = set(re.findall(r" AS ([\w-]+)", DOCKERFILE))
    for service in COMPOSE["services"].values():
        assert service["build"]["target"] in stages
        assert (DEPLOY.parent / service["build"]["dockerfile"]).is_file()


def test_the_real_pair_in_the_comment_is_yaml():
    lines = (DEPLOY / "compose.yaml").read_text().split("# A real pair", 1)[1].splitlines()
    pair = yaml.safe_load("\n".join(line[1:] for line in lines if line.startswith("#  ")))
    assert set(pair) == {"prefill", "decode"}
    assert pair["decode"]["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]


def test_the_image_builds_what_the_workspace_has():
    copied = (DEPLOY / "container/Dockerfile.dockerignore").read_text().splitlines()
    members = re.search(r"^members = \[(.*)\]$", (DEPLOY.parent / "Cargo.toml").read_text(), re.MULTILINE).group(1)
    for member in re.findall(r'"([^"]+)"', members):
        assert f"!{member.split('/')[0]}" in copied
    rust = re.search(r'^rust-version = "(.+)"$', (DEPLOY.parent / "Cargo.toml").read_text(), re.MULTILINE).group(1)
    assert f"FROM rust:{rust}-" in DOCKERFILE
    assert re.findall(r"^FROM .*:nonroot AS ", DOCKERFILE, re.MULTILINE)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_takes_the_unit(tmp_path):
    unit = tmp_path / "pd-router.service"
    # the program need not be installed where the test runs
    unit.write_text(UNIT.replace("/usr/local/bin/pd-router", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
