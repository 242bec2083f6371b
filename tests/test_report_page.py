"""The report for people, its plot and the archive, opened in a real browser."""

import re
import shutil
import subprocess
import zipfile

import pytest
from test_measurement_journal import MANIFEST
from test_report_ticket import EVIL, culprit

from bisect_recompute.measurement.journal import new_journal
from bisect_recompute.report.archive import write_archive
from bisect_recompute.report.files import write_files
from bisect_recompute.verdict.decide import decide

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
browser = pytest.mark.skipif(not CHROMIUM, reason="no Chromium on this machine")
SUBJECT = "<script>document.title='broken'</script> Keep `one` & more (#4711)"
DRIVE = """<script>window.addEventListener("load", () => setTimeout(() => {
  const chart = document.getElementById("chart-0"), said = [];
  chart.on("plotly_hover", e => said.push(e.points[0].text));
  Plotly.Fx.hover(chart, [{curveNumber: 1, pointNumber: 1}]);
  const shown = chart._fullData.filter(t => t.visible === true).length;
  Plotly.restyle(chart, {visible: "legendonly"}, [1]).then(() => {
    const left = chart._fullData.filter(t => t.visible === true).length;
    document.body.setAttribute("data-driven", JSON.stringify([document.querySelectorAll(".main-svg").length, said, shown, left]));
  });
}, 500));</script>"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page") / "run"
    f = culprit(SUBJECT)
    with new_journal(folder, MANIFEST) as journal:
        for probe in f.probes_run:
            journal.append(probe)
        write_files(folder, f, decide(f))
    return folder


def open_page(path, *options):
    call = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=4000",
            "--host-resolver-rules=MAP * ~NOTFOUND", *options, path.as_uri()]
    return subprocess.run(call, capture_output=True, text=True, timeout=120)


@browser
def test_opens_offline_without_a_fault_and_can_be_driven(run, tmp_path):
    page = (run / "report.html").read_text()
    driven = tmp_path / "driven.html"
    driven.write_text(page.replace("</body>", DRIVE + "</body>"))
    done = open_page(driven, "--dump-dom")
    assert not re.findall(r"CONSOLE.*?(?:Error|Refused|violates)", done.stderr), done.stderr[-2000:]
    (told,) = re.findall(r'data-driven="([^"]*)"', done.stdout)
    assert "222222222" not in told  # the good endpoint is the first point, the second one was asked for
    count, *_ = re.findall(r"\d+", told)
    assert int(count) >= 3 and told.endswith(",2,1]")
    assert "<title>broken" not in done.stdout


@browser
def test_a_screenshot_has_charts_and_text(run, tmp_path):
    shot = tmp_path / "page.png"
    open_page(run / "report.html", f"--screenshot={shot}", "--window-size=390,1600")
    assert shot.read_bytes()[:4] == b"\x89PNG" and shot.stat().st_size > 30_000


def test_nothing_of_a_commit_is_markup(run):
    page = (run / "report.html").read_text()
    assert SUBJECT not in page and "&lt;script&gt;document.title=" in page
    assert "pull request #4711" in page
    own = re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', own)
    f = culprit(EVIL)
    folder = run.with_name("evil")
    with new_journal(folder, MANIFEST):
        write_files(folder, f, decide(f))
    assert "onerror=alert(1)>" not in (folder / "report.html").read_text()


def test_the_plot_names_both_metrics_and_is_the_same_every_time(run, tmp_path):
    svg = (run / "range.svg").read_text()
    assert "peak memory [GiB]" in svg and "throughput [TFLOP/s/GPU]" in svg
    again = tmp_path / "again"
    f = culprit(SUBJECT)
    with new_journal(again, MANIFEST):
        write_files(again, f, decide(f))
    assert (again / "range.svg").read_text() == svg
    assert "](range.svg)" in (run / "ticket.md").read_text()


def test_the_archive_holds_every_file_and_depends_on_nothing_else(run):
    first = (run / "attachments.zip").read_bytes()
    with zipfile.ZipFile(run / "attachments.zip") as archive:
        assert {"verdict.json", "ticket.md", "report.html", "range.svg", "probes.jsonl", "manifest.json"} <= set(archive.namelist())
        assert archive.read("verdict.json") == (run / "verdict.json").read_bytes()
    (run / "verdict.json").touch()
    write_archive(run)
    assert (run / "attachments.zip").read_bytes() == first
