"""A run as JUnit XML, for the test panes of CI systems: a suite a candidate, a test case a gate.

    junit(doc) -> bytes

A refusal is a `failure`, a fault of kgen or the machine an `error`; what could not run, or has not, is `skipped`, never
a pass. Not covered: numbers and times (the JSON form has them).
"""

import re
from xml.etree import ElementTree

from kgen.records import GATES, GateResult, Status
from kgen.report.document import Document, Entry
from kgen.report.facts import label
from kgen.report.judged import routing_in

FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # by XML 1.0


def junit(doc: Document) -> bytes:
    """UTF-8 with a declaration and a trailing newline."""
    how = routing_in(doc)
    root = ElementTree.Element("testsuites", name=_clean(f"kgen {doc.op.name}{f'; {how}' if how else ''}"))
    for entry in doc.entries:
        _suite(root, doc, entry)
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    root.set("time", f"{sum(r.seconds for e in doc.entries for r in e.results):.3f}")
    ElementTree.indent(root)
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _suite(root: ElementTree.Element, doc: Document, entry: Entry) -> None:
    name = f"{doc.op.name}.{entry.number}-{entry.candidate.id[:12]}"
    suite = ElementTree.SubElement(root, "testsuite", name=name, timestamp=doc.run.created.removesuffix("Z"))
    properties = ElementTree.SubElement(suite, "properties")
    known = {"run": doc.run.id, "candidate": entry.candidate.id, "made by": label(entry), "state": entry.state}
    for key, value in known.items():
        ElementTree.SubElement(properties, "property", name=key, value=_clean(value))
    for gate in GATES:
        _case(suite, name, gate, entry.result(gate))
    said = [case[0].tag for case in suite.iter("testcase") if len(case)]
    counts = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    suite.set("tests", str(len(GATES)))
    for attribute, tag in counts.items():
        suite.set(attribute, str(said.count(tag)))
    suite.set("time", f"{sum(r.seconds for r in entry.results):.3f}")


def _case(suite: ElementTree.Element, name: str, gate: str, result: GateResult | None) -> None:
    seconds = result.seconds if result else 0.0
    case = ElementTree.SubElement(suite, "testcase", classname=name, name=gate, time=f"{seconds:.3f}")
    if result is None:
        ElementTree.SubElement(case, "skipped", message="not run")
        return
    first = _clean(result.message.strip().split("\n")[0])
    if result.status is Status.FAIL or result.status is Status.ERROR:
        tag = "failure" if result.status is Status.FAIL else "error"
        said = ElementTree.SubElement(case, tag, message=first, type=_clean(result.code))
        said.text = _clean(result.message)
    elif result.status is Status.SKIP or result.interpreted:
        why = f"{result.code}: {first}" if not result.interpreted else f"interpreted, not proven on a GPU: {first}"
        ElementTree.SubElement(case, "skipped", message=_clean(why))


def _clean(text: str) -> str:
    return FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
