"""CI's stages run side by side, end in time, print whole, and name a test that passes only alone."""

import re
import sys
import textwrap

import pytest

import ci_scripts
import waiting
from supervised import until_gone


@pytest.fixture(scope="module")
def stages():
    with ci_scripts.modules() as load:
        yield load("stages")


@pytest.fixture
def run(stages, tmp_path, capsys):
    """Runs lanes; what each stage came to, and all that was printed."""

    def run_lanes(*lanes):
        running = stages.Lanes(lanes, tmp_path, minutes=1)
        running.run()
        return {one.stage.name: one for one in running.done}, capsys.readouterr().out

    return run_lanes


def shell(script):
    return lambda it: it.run("sh", "-c", script)


def program(text):
    return (sys.executable, "-c", textwrap.dedent(text))


def test_a_stage_passes_or_ends_at_its_first_command_that_fails_and_the_others_run(stages, run):
    found = []

    def fail(it):
        it.run("sh", "-c", "exit 3")
        it.run("echo", "never")

    done, printed = run(
        [
            stages.Stage("good", shell("echo so far so good")),
            stages.Stage("bad", fail),
            stages.Stage("absent", lambda it: it.run("/no/such/program")),
            # where it asks, a command may fail
            stages.Stage("asks", lambda it: found.extend([it.can("false"), it.can("true")])),
        ]
    )

    verdicts = {name: one.verdict for name, one in done.items()}
    assert not done["absent"].passed
    assert verdicts.pop("absent").startswith("FAILED")
    assert verdicts == {"good": "ok", "bad": "FAILED (3)", "asks": "ok"}
    assert found == [False, True]
    assert "so far so good" in printed
    assert "No such file" in printed
    assert "\nnever" not in printed


@pytest.fixture
def untidy(tmp_path):
    """A program that starts a process in a session of its own, and its number afterwards."""
    script = f"""
        import faulthandler, subprocess, sys, time

        faulthandler.enable()
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        open({str(tmp_path / "child")!r}, "w").write(str(child.pid))

        def wait(seconds):
            time.sleep(seconds)

        wait(int(sys.argv[1]))
        """
    return program(script), lambda: int((tmp_path / "child").read_text())


def test_a_command_that_hangs_shows_where_and_is_ended_with_all_it_started(
    stages, run, monkeypatch, untidy
):
    script, pid = untidy
    monkeypatch.setattr(stages, "LAST_WORDS", 5.0)

    stage = stages.Stage("hung", lambda it: it.run(*script, "1000"), minutes=1 / 60)
    done, printed = run([stage])

    assert done["hung"].verdict == "FAILED (hung)"
    assert "in wait" in printed
    until_gone(pid())


def test_tests_that_hang_are_named_with_those_that_failed_before(
    stages, run, monkeypatch, tmp_path
):
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_it.py").write_text(
        textwrap.dedent(
            """
            import pathlib, time

            def test_that_fails():
                assert False

            def test_that_hangs():
                pathlib.Path(__file__).with_name("hangs").touch()
                time.sleep(1000)
            """
        )
    )
    words = (sys.executable, "-m", "pytest", "-n", "1", "-p", "no:cacheprovider", str(tmp_path))
    ends = stages._ends

    def hangs(pid, seconds):
        monkeypatch.setattr(stages, "_ends", ends)
        waiting.until((tmp_path / "hangs").exists)
        return False

    monkeypatch.setattr(stages, "_ends", hangs)

    done, printed = run([stages.Stage("hung", lambda it: it.run(*words))])

    assert done["hung"].verdict == "FAILED (hung)"
    assert "in test_that_hangs" in printed
    assert re.search(r"FAILED \S*test_it.py::test_that_fails", printed)
    assert re.search(r"crashed while running \S*test_it.py::test_that_hangs", printed)


def test_what_a_command_leaves_running_is_named_and_ended(stages, run, untidy):
    script, pid = untidy

    done, printed = run([stages.Stage("untidy", lambda it: it.run(*script, "0"))])

    assert done["untidy"].passed
    assert f"killed what was left running: {pid()} (sleep 1000)" in printed
    until_gone(pid())


def test_all_is_over_in_time_whatever_a_stage_may_take(stages, tmp_path, monkeypatch):
    monkeypatch.setattr(stages, "LAST_WORDS", 5.0)
    patient = [stages.Stage(name, shell("sleep 1000"), minutes=20) for name in ("one", "other")]
    lanes = stages.Lanes([patient], tmp_path, minutes=1 / 60)

    lanes.run()

    assert [one.verdict for one in lanes.done] == ["FAILED (hung)", "FAILED (hung)"]


# what pytest does with these arguments: the first time a test fails, alone it does not
TESTS = """
    import pathlib, sys

    alone = "--last-failed" in sys.argv
    print("alone" if alone else "among others", sys.argv[sys.argv.index("-o") + 1])
    code = {alone} if alone else {first}
    report = next(word for word in sys.argv if word.startswith("--junitxml=")).partition("=")[2]
    case = '<testcase classname="{name}" name="test_{{}}" time="1.5">{{}}</testcase>'
    failure = "<failure/>" if code else ""
    text = case.format("it", failure) + ("" if alone else case.format("other", ""))
    pathlib.Path(report).write_text("<testsuites>" + text + "</testsuites>")
    sys.exit(code)
"""


@pytest.mark.parametrize(
    "first, alone, verdict, flaky",
    [
        (0, 9, "ok", []),
        (1, 0, "ok, flaky", ["here::test_it"]),
        (1, 1, "FAILED (1)", []),
        # nothing was selected: what failed was no test
        (1, 5, "FAILED (5)", []),
        (2, 0, "FAILED (2)", []),
    ],
)
def test_tests_that_failed_are_run_once_more_at_the_end(stages, run, first, alone, verdict, flaky):
    script = program(TESTS.format(first=first, alone=alone, name="here"))
    over = []
    begins = stages.Stage("tests", lambda it: it.tests(*script))
    later = stages.Stage("later", lambda it: over.append(True))

    done, printed = run([begins, later])

    assert done["tests"].verdict == verdict
    assert done["tests"].flaky == flaky
    if flaky:
        assert over
        # results of single tests are those of the first attempt
        found = {(one.name, one.seconds, one.failed) for one in done["tests"].results}
        assert found == {("here::test_it", 1.5, True), ("here::test_other", 1.5, False)}
        at_first, at_last = re.findall(r"^(?:among others|alone) (\S+)$", printed, re.MULTILINE)
        assert at_first == at_last
        assert printed.index("later begins") < printed.index("once more, alone")


def test_a_test_that_passes_alone_is_reported_though_no_report_has_its_name(stages, run):
    script = program("import sys; sys.exit('--last-failed' not in sys.argv)")

    done, _ = run([stages.Stage("tests", lambda it: it.tests(*script))])

    (flaky,) = done["tests"].flaky
    assert done["tests"].verdict == "ok, flaky"
    assert "whose name is in" in flaky
