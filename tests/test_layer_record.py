"""What bench-layer keeps and shows: points taken up again, a page whose numbers are the record's, figures of others."""

import dataclasses
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.checkout import ROOT
from support.sets import environment, fill, make_case

from kgen.cli.bench_layer import STOCK
from kgen.gates.layer import __main__ as command
from kgen.gates.layer import record as records
from kgen.gates.layer import run as running
from kgen.gates.layer.chain import Gathered, Lanes, OneLayer
from kgen.gates.layer.markdown import markdown, read_stock, stock_us
from kgen.gates.layer.measure import _switches
from kgen.gates.layer.points import ANY_CONTEXT, KINDS, TOKENS, Job, Point, layer_of, model_of
from kgen.gates.layer.record import Kernel, LayerRecord, Measured, Part, Side, Switch
from kgen.model.bind import StockBinder
from kgen.model.decoder.config import KDA, sizes
from kgen.model.decoder.weights import expected
from kgen.ops import REGISTRY
from kgen.records import RecordError

POINT = Point("vllm-tp1", "kda", 1, ANY_CONTEXT)


def measured(point: Point = POINT, chain: float = 80.0) -> Measured:
    sides = (("unfused", 400.0, 60), ("compiled", 200.0, 25), ("chain", chain, 12))
    parts = (("pre", "attn_res", "stock", "", 20.0), ("in_proj", "kda_in_proj", "promoted", "c" * 64, 60.0))
    return Measured(
        job=Job(point, arch="sm_90a"), bytes=288_000_000, floor_us=64.0, read_rate=4.5e12, experts=16.0,
        sides=tuple(Side(n, us, us - 1, us + 1, k, (us,)) for n, us, k in sides),
        parts=tuple(Part(f"layers.1.{s}", op, path, who, "", us, 1, 0.1) for s, op, path, who, us in parts),
        switches=(Switch("no_overlap", 8.0, 1.1, 1.05, 1.2),), timeline=(Kernel("gemm", 0.0, 21.5, 7),),
        ratios={}, worst={}, left_out={}, sets=3, calls=24, timer="events", environment=environment(), seconds=12.0,
    )  # fmt: skip


def row(page: str, start: str) -> list[str]:
    return next(line for line in page.splitlines() if line.startswith(start)).strip("| ").split(" | ")


def test_the_page_shows_ratio_floor_and_launches_of_the_record() -> None:
    page = markdown(LayerRecord((measured(),)))
    assert row(page, "| 1 | any") == [
        "1", "any", "400.0 (399.0 to 401.0)", "200.0 (199.0 to 201.0)", "80.0 (79.0 to 81.0)", "0.400", "64.0", "80%",
        "60 / 25 / 12", "16.0",
    ]  # fmt: skip
    assert row(page, "| pre") == ["pre", "attn_res", "stock", "20.0 (25%)"]
    assert row(page, "| in_proj")[2:] == ["c" * 12, "60.0 (75%)"]
    assert "No kernel is promoted for: attn_res." in page
    assert "+8.0 (1.100: 1.050 to 1.200)" in page


def test_points_of_another_routing_or_machine_are_said_to_be() -> None:
    one = measured()
    other = replace(one, job=replace(one.job, routing="skewed", point=replace(one.job.point, tokens=8)))
    text = markdown(LayerRecord((one, other, one)), None)
    assert text.count("Measured on ") == 1 and text.count("And some points on ") == 1
    assert f"Routing: {one.job.routing}." in text and "Routing: skewed." in text
    assert "And some" not in markdown(LayerRecord((one,)), None)


def test_the_timeline_shows_each_kernel_where_it_ran() -> None:
    kernels = (Kernel("gemm", 0.0, 30.0, 7), Kernel("side", 15.0, 15.0, 9), Kernel("short", 59.9, 0.1, 7))
    page = markdown(LayerRecord((dataclasses.replace(measured(), timeline=kernels),)))
    bars = [line.split("|") for line in page.splitlines() if line.endswith((" gemm", " side", " short"))]
    assert [b[1] for b in bars] == ["#" * 30 + "." * 30, "." * 15 + "#" * 15 + "." * 30, "." * 59 + "#"]
    assert [b[0].split() for b in bars] == [["0.0", "30.00", "7"], ["15.0", "15.00", "9"], ["59.9", "0.10", "7"]]


def test_another_engine_is_shown_and_compared_at_its_own_points_only() -> None:
    stock = read_stock(ROOT / STOCK)
    page = markdown(LayerRecord((measured(chain=120.0), measured(Point("tp8", "kda", 1, ANY_CONTEXT)))), stock)
    first, second = page.split("## tp8, kda")
    assert row(first, "| 1 | any")[5:7] == ["135.0", "0.889"]  # 120 / 135
    assert "vLLM" in first.split("## vllm-tp1")[0] and "| vLLM" not in second
    assert stock_us(stock, Point("vllm-tp1", "mla", 8, 64)) == 245.0
    assert stock_us(stock, Point("vllm-tp1", "mla", 8, 4096)) is None
    assert stock_us(stock, Point("vllm-tp1", "kda", 3, ANY_CONTEXT)) is None


@pytest.mark.parametrize("text", ["[]", "{", '{"engine": "x", "source": 1}'])
def test_a_file_without_figures_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (path := tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match=r"x\.json") as error:
        read_stock(path)
    assert "\n" not in str(error.value)


def layer_bytes(setting: str, kind: str, tokens: int) -> int:
    """By the ops' own counts, no weights drawn."""
    config = model_of(setting)
    number = layer_of(config, kind)
    start = f"layers.{number}."
    shapes = {n.removeprefix(start): s for n, (_, s) in expected(config, REGISTRY).items() if n.startswith(start)}
    for name, op, size in (("w_latent", "moe_latent_down", "latent"), ("w_up", "moe_tail", "columns")):
        shapes[f"moe.{name}"] = (sizes(REGISTRY.get(op), config.dims)[size], shapes[f"moe.{name}"][1])
    hollow = {n: torch.empty(s, device="meta") for n, s in shapes.items()}
    layer = OneLayer(config, number, hollow, tokens, "sm_90a", StockBinder(), REGISTRY, Lanes(), Gathered())
    return sum(REGISTRY.get(p.op).cost(p).bytes for p in layer.seats.problems)


@pytest.mark.parametrize("tokens", TOKENS)
def test_the_floor_is_that_of_the_committed_table_and_the_router_rows_of_the_other_ranks(tokens: int) -> None:
    table = json.loads((ROOT / STOCK).read_text())["floors"]["kda"][str(tokens)]
    others = 7 / 8 * 896 * 7168 * 2  # the table counts one rank's eighth of the router
    assert layer_bytes("vllm-tp1", KDA, tokens) - others == pytest.approx(table["mb"] * 1e6, rel=0.02)
    assert table["us"] == pytest.approx(table["mb"] / 4.48, abs=0.6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_of_many_reads_less_and_whole_latent_projections_read_90_mb_more(kind: str) -> None:
    whole, eighth, sixteenth = (layer_bytes(s, kind, 1) for s in ("vllm-tp1", "tp8", "tp16"))
    assert whole - eighth == pytest.approx(2 * 7168 * 3584 * 2 * 7 / 8, rel=0.01)
    assert sixteenth < 0.67 * eighth


def test_a_technique_is_worth_what_the_chain_takes_longer_without_it() -> None:
    got = _switches({"chain": [10.0, 20.0, 30.0], "no_overlap": [12.0, 22.0, 33.0], "unfused": [1.0, 1.0, 1.0]}, 1)
    assert [(s.name, s.us) for s in got] == [("no_overlap", 2.0)]
    assert got[0].ratio == pytest.approx(1.1) and got[0].low <= 1.1 <= got[0].high


def test_a_record_comes_back_as_it_was_and_a_point_measured_again_replaces_the_old_one(tmp_path: Path) -> None:
    path, other = tmp_path / "l.json", Point("tp8", "mla", 2, 64)
    found = LayerRecord().without(other, "too far").with_point(measured()).with_point(measured(chain=70.0))
    records.write(path, found)
    again = records.read(path)
    assert again == found and [s.us for m in again.points for s in m.sides] == [400.0, 200.0, 70.0]
    assert again.with_point(measured(other)).refused == {}
    assert again.without(again.points[0].job.point, "wrong now").points == ()
    assert "`tp8/mla/t2/c64`: too far" in markdown(again)
    path.write_text("[1")
    with pytest.raises(RecordError):
        records.read(path)


def test_each_point_has_a_process_is_not_measured_again_and_one_that_breaks_stops_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, said = tmp_path / "l.json", list[str]()
    asked = [*("--device", "cpu", "--layer", "kda", "--tokens", "1", "--repetitions", "2"), "--out", str(out)]
    assert command.main([*asked, "--seconds", "0"]) == command.AGAIN
    assert not out.exists()
    good = Job(Point("nano", "kda", 1, ANY_CONTEXT), device="cpu", repetitions=2)
    bad = dataclasses.replace(good, point=dataclasses.replace(good.point, setting="nowhere"))
    ended = running.run([bad, good], out, 1e9, said.append)
    assert ended.broken == (bad.point.key,) and command.status(ended) == command.AGAIN
    assert "no setting 'nowhere'" in records.read(out).refused[bad.point.key]
    first = out.read_bytes()
    capsys.readouterr()
    assert command.main(asked) == command.REFUSED  # what broke off is still said
    assert "done before" in capsys.readouterr().err and out.read_bytes() == first
    assert "## nano, kda" in (tmp_path / "l.md").read_text()
    assert command.main([*asked, "--tokens", "x"]) == command.USAGE
    assert command.main([*asked, "--setting", "nowhere"]) == command.USAGE


def test_another_promotion_is_another_job(tmp_path: Path) -> None:
    place = tmp_path / "set"
    none = running.state_of(str(place))
    fill(place, make_case("one"))
    first = running.state_of(str(place))
    fill(place, make_case("two"))
    assert none == "" and len({none, first, running.state_of(str(place))}) == 3


def test_without_a_gpu_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert command.main(["--out", "never.json"]) == command.NO_GPU
    assert not Path("never.json").exists() and "--device cpu" in capsys.readouterr().err


BARE = """
import sys
sys.modules.update(dict.fromkeys(("llguidance", "typer", "rich", "jinja2", "openai", "langgraph", "cutlass", "numpy")))
import kgen, kgen.gates.layer.point
from kgen.gates.layer.__main__ import main
print(kgen.__file__)
sys.exit(main(["--device", "cpu", "--seconds", "0", "--out", "never.json"]))
"""


def test_beside_torch_a_copied_tree_is_enough(tmp_path: Path) -> None:
    package = tmp_path / "kgen"
    package.mkdir()
    for part in (*(ROOT / "pipeline").iterdir(), ROOT / "gates", ROOT / "prompts", ROOT / "generated_kernels"):
        (package / part.name).symlink_to(part)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BARE],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == str(package / "__init__.py"), done.stderr
    assert done.returncode == command.AGAIN and not done.stderr
