"""Statements of evidence: what they bind, who signed them, and that no changed byte gets past `kgen ingest`."""

import dataclasses
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.kits import CANDIDATE, MACHINE, Made, document, make, part, point
from support.loops import called
from support.proven import Proven, proven

from kgen.gates.ingest import read
from kgen.gates.machines import Group, Report, groups
from kgen.gates.ssh_signatures import SignatureError, sign, signer
from kgen.gates.statement import PREDICATE, StatementError, check, statements
from kgen.records import Evidence, Status, sha256_bytes, sha256_text


@pytest.fixture
def made(tmp_path: Path) -> tuple[Made, Made]:
    return make(tmp_path, 1), make(tmp_path, 8)


@pytest.fixture
def parts(made: tuple[Made, Made]) -> list[Evidence]:
    return [part(gate, *made) for gate in ("numeric", "model", "perf")]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two ed25519 keys, `mine` and `other`, and `signers`, which allows only the first."""
    if shutil.which("ssh-keygen") is None:
        pytest.skip("needs ssh-keygen (openssh-client)")
    folder = tmp_path_factory.mktemp("keys")
    for name in ("mine", "other"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(folder / name)], check=True)
    (folder / "signers").write_text(f"gpu@example.org {(folder / 'mine.pub').read_text()}")
    return folder


def test_a_statement_names_every_object_and_every_gate(parts: list[Evidence], made: tuple[Made, Made]) -> None:
    (line,) = statements(parts).splitlines()
    said = json.loads(line)
    assert said["_type"] == "https://in-toto.io/Statement/v1" and said["predicateType"] == PREDICATE
    digests = {s["name"]: s["digest"] for s in said["subject"]}
    expected = {m.record.problem.key: {"sha256": sha256_bytes(m.object.read_bytes())} for m in made}
    assert digests == {"candidate": {"kgenCandidate": CANDIDATE}, **expected}
    found = said["predicate"]
    assert [(r["gate"], r["status"]) for r in found["results"]] == [
        ("full-model-eval", "pass"),
        ("perf-sweep", "pass"),
        ("unit-numeric", "pass"),
    ]
    assert len(found["points"]) == 2 and found["environment"]["gpu"] == "NVIDIA H200"


def test_the_order_of_the_parts_changes_nothing(parts: list[Evidence]) -> None:
    assert statements(parts) == statements(parts[::-1])


def test_each_machine_and_each_candidate_has_a_statement_of_its_own(parts: list[Evidence]) -> None:
    elsewhere = [dataclasses.replace(p, environment=dataclasses.replace(MACHINE, driver="590")) for p in parts[:1]]
    other = [dataclasses.replace(p, candidate="d" * 64) for p in parts]
    several = statements([*parts, *other, dataclasses.replace(elsewhere[0], facts={"unit": "again"})])
    assert len(several.splitlines()) == 3


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "an object's hash": lambda d: d.replace(b'"sha256":"', b'"sha256":"0', 1),
    "a status": lambda d: d.replace(b'"status":"pass"', b'"status":"fail"', 1),
    "a number": lambda d: d.replace(b'"ratio":0.7', b'"ratio":0.1', 1),
    "a byte that only spells it otherwise": lambda d: d.replace(b'","', b'", "', 1),
    "no JSON": lambda d: d.replace(b"{", b"", 1),
    "the last newline": lambda d: d[:-1],
    "a line more": lambda d: d + b"{}\n",
    "nothing": lambda d: b"",
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_statement_that_was_altered_is_one_clear_line(change: str, parts: list[Evidence]) -> None:
    whole = statements(parts)
    check("s", whole, parts)
    altered = CHANGES[change](whole)
    assert altered != whole
    with pytest.raises(StatementError) as caught:
        check("s.intoto.jsonl", altered, parts)
    line = str(caught.value)
    assert line.startswith("s.intoto.jsonl") and "\n" not in line and len(line) < 300


def test_the_line_names_the_value_that_differs(parts: list[Evidence]) -> None:
    altered = statements(parts).replace(b'"driver":"580"', b'"driver":"581"')
    with pytest.raises(StatementError, match=r"predicate\.environment\.driver is not what the evidence says"):
        check("s", altered, parts)


def test_parts_that_contradict_each_other_have_no_statement(parts: list[Evidence]) -> None:
    other = dataclasses.replace(parts[1], objects=dict.fromkeys(parts[1].objects, "f" * 64))
    with pytest.raises(StatementError, match="does not hold together: parts were run with different objects"):
        check("s", statements(parts), [parts[0], other, *parts[2:]])


def test_no_single_changed_byte_of_statement_or_evidence_passes(parts: list[Evidence]) -> None:
    whole = statements(parts)
    for at in range(0, len(whole), 7):
        altered = bytearray(whole)
        altered[at] ^= 1
        with pytest.raises(StatementError):
            check("s", bytes(altered), parts)
    evidence = document(*parts)
    for old, new in ((b"5 points", b"6 points"), (b'"passed"', b'"pass"'), (b"2 points", b"3 points")):
        if old in evidence:
            changed = read("e", evidence.replace(old, new))
            with pytest.raises(StatementError):
                check("s", whole, [p.evidence for p in changed])
            return
    raise AssertionError("nothing was changed")


def test_the_signer_of_untouched_data_is_known(keys: Path, tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(b"data")
    signature = sign(path, keys / "mine").read_bytes()
    assert signer("s", b"data", signature, keys / "signers") == "gpu@example.org"
    assert sign(path, keys / "mine").read_bytes()  # a second time, over the first


def test_what_is_not_signed_by_an_allowed_key_for_kgen_is_refused(keys: Path, tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(b"data")
    mine, other = sign(path, keys / "mine").read_bytes(), sign(path, keys / "other").read_bytes()
    command = ["ssh-keygen", "-q", "-Y", "sign", "-f", str(keys / "mine"), "-n", "git", str(path)]
    path.with_name("s.sig").unlink()
    subprocess.run(command, check=True, capture_output=True)
    foreign = path.with_name("s.sig").read_bytes()
    damaged = mine.replace(b"BEGIN", b"BEGIM")
    for data, signature, word in (
        (b"dat4", mine, "not what gpu@example.org signed"),
        (b"data", other, "by nobody"),
        (b"data", foreign, "signed for something else"),
        (b"data", damaged, "damaged"),
        (b"data", b"", "damaged"),
    ):
        with pytest.raises(SignatureError, match=word) as caught:
            signer("s", data, signature, keys / "signers")
        assert "\n" not in str(caught.value)
    with pytest.raises(SignatureError, match=r"no file .*allowed signers"):
        signer("s", b"data", mine, keys / "none")


@pytest.fixture
def attested(home: Path, keys: Path) -> tuple[Proven, Path]:
    """A proven run, and the statement beside its evidence, signed."""
    run = proven(home / "runs", home / "cache")
    evidence = run.evidence(home)
    path = home / "evidence.intoto.jsonl"
    path.write_bytes(statements(p.evidence for p in read("evidence.json", evidence.read_bytes())))
    sign(path, keys / "mine")
    return run, path


def test_ingest_checks_the_statement_and_its_signature_and_keeps_them(
    attested: tuple[Proven, Path], keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, path = attested
    assert called(["ingest", "evidence.json", "--signers", str(keys / "signers")]) == 0
    assert "is signed by gpu@example.org" in capsys.readouterr().err
    kept = sorted((run.run.path / "statements").iterdir())
    assert [p.read_bytes() for p in kept] == [path.read_bytes(), path.with_name(path.name + ".sig").read_bytes()]


@pytest.mark.parametrize("which", ["evidence.intoto.jsonl", "evidence.intoto.jsonl.sig"])
def test_one_altered_byte_beside_the_evidence_refuses_it(
    which: str, attested: tuple[Proven, Path], keys: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = home / which
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    capsys.readouterr()
    assert called(["ingest", "evidence.json", "--signers", str(keys / "signers")]) == 5
    assert which.removesuffix(".sig") in capsys.readouterr().err.strip().splitlines()[-1]
    assert not (attested[0].run.path / "statements").exists()


def test_who_insists_on_a_signature_takes_nothing_without(
    attested: tuple[Proven, Path], keys: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, insisting = attested[1], ["ingest", "evidence.json", "--signers", str(keys / "signers")]
    assert called(["ingest", "evidence.json", "--signers", "nowhere"]) == 3
    assert "there is no file nowhere with allowed signers" in capsys.readouterr().err
    path.with_name(path.name + ".sig").unlink()
    assert called(insisting) == 1 and "is not signed" in capsys.readouterr().err
    path.unlink()
    assert called(insisting) == 1 and "has no statement" in capsys.readouterr().err
    assert called(["ingest", "evidence.json"]) == 0  # and nobody has to


def test_verify_states_what_serves(
    attested: tuple[Proven, Path], keys: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = attested
    assert called(["ingest", "evidence.json"]) == called(["promote", run.run.id]) == 0
    plain = ["verify", "--no-rebuild", "--no-gates", "--statement", "set.intoto.jsonl"]
    assert called([*plain, "--key", str(keys / "mine")]) == 0
    (line,) = (home / "set.intoto.jsonl").read_bytes().splitlines()
    said = json.loads(line)
    source = next(s for s in said["subject"] if s["name"].endswith(".py"))
    assert source["digest"]["sha256"] == sha256_text((home / "set" / source["name"]).read_text())
    assert said["predicate"]["promotion"]["seq"] == 1 and said["predicate"]["verified"]["objects"] == "ok"
    signature = (home / "set.intoto.jsonl.sig").read_bytes()
    assert signer("s", line + b"\n", signature, keys / "signers") == "gpu@example.org"
    assert called(plain) == 0 and not (home / "set.intoto.jsonl.sig").exists()  # it was of another file
    assert called(["verify", "--key", "k"]) == 2


def report(where: str, evidence: Evidence, **changed: object) -> Report:
    return Report(where, dataclasses.replace(evidence, **changed))  # type: ignore[arg-type]


def test_machines_that_agree_are_side_by_side_without_a_word(parts: list[Evidence], made: tuple[Made, Made]) -> None:
    (group,) = groups([Report("a", parts[2]), report("b", parts[2], points=tuple(point(m.record, 0.74) for m in made))])
    assert group.disagreements == () and (group.gpu, len(group.reports)) == ("NVIDIA H200", 2)
    assert {w: p.ratio for w, p in next(iter(group.points.values())).items()} == {"a": 0.7, "b": 0.74}  # no mean


def apart(*reports: Report) -> tuple[str, ...]:
    (group,) = groups(reports)
    return group.disagreements


def test_what_machines_disagree_about_is_shown_with_both_sides(parts: list[Evidence], made: tuple[Made, Made]) -> None:
    one, _ = made
    slow = apart(Report("a", parts[2]), report("b", parts[2], points=(point(one.record, 0.9),)))
    key = one.record.problem.key
    assert slow == (f"{key} n=1 graph: win 0.700 (0.650 to 0.750) in a, win 0.900 (0.850 to 0.950) in b",)
    touching = apart(
        report("a", parts[2], points=(point(one.record, 0.93),)),
        report("b", parts[2], points=(point(one.record, 0.96),)),
    )
    assert len(touching) == 1 and "win 0.930" in touching[0] and "tie 0.960" in touching[0]
    failed = part("numeric", *made, status=Status.FAIL)
    assert apart(Report("a", parts[0]), Report("b", failed)) == ("unit-numeric: pass in a, fail in b",)
    (line,) = apart(Report("a", parts[0]), report("b", parts[0], objects={key: "0" * 64}))
    assert line.startswith(f"{key}: different objects were run: ") and line.endswith("000000000000 in b")


def test_another_gpu_model_is_another_group(parts: list[Evidence], made: tuple[Made, Made]) -> None:
    other = dataclasses.replace(MACHINE, gpu="NVIDIA H100")
    found: tuple[Group, ...] = groups(
        [Report("a", parts[2]), report("b", parts[2], environment=other, points=(point(made[0].record, 0.9),))]
    )
    assert [(g.gpu, g.disagreements) for g in found] == [("NVIDIA H100", ()), ("NVIDIA H200", ())]


def test_the_command_shows_machines_side_by_side(
    parts: list[Evidence], made: tuple[Made, Made], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "a.json").write_bytes(document(*parts))
    slow = dataclasses.replace(parts[2], points=(point(made[0].record, 0.9),))
    (home / "b.json").write_bytes(document(*parts[:2], slow))
    assert called(["evidence", "a.json", "a.json"]) == 0
    capsys.readouterr()
    assert called(["evidence", "a.json", "b.json"]) == 1
    said = capsys.readouterr().out
    assert "win 0.700" in said and "win 0.900 (0.850 to 0.950) in b.json" in said
    assert called(["evidence", "a.json", "b.json", "--json"]) == 1
    body = json.loads(capsys.readouterr().out)
    assert not body["agree"] and body["groups"][0]["reports"] == ["a.json", "b.json"]
    assert called(["evidence"]) == 0 and "there is no evidence" in capsys.readouterr().out
