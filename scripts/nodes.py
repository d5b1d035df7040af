"""Nodes, bare echoes and load generators on this machine, for the measuring scripts in this directory. All traffic
stays on loopback. Every started process is stopped at the end of its `with` block."""
import base64
import collections
import contextlib
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import zlib

# SIGTERM ends the script through `with` and `finally`, so that its nodes end, too.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

BIN = os.path.abspath(os.environ.get("BIN", "target/release/epicepoch"))
ECHO = os.environ.get("ECHO", "target/release/examples/echo")
HTTP, RAFT, ECHOES = 24300, 24400, 24500
READY_SECONDS = 30
# The limit of open files. It is enough for both ends of the largest number of connections that any
# script opens.
FILES = 22000
# Exit code of a script during which leadership moved. Requests were then rightly refused, so the
# result says nothing. Run the script again.
MOVED = 75
# Settings of the calling shell must not reach these nodes.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "TMPDIR", "LANG")}


def allow_files():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, hard), hard))


def cpu(pid):
    """Returns for how many nanoseconds all threads of a process have run. Threads that have ended
    are not counted."""
    total = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except FileNotFoundError:
            pass
    return total


def memory(pid, field="VmHWM"):
    """Returns the resident memory of a process in bytes: the highest value so far, or with `VmRSS`
    the current value."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0


def stop(processes):
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def assert_unused(ports):
    """Ends the script if another process uses one of the ports. Otherwise the script would measure
    that process."""
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                sys.exit(f"port {port} cannot be used ({error}): wait until the script that uses it has ended")


def started(block):
    """Starts a `with` block, and stops its processes again if the start fails or is interrupted."""
    try:
        block.start()
    except BaseException:
        block.__exit__()
        raise
    return block


class Foreign:
    """How much of the processors other programs use while the block runs: `share`, from 0 to 1. It counts what the
    host of a virtual machine takes (steal), too. Processes that the block starts must end within it."""

    def __enter__(self):
        self.before = self.read()
        return self

    def __exit__(self, *_):
        busy, own, total = (now - was for now, was in zip(self.read(), self.before))
        self.share = max(0.0, busy - own) / total

    @staticmethod
    def read():
        """Seconds since the start: all programs, this script with its children, and all processors."""
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, idle, iowait, irq, softirq, steal = map(int, file.readline().split()[1:9])
        tick = os.sysconf("SC_CLK_TCK")
        own = sum(it.ru_utime + it.ru_stime
                  for it in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))
        busy = user + nice + system + irq + softirq + steal
        return busy / tick, own, (busy + idle + iowait) / tick


def until(what, holds):
    """Waits until `holds` says yes."""
    deadline = time.monotonic() + READY_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            sys.exit(f"not so after {READY_SECONDS} s: {what}")
        time.sleep(0.05)


def header(url, name):
    """Returns a header of the answer with the status 200; None if there is none."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.headers.get(name) if answer.status == 200 else None
    except OSError:
        return None


def command(*words):
    """Runs a command of the program until it succeeds: a new cluster may not be ready for it yet."""
    deadline = time.monotonic() + READY_SECONDS
    while (done := subprocess.run([BIN, *words], capture_output=True, text=True, check=False)).returncode != 0:
        if time.monotonic() > deadline:
            sys.exit(f"epicepoch {' '.join(words)}: {done.stdout}{done.stderr}")
        time.sleep(0.2)


class Cluster:
    """Nodes on this machine, which stop at the end of the block. The value of a setting may be a
    function: it is called with each node's id."""

    def __init__(self, nodes=3, **settings):
        self.count, self.settings, self.processes = nodes, settings, []

    def __enter__(self):
        assert_unused(base + i for base in (HTTP, RAFT) for i in range(1, self.count + 1))
        self.directory = pathlib.Path(tempfile.mkdtemp())
        return started(self)

    def start(self):
        """Starts the nodes and waits until they answer."""
        self.processes = [self.launch(i) for i in range(1, self.count + 1)]
        self.addrs = ",".join(f"127.0.0.1:{HTTP + i}" for i in range(1, self.count + 1))
        self.pids = [process.pid for process in self.processes]
        deadline = time.monotonic() + READY_SECONDS
        while subprocess.run([BIN, "get", "--addr", self.addrs], capture_output=True, check=False).returncode != 0:
            if time.monotonic() > deadline or any(process.poll() is not None for process in self.processes):
                sys.exit(f"the nodes did not get ready: {self.logs()}")
            time.sleep(0.1)

    def launch(self, i):
        """Starts the process of one node, and returns it."""
        peers = ",".join(f"{i}=127.0.0.1:{RAFT + i}" for i in range(1, self.count + 1))
        settings = {
            "NODE_ID": i, "RAFT_ADDR": f"127.0.0.1:{RAFT + i}", "HTTP_PORT": HTTP + i,
            "DATA_DIR": self.directory / str(i), "BOOTSTRAP": 1, "PEERS": peers, **self.settings,
        }
        values = {name: str(value(i) if callable(value) else value) for name, value in settings.items()}
        environment = {**ENVIRONMENT, **values}
        with open(self.directory / f"{i}.log", "wb") as log:
            # A node writes its certificate into its working directory.
            return subprocess.Popen([BIN, "serve"], env=environment, cwd=self.directory, stdout=log, stderr=log)

    def kill(self, at):
        """Kills the process of the node at a position, from 0."""
        self.processes[at].kill()
        self.processes[at].wait()

    def restart(self, at):
        """Starts a killed node again, with its data."""
        self.processes[at] = self.launch(at + 1)

    def __exit__(self, *_):
        stop(self.processes)
        shutil.rmtree(self.directory)

    def logs(self):
        """Returns the last 500 characters of every node's log."""
        return "".join((self.directory / f"{i}.log").read_text()[-500:] for i in range(1, self.count + 1))

    def bench(self, seconds, *args):
        """Runs `bench run` once, and returns the report."""
        return bench(self.addrs, self.pids, seconds, *args)

    def leader(self):
        """Returns the position of the node that leads, from 0, or None."""
        for at in range(self.count):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{HTTP + 1 + at}/leader", timeout=2) as answer:
                    if answer.status == 200:
                        return at
            except OSError:
                pass
        return None

    def url(self):
        """The URL of the leader."""
        leader = self.leader()
        if leader is None:
            sys.exit(f"no node leads: {self.logs()}")
        return f"http://127.0.0.1:{HTTP + 1 + leader}/timestamp"

    def moves(self):
        """The number of leader changes."""
        return self.metric("epicepoch_leader_changes_total") or 0

    def metric(self, name):
        """Returns the sum of a counter over all nodes and labels, or None if a node does not
        answer."""
        total = 0
        for at in range(self.count):
            try:
                text = self.metrics(at)
            except OSError:
                return None
            found = re.findall(rf"^{name}(?:\{{[^}}]*\}})? ([0-9.e+-]+)$", text, re.M)
            if not found:
                sys.exit(f"no metric {name}")
            total += sum(map(float, found))
        return total

    def metrics(self, at):
        """The metrics of one node, as text."""
        with urllib.request.urlopen(f"http://127.0.0.1:{HTTP + 1 + at}/metrics", timeout=5) as answer:
            return answer.read().decode()

    def memory_max(self):
        """Returns the highest resident memory of any node so far, in bytes."""
        return max(memory(pid) for pid in self.pids)


class Proxy:
    """A TCP proxy in front of a port. It delays each chunk of bytes, or is cut: it then closes every connection."""

    def __init__(self, port, target, delay=0.0):
        self.target, self.delay, self.is_cut, self.sockets = target, delay, False, set()
        self.listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near = self.listener.accept()[0]
            except OSError:
                return
            try:
                far = None if self.is_cut else socket.create_connection(("127.0.0.1", self.target), 1)
            except OSError:
                far = None
            if far is None:
                near.close()
                continue
            far.settimeout(None)
            self.sockets |= {near, far}
            for ends in ((near, far), (far, near)):
                threading.Thread(target=self.pump, args=ends, daemon=True).start()

    def pump(self, source, target):
        try:
            while data := source.recv(65536):
                time.sleep(self.delay)
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self):
        self.is_cut = True
        for end in list(self.sockets):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # Wakes the thread that accepts. Until then the port stays in use.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.cut()


class Echoes:
    """A bare echo: a server that answers every request with the same bytes. With `pair`, it first
    asks a second echo. Its answers are as long as those of the URL `like`."""

    def __init__(self, like, pair=False):
        self.like, self.pair, self.processes = like, pair, []

    def __enter__(self):
        return started(self)

    def start(self):
        """Starts the echo and waits until it answers."""
        head = subprocess.run(["curl", "-s", "-i", self.like], capture_output=True, check=True, timeout=10).stdout
        behind = [str(ECHOES + 1)] if self.pair else []
        for port, last in ((ECHOES + 1, []), (ECHOES, behind))[0 if self.pair else 1:]:
            self.processes.append(subprocess.Popen([ECHO, str(port), str(len(head)), *last]))
        self.url, self.addrs = f"http://127.0.0.1:{ECHOES}/timestamp", f"127.0.0.1:{ECHOES}"
        # The echo that clients ask was started last. It must be the first in this list.
        self.pids = [process.pid for process in reversed(self.processes)]
        deadline = time.monotonic() + READY_SECONDS
        while subprocess.run(["curl", "-sf", "--max-time", "2", "-o", "/dev/null", self.url], check=False).returncode != 0:
            if time.monotonic() > deadline:
                sys.exit("the echo does not answer")
            time.sleep(0.05)

    def __exit__(self, *_):
        stop(self.processes)


def bench(addrs, pids, seconds, *args, before=()):
    """Runs `bench run` once, under the command `before` if given, and returns the report."""
    with tempfile.NamedTemporaryFile() as file:
        command = [*before, BIN, "bench", "run", "--addr", addrs, "--duration", f"{seconds}s", "--report", file.name]
        if pids:
            command += ["--pid", ",".join(map(str, pids))]
        command += map(str, args)
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: {done.stderr or done.stdout}")
        report = json.loads(pathlib.Path(file.name).read_text())
    if report["verify"] and report["verify"]["violations"]:
        sys.exit(f"{' '.join(command)}: violations of order or uniqueness: {report['verify']['stories']}")
    return report


def failed(report):
    """Returns the number of requests of a run that got no timestamps."""
    return sum(report["failures"].values()) + report["unsent"]


def histogram(text):
    """Returns the values (nanoseconds) and counts of a report's histogram. The text is a compressed
    HdrHistogram V2 in base64."""
    data = zlib.decompress(base64.b64decode(text)[8:])
    digits, low = struct.unpack(">i", data[12:16])[0], struct.unpack(">q", data[16:24])[0]
    half = (2 * 10**digits - 1).bit_length() - 1
    unit, at, index, counts = low.bit_length() - 1, 40, 0, {}
    while at < len(data):
        number = shift = 0
        for byte in data[at:at + 9]:
            at += 1
            # The ninth byte is always the last one, so all its bits are data.
            number |= (byte if shift == 56 else byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        count = (number >> 1) ^ -(number & 1)
        if count < 0:
            index -= count
            continue
        bucket, within = (index >> half) - 1, index & ((1 << half) - 1)
        value = within << unit if bucket < 0 else (within + (1 << half)) << (bucket + unit)
        counts[value] = counts.get(value, 0) + count
        index += 1
    return counts


def percentile(reports, share):
    """Returns a percentile over all requests of several runs: the latency, in nanoseconds, that the
    given share of them did not exceed."""
    counts = collections.Counter()
    for report in reports:
        counts.update(histogram(report["latency_ns"]["histogram"]))
    rank, seen = share * sum(counts.values()), 0
    for value in sorted(counts):
        seen += counts[value]
        if seen >= rank:
            return value
    return 0


def echo_p50(seconds=0.3, spinning=False):
    """Returns the median round trip of a bare echo, in microseconds. Both ends sleep while they
    wait, or spin."""
    command = [BIN, "bench", "floor", "--duration", f"{int(seconds * 1000)}ms", "--output", "json"]
    floor = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return floor["echo_spinning_ns" if spinning else "echo_sleeping_ns"]["p50"] / 1000


UNITS = {"us": 1, "ms": 1e3, "s": 1e6}


def wrk(url, connections, seconds, before=()):
    """Runs wrk with one thread, under the command `before` if given. Returns requests per second, answers, p50 and p99
    in microseconds, failed requests."""
    command = [*before, "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", url]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    times = {share: float(value) * UNITS[unit] for share, value, unit in
             re.findall(r"^ +(50|99)% +([0-9.]+)(us|ms|s)$", text, re.M)}
    errors = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", text)
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    return {
        "rate": float(re.search(r"Requests/sec: +([0-9.]+)", text)[1]),
        "answers": int(re.search(r"(\d+) requests in", text)[1]),
        "p50_us": times["50"], "p99_us": times["99"],
        "failed": (sum(map(int, errors.groups())) if errors else 0) + (int(refused[1]) if refused else 0),
    }


def h2load(url, connections, streams, seconds):
    """Runs h2load with one thread. Returns requests per second and failed requests."""
    command = ["h2load", "-t1", f"-c{connections}", f"-m{streams}", f"-D{seconds}", url]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lost = re.search(r"(\d+) failed, (\d+) errored, (\d+) timeout", text)
    answered = re.search(r"status codes: (\d+) 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx", text)
    return {
        "rate": float(re.search(r"finished in .*?, ([0-9.]+) req/s", text)[1]),
        "failed": sum(map(int, lost.groups())) + sum(map(int, answered.groups()[1:])),
    }
