"""kgen bench-layer: one decode layer as a chain of kernels, whole in a CUDA graph, beside what it has to beat."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kgen.cli import boundary, output
from kgen.cli.common import JsonOption, QuietOption, SetOption, TraceOption, arguments, trace_at

if TYPE_CHECKING:
    from kgen.gates.layer.points import Job
    from kgen.gates.routing import Recorded

STOCK = Path("benchmarks") / "stock_vllm_h200.json"  # of a checkout


def register(app: typer.Typer) -> None:
    app.command("bench-layer")(bench_layer)


def bench_layer(
    setting: Annotated[
        list[str] | None, typer.Option("--setting", help="Widths; repeat for several (all real ones on a GPU).")
    ] = None,
    layer: Annotated[list[str] | None, typer.Option("--layer", help="kda or mla; repeat for both (both).")] = None,
    tokens: Annotated[list[int] | None, typer.Option("--tokens", help="Token counts; repeat (1, 2, 4 ... 64).")] = None,
    context: Annotated[
        list[int] | None, typer.Option("--context", help="Rows attended to; repeat (64, 4096, 32768).")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="The record; taken up again. The page is beside it.")] = Path(
        "layers.json"
    ),
    repetitions: Annotated[int, typer.Option("--repetitions", min=2, help="Kept samples of each side.")] = 40,
    seed: Annotated[int, typer.Option("--seed", help="Of weights, states and rows.")] = 1,
    routing: Annotated[
        str, typer.Option("--routing", help="even, or skewed as the drawn model's bias has it.")
    ] = "even",
    routing_trace: TraceOption = "",
    compiled: Annotated[bool, typer.Option("--compile/--no-compile", help="Also with torch.compile.")] = True,
    prefetch: Annotated[
        list[str] | None,
        typer.Option(
            "--prefetch",
            help="Schedule of weights pulled into L2, by name or spelled out; repeat to compare others with the first.",
        ),
    ] = None,
    each: Annotated[bool, typer.Option("--each", help="Also without each promoted op in turn.")] = False,
    seconds: Annotated[float, typer.Option("--seconds", help="Begin no new point after these.")] = 480.0,
    stock: Annotated[
        Path | None, typer.Option("--stock", help=f"Figures of another engine (in a checkout {STOCK}).")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="cuda; or cpu: the small model, on stand-ins.")] = "cuda",
    show: Annotated[bool, typer.Option("--show", help="Measure nothing: only the page of what --out holds.")] = False,
    kernels: SetOption = "",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Time whole decode layers: stock ops, torch.compile, and the kernel set's chain, each technique off in turn."""
    from kgen.gates.layer import picture
    from kgen.gates.layer import record as records
    from kgen.gates.layer.markdown import markdown
    from kgen.gates.layer.run import Ended, run

    figures = _figures(stock)
    trace = trace_at(routing_trace)
    if show:
        if not out.exists():
            raise boundary.Usage(f"there is no record {out}")
        ended = Ended(records.read(out), (), ())
    else:
        jobs = _jobs(
            setting,
            layer,
            tokens,
            context,
            repetitions,
            seed,
            routing,
            compiled,
            each,
            device,
            kernels,
            prefetch,
            trace,
        )
        ended = run(jobs, out, seconds, (lambda line: None) if quiet else output.say, trace.path if trace else None)
    place = out.with_suffix(".md")
    page = markdown(ended.record, figures, picture.write(ended.record, place))
    place.write_text(page, encoding="utf-8")
    if json:
        output.emit(ended.record)
    else:
        output.data(page.rstrip())
    if ended.left or ended.broken:
        rest = f"{len(ended.left)} points are left, {len(ended.broken)} broke off; the same command goes on"
        output.say(f"kgen: {rest}")
        raise typer.Exit(boundary.INFRASTRUCTURE)
    if ended.record.refused and not show:
        raise boundary.Stopped("; ".join(f"{key}: {why}" for key, why in ended.record.refused.items()))


def _jobs(
    setting: list[str] | None,
    layer: list[str] | None,
    tokens: list[int] | None,
    context: list[int] | None,
    repetitions: int,
    seed: int,
    routing: str,
    compiled: bool,
    each: bool,
    device: str,
    kernels: str,
    prefetch: list[str] | None,
    trace: "Recorded | None",
) -> "list[Job]":
    """Raises Usage, and Missing without a GPU."""
    import torch

    from kgen.cli.common import one_of
    from kgen.gates.environment import device_arch
    from kgen.gates.layer.points import CONTEXTS, EVEN, KINDS, SKEWED, TOKENS, Job, default_settings, points
    from kgen.gates.layer.prefetch import schedules
    from kgen.gates.layer.traced import unfit, words
    from kgen.store.paths import set_path

    one_of("--device", device, ("cuda", "cpu"))
    one_of("--routing", routing, (EVEN, SKEWED))
    with arguments():
        chosen = points(setting or default_settings(device), layer or KINDS, tokens or TOKENS, context or CONTEXTS)
        pulled = schedules(prefetch or ())
        if trace and (why := unfit(trace, [p.setting for p in chosen], [p.tokens for p in chosen], routing)):
            raise ValueError(why)
    if device == "cuda" and not torch.cuda.is_available():
        raise boundary.Missing("no CUDA GPU here: run it on a GPU host, or --device cpu for a trial on the small model")
    where = str(set_path(kernels).path) if kernels else ""
    arch = device_arch() if device == "cuda" else ""
    how, sha256 = (words(trace), trace.sha256) if trace else (routing, "")
    return [
        Job(p, device, arch, where, repetitions, seed, how, compiled, each, prefetch=pulled, trace=sha256)
        for p in chosen
    ]


def _figures(stock: Path | None) -> dict[str, Any] | None:
    """The other engine's figures: those named, else a checkout's. Raises Usage."""
    from kgen.gates.layer.markdown import read_stock
    from kgen.store.paths import checkout

    root = checkout(Path.cwd())
    path = stock or (root / STOCK if root else None)
    if path is None or (stock is None and not path.exists()):
        return None
    with arguments():
        return read_stock(path)
