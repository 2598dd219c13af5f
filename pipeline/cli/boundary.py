"""The one place where exceptions become exit codes and one line on stderr.

    0 ok, promotable, staged   1 a candidate failed a gate   2 usage   3 environment missing (the line names the fix)
    4 infrastructure (retryable)   5 integrity   130 interrupted (what was done is kept; `kgen resume`)

Classes are matched by name, so that nothing heavy is imported to say that an option is unknown.
"""

import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from types import FrameType

import typer

from kgen.cli import output

OK, FAILED, USAGE, ENVIRONMENT, INFRASTRUCTURE, INTEGRITY, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130

CODES: Mapping[str, int] = {
    "kgen.cli.boundary.Usage": USAGE,
    "kgen.cli.boundary.Missing": ENVIRONMENT,
    "kgen.cli.boundary.Stopped": FAILED,
    "kgen.pool.dispatch.PoolError": INFRASTRUCTURE,
    "kgen.pool.ray_nodes.NoRay": ENVIRONMENT,
    "kgen.store.errors.StoreError": INFRASTRUCTURE,
    "kgen.store.errors.IntegrityError": INTEGRITY,
    "kgen.records.codec.RecordError": INTEGRITY,
    "kgen.promotion.case.Refused": FAILED,
    "kgen.promotion.verify.RebuildUnavailable": ENVIRONMENT,
    "kgen.config.keys.ConfigError": USAGE,
    "kgen.proposers.base.SetupError": ENVIRONMENT,
    "kgen.proposers.base.ProposerFailure": INFRASTRUCTURE,
    "kgen.loop.steps.Waiting": INFRASTRUCTURE,
    "kgen.gates.sandbox.levels.NoSandboxError": ENVIRONMENT,
    "kgen.gates.builder.outcome.BuilderError": ENVIRONMENT,
    "kgen.gates.audit.recorder.RecorderError": ENVIRONMENT,
    "kgen.gates.kit_wheels.KitError": ENVIRONMENT,
    "kgen.serve.runtime.RuntimeMissing": ENVIRONMENT,
    "builtins.ModuleNotFoundError": ENVIRONMENT,
    "builtins.OSError": INFRASTRUCTURE,
}
# evidence that is no evidence is a wrong argument; evidence that does not hold together is damage; else it is refused
REFUSALS: Mapping[str, int] = {
    "ingest.format": USAGE,
    "ingest.empty": USAGE,
    "ingest.altered": INTEGRITY,
    "ingest.objects": INTEGRITY,
    "ingest.inconsistent": INTEGRITY,
    "ingest.raw": INTEGRITY,
}
INSTALL = (
    "pip install kgen's requirements (nvidia-cutlass-dsl, apache-tvm-ffi, torch, langgraph); kgen doctor shows more"
)


SAME_WISH_S = 3.0


class Usage(ValueError):
    """A wrong argument: one line that says what would be right."""


class Missing(Exception):
    """This machine lacks something: one line that names the fix."""


class Stopped(Exception):
    """A candidate failed a gate; one line."""


_signalled = threading.Event()  # a signal asked this command to stop
_when = [0.0]  # by the monotonic clock
_next = [""]  # what takes up the run at hand

ClickException: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def run(app: typer.Typer, argv: Sequence[str]) -> int:
    """Run a command line; returns the exit code. Never lets an exception through."""
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # torch without numpy: kgen needs none
    output.as_json, output.emitted = "--json" in argv, False
    output.tolerate()
    _signalled.clear()
    taken_up_by("")
    if unreadable := next((text for text in (*argv, *_places()) if not _is_text(text)), ""):
        return complain(f"{unreadable!r} is not UTF-8 and cannot be recorded: give that path another name", USAGE)
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _stopped)
    try:
        code = app(args=list(argv), prog_name="kgen", standalone_mode=False)
        if code == INTERRUPTED:  # what newer versions of typer make of Ctrl-C
            return _interrupted()
        sys.stdout.flush()
        return int(code or OK)
    except (BrokenPipeError, SystemExit):  # `kgen ... | head`: whoever read has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except ClickException as error:
        return _usage(error)
    # The boundary of the process: whatever went wrong becomes one line and an exit code.
    except Exception as error:  # noqa: BLE001
        return complain(_line(error), exit_code(error), error)


def _places() -> list[str]:
    return [os.environ.get(name, "") for name in ("KGEN_RUNS", "KGEN_SET", "KGEN_CACHE")]


def _is_text(argument: str) -> bool:
    """Whether records can hold it: bytes of the command line that are not UTF-8 arrive as lone surrogates."""
    return not any("\ud800" <= c <= "\udfff" for c in argument)


def taken_up_by(command: str) -> None:
    """From here on an interrupt tells this command, which goes on with what it broke off; "" for none."""
    _next[:] = [command]


def _interrupted() -> int:
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):  # an impatient second one finds nothing left to stop
            signal.signal(number, signal.SIG_IGN)
    kept = f"; what was finished is kept: {_next[-1]}" if _next[-1] else ""
    return complain(f"interrupted{kept}", INTERRUPTED)


def _stopped(signum: int, frame: FrameType | None) -> None:
    """SIGTERM ends a command as Ctrl-C does: the run is marked and can be resumed.

    Signals that follow at once are the same wish, and let what the first one began come to its end.
    """
    now = time.monotonic()
    if _signalled.is_set() and now - _when[-1] < SAME_WISH_S:
        return
    _signalled.set()
    _when[:] = [now]
    raise KeyboardInterrupt


def raise_lost_interrupt() -> None:
    """Raise KeyboardInterrupt again if a signal came and nobody is dealing with it.

    Python drops an exception that a signal handler raises within a destructor or a weak reference's callback, and
    imports are full of those. Called at every event of a run.
    """
    mine = threading.current_thread() is threading.main_thread()
    if mine and _signalled.is_set() and sys.exc_info()[0] is None:
        raise KeyboardInterrupt


def exit_code(error: BaseException) -> int:
    """By the most specific class that the table knows; what it does not know is ours (4)."""
    if type(error).__name__ == "Refusal":
        return REFUSALS.get(getattr(error, "code", ""), FAILED)
    for cls in type(error).__mro__:
        if (code := CODES.get(f"{cls.__module__}.{cls.__qualname__}")) is not None:
            return code
    return INFRASTRUCTURE


def _line(error: BaseException) -> str:
    code = getattr(error, "code", "")
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, ModuleNotFoundError):
        return f"{text}: {INSTALL}"
    if isinstance(error, OSError):
        return f"{error.filename or ''}: {error.strerror or text}".removeprefix(": ")
    known = any(f"{c.__module__}.{c.__qualname__}" in CODES for c in type(error).__mro__)
    if not known and not code:
        return f"unexpected {type(error).__name__}: {text} (KGEN_DEBUG=1 shows where)"
    return f"{code}: {text}" if isinstance(code, str) and code else text


def _usage(error: Exception) -> int:
    text = " ".join(str(getattr(error, "format_message", lambda: error)()).split())
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
        output.say(context.get_help())
        return USAGE
    path = context.command_path if context is not None else "kgen"
    return complain(f"{text.rstrip('.')}; see {path} --help", USAGE)


def complain(text: str, code: int, error: BaseException | None = None) -> int:
    """One line on stderr, and with --json one document on stdout."""
    if error is not None and os.environ.get("KGEN_DEBUG"):
        traceback.print_exception(error)
    output.say(f"kgen: {text}")
    if output.as_json and not output.emitted:
        output.emit({"schema": "kgen.error/1", "error": text, "exit_code": code})
    return code
