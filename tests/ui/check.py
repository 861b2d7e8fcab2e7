"""The page at /ui in a real browser: a calm demo, then a router of whose decode engines one is killed."""

import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request

from browser import Browser

ROUTER, SIM, CHROMIUM, PICTURES = sys.argv[1:5]

# The router is on loopback: no proxy of the environment comes between.
OPEN = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

# Seconds of traffic: the router takes a point every two seconds.
TRAFFIC_SECS = 16
PHONE = 390


def start(words, pattern):
    """A program, and what the pattern finds in its output, within 20 s."""
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    timer = threading.Timer(20, child.kill)
    timer.start()
    said = []
    for line in child.stdout:
        said.append(line)
        if found := re.search(pattern, line):
            timer.cancel()
            # What else it says is read, so that it is never kept from going on.
            threading.Thread(target=child.stdout.read, daemon=True).start()
            return child, found.group(1)
    timer.cancel()
    child.wait()
    raise AssertionError(f"{words}: no {pattern} in {''.join(said)!r}")


def stop(children):
    for child in children:
        child.terminate()
    for child in children:
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


class Traffic:
    """Streamed chat requests, four at a time, until it ends."""

    def __init__(self, url):
        self.url, self.going, self.tokens = url, True, 0
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(4)]
        for thread in self._threads:
            thread.start()

    def _run(self, number):
        count = 0
        while self.going:
            count += 1
            body = {"model": "sim", "stream": True, "max_tokens": 8 + count % 5 * 4,
                    "messages": [{"role": "user", "content": f"{number} {count} " + "words " * (count % 7 * 20)}]}
            request = urllib.request.Request(f"{self.url}/v1/chat/completions", json.dumps(body).encode(),
                                             {"content-type": "application/json"})
            try:
                with OPEN(request, timeout=10) as answer:
                    self.tokens += answer.read().count(b"data: ")
            except OSError:
                time.sleep(0.1)

    def end(self):
        self.going = False
        for thread in self._threads:
            thread.join(15)


def state(url):
    with OPEN(f"{url}/ui/state", timeout=5) as answer:
        return json.load(answer)


def check(holds, what, more=""):
    if not holds:
        raise AssertionError(f"{what} {more}")
    print(f"ok: {what}")


def looks(browser, name):
    """Light and dark, wide and on a phone; a picture of each, and what is wrong."""
    backs = {}
    for width, height in ((1240, 900), (830, 900), (700, 900), (PHONE, 844)):
        for scheme in ("light", "dark"):
            browser.look(width, height, scheme)
            time.sleep(0.3)
            wide = browser.value("document.documentElement.scrollWidth")
            out = browser.value(
                "[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1"
                " && getComputedStyle(e).position !== 'absolute' && !e.closest('thead'))"
                ".map(e => e.tagName + ' ' + e.id + ' ' + e.textContent.slice(0, 40))")
            check(wide <= width and not out, f"{name}, {width} px, {scheme}: nothing is wider than the window", (wide, out))
            backs[scheme] = browser.value("getComputedStyle(document.body).backgroundColor")
            browser.picture(os.path.join(PICTURES, f"{name}-{width}-{scheme}.png"))
    light, dark = (sum(map(int, re.findall(r"\d+", backs[one])[:3])) for one in ("light", "dark"))
    check(light > 3 * 180 and dark < 3 * 80, f"{name}: light is light and dark is dark", backs)


def calm(browser):
    child, url = start([ROUTER, "--demo", "2x2", "--port", "0", "--prometheus-port", "0"],
                       r"router +(http://127\.0\.0\.1:\d+)")
    try:
        browser.look(1240, 900, "light")
        browser.call("Page.navigate", url=f"{url}/ui")
        browser.until("document.getElementById('verdict')?.textContent === 'Healthy'", "Healthy")
        traffic = Traffic(url)
        time.sleep(TRAFFIC_SECS)
        text = browser.value("document.body.innerText")
        for pool in state(url)["pools"]:
            for engine in pool["engines"]:
                check(engine["url"] in text, f"{pool['role']} engine {engine['url']} is shown", text)
        for chart in ("rate-chart", "ttft-chart", "itl-chart"):
            points = browser.value(f"[...document.querySelectorAll('#{chart} path')].map(p => (p.getAttribute('d')"
                                   ".match(/L/g) || []).length).reduce((a, b) => Math.max(a, b), 0)")
            check(points >= 3, f"{chart} has points", points)
        counts = browser.value("[...document.querySelectorAll('.pools td.num, #times td.num')].map(t => t.innerText)"
                               ".filter(t => /^[0-9.,]+$/.test(t))")
        check(counts and not any("." in count for count in counts), "counts are whole numbers", counts)
        colours = browser.value("['k50', 'k99'].map(c => getComputedStyle(document.querySelector('#ttft .' + c)).color)")
        check(colours[0] != colours[1], "p50 and p99 have the colours of their lines", colours)
        check(browser.value("document.getElementById('no-failures').hidden") is False, "no failure is shown")
        looks(browser, "ui-calm")
        traffic.end()
        # It leaves before the router does, whose end it would complain of.
        browser.call("Page.navigate", url="about:blank")
        check(traffic.tokens > 100, "the traffic was served", traffic.tokens)
    finally:
        stop([child])


def one_engine_down(browser):
    engines = []
    try:
        for role in ("prefill", "prefill", "decode", "decode"):
            child, url = start([SIM, "--role", role, "--port", "0"], r"engine on (http://127\.0\.0\.1:\d+)")
            engines.append((child, role, url))
        words = [ROUTER, "--host", "127.0.0.1", "--port", "0", "--prometheus-port", "0"]
        words += [word for _, role, url in engines for word in (f"--{role}", url)]
        child, url = start(words, r"listening on (http://127\.0\.0\.1:\d+)")
        engines.append((child, "router", url))
        browser.look(1240, 900, "light")
        browser.call("Page.navigate", url=f"{url}/ui")
        browser.until("document.getElementById('verdict')?.textContent === 'Healthy'", "Healthy")
        traffic = Traffic(url)
        time.sleep(TRAFFIC_SECS / 2)
        victim, _, gone = engines[3]
        before = browser.value("document.getElementById('findings').textContent")
        check(gone not in before, "before the end of an engine the page says nothing of it", before)
        victim.kill()
        victim.wait()
        browser.until(f"document.getElementById('findings').textContent.includes('decode engine {gone} is down')",
                      f"that {gone} is down")
        print(f"ok: the page says that {gone} is down")
        row = browser.value("[...document.querySelectorAll('#pool-decode tbody tr')].map(r => r.innerText)"
                            f".find(t => t.includes('{gone}'))")
        check("down" in row, "its row says so too", row)
        check(browser.value("document.title").startswith("! "), "the title says that something is wrong")
        time.sleep(6)
        check(gone in browser.value("document.getElementById('failures').textContent"), "failures name the engine")
        looks(browser, "ui-engine-down")
        traffic.end()
        top = subprocess.run([ROUTER, "top", url, "--once"], capture_output=True, text=True, timeout=20, check=True)
        check(f"decode engine {gone} is down" in top.stdout, "`pd-router top` says it too", top.stdout)
        # It leaves before the router does, whose end it would complain of.
        browser.call("Page.navigate", url="about:blank")
    finally:
        stop([child for child, _, _ in reversed(engines)])


def main():
    started = time.monotonic()
    browser = Browser(CHROMIUM)
    try:
        calm(browser)
        one_engine_down(browser)
        check(not browser.errors, "the console has no error", browser.errors)
    finally:
        browser.end()
    print(f"all good in {time.monotonic() - started:.0f} s; pictures in {PICTURES}")


main()
