"""Runs commands, states what was shown, and ends the script at the first thing that is not as it should be. For the
scripts that try a release."""
import subprocess
import sys
import time

COMMAND_SECONDS = 120


def run(*command, check=True, **more):
    """Runs a command. Returns its exit code and its whole output."""
    more = {"timeout": COMMAND_SECONDS, "stdin": subprocess.DEVNULL} | more
    out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run([*map(str, command)], text=True, check=False, **out,
                          **more)
    if check and done.returncode != 0:
        sys.exit(f"FAILED with {done.returncode}: {' '.join(map(str, command))}\n{done.stdout}")
    return done.returncode, done.stdout.strip()


def claim(is_so, what, detail=""):
    """Prints what was shown, or ends."""
    if not is_so:
        sys.exit(f"FAILED: {what}\n{detail}")
    print(f"  {what}", flush=True)


def wait_until(is_so, what, seconds, pause=0.2):
    end = time.monotonic() + seconds
    while not (found := is_so()):
        if time.monotonic() > end:
            sys.exit(f"FAILED within {seconds} s: {what}")
        time.sleep(pause)
    return found


def one(directory, pattern):
    """The only file of a release that fits the pattern."""
    found = [path for path in directory.glob(pattern) if "debug" not in path.name or "debug" in pattern]
    if len(found) != 1:
        sys.exit(f"{directory} has {len(found)} files {pattern}; make it with scripts/release")
    return found[0]


def is_timestamp(text):
    return len(text) == 32 and set(text) <= set("0123456789abcdef")
