"""Runs a program with a limit of time. When the time is over it is interrupted, so that it ends what it started.

`epicepoch lab` starts nodes. After SIGKILL they would run on, so SIGKILL comes last.
"""
import signal
import subprocess

# How long an interrupted program may take to end.
ENDING_SECONDS = 20


def run(command, seconds, **options):
    """Like subprocess.run without a check. A program that takes longer than `seconds` is interrupted, then killed.

    Raises subprocess.TimeoutExpired then. If this script is interrupted, the program is, too.
    """
    with subprocess.Popen(command, **options) as process:
        try:
            out, error = process.communicate(timeout=seconds)
        except BaseException:
            end(process)
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, error)


def end(process):
    """Interrupts a program, and waits for its end."""
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
