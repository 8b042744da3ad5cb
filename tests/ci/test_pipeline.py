"""The gate runs what a change touches and always the same core; the whole runs everything."""

import configparser
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import ci_scripts
from commands import ran

ROOT = Path(__file__).parents[2]
USER = SimpleNamespace(python=["python"], home=Path("home"), clone=Path("clone"), programs="bin")
SHOP = SimpleNamespace(
    main="3.11",
    pythons=dict.fromkeys(["3.10", "3.11", "3.13", "3.12"], ""),
    environment=lambda it, name: "python",
    engine=lambda python: {},
    user=lambda it: USER,
    tox_tests=lambda it, name, *words, **_: it.tests(*words),
    add=lambda it, python, *words: True,
    add_torch=lambda it, python, *more: True,
)


@pytest.fixture(scope="module")
def load():
    with ci_scripts.modules() as load:
        yield load


@pytest.fixture(scope="module")
def pipeline(load):
    return load("pipeline")


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository with one commit; ``commit(path)`` adds another one and returns its name."""
    monkeypatch.delenv("CI_BASE", raising=False)
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)

    def git(*words):
        names = ("-c", "user.name=t", "-c", "user.email=t@t")
        command = ("git", "-C", str(tmp_path), *names, *words)
        return ran(command, check=True).stdout.strip()

    def commit(path):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
        git("add", "-A")
        git("commit", "-qm", path)
        return git("rev-parse", "HEAD")

    git("init", "-q")
    return SimpleNamespace(path=tmp_path, commit=commit, first=commit("first"))


class TestChanges:
    def test_later_commits_and_the_working_tree_count(self, load, checkout):
        base = checkout.commit("before")
        checkout.commit("later/committed.py")
        (checkout.path / "before").write_text("edited")
        (checkout.path / "new").write_text("untracked")

        changes = load("changes").Changes(checkout.path, base)

        assert changes.paths == {"later/committed.py", "before", "new"}
        assert changes.touch(["other", "later/"])
        assert not changes.touch(["other", "committed"])

    def test_the_base_is_read_from_the_checkout_and_a_variable_goes_first(
        self, load, checkout, monkeypatch
    ):
        (checkout.path / ".ci").mkdir()
        (checkout.path / ".ci" / "green").write_text(f"{checkout.first}\n")
        checkout.commit("second")
        changes = load("changes")

        # where everything passed last is no change of its own
        assert changes.Changes(checkout.path).paths == {"second"}
        monkeypatch.setenv("CI_BASE", checkout.commit("third"))
        assert changes.Changes(checkout.path).paths == set()
        assert os.environ["CI_BASE"].startswith(changes.Changes(checkout.path).head)


#: what is tested once more elsewhere, or takes engines, other people's libraries or frameworks
HALVED = {"docker", "ssh", "slurm", "k8s on containers", "objects by messages"}
HALVED |= {"all tests (README)", "examples", "libraries", "mpi"}
HALVED |= {"core on docker", "core on ssh", "core on slurm", "an ordinary user (README)"}
HALVED = {f"{name} (half)" for name in HALVED}
HALVED |= {f"Python {version} (brief, half)" for version in ("3.10", "3.13")}


def options(stage):
    """How many tests each command of a stage runs; the README's is always whole."""
    commands = []
    it = SimpleNamespace(run=lambda *words, **_: None)
    it.tests = lambda *words, **_: commands.append(words)
    stage.do(it)
    for words in commands:
        if "bootstrap.py" in words and "rest" not in words:
            continue
        (option,) = [word for word in map(str, words) if word.startswith("--half=")]
        yield option


def names(pipeline, *paths):
    return [stage.name for stage in stages(pipeline, *paths)]


def stages(pipeline, *paths):
    changes = None
    if paths != ("--all",):

        def touch(some):
            return any(path.startswith(tuple(some)) for path in paths)

        changes = SimpleNamespace(touch=touch, head="0badcafe")
    return [stage for lane in pipeline.lanes(SHOP, changes) for stage in lane]


class TestChoice:
    @pytest.mark.parametrize(
        "path, more",
        [
            ("plugins/fiber_docker/src/fiber_docker/jobs.py", {"docker (half)"}),
            ("plugins/fiber_ssh/tests/conftest.py", {"ssh (half)"}),
            ("tests/support/slurm_cluster.py", {"slurm (half)", "core on slurm (half)"}),
            ("plugins/fiber_k8s/src/fiber_k8s/manifest.py", {"k8s on containers (half)"}),
            (
                "fiber_core/src/fiber/_tunnel/client.py",
                {
                    f"{name} (half)"
                    for name in ("ssh", "core on ssh", "core on docker", "core on slurm")
                },
            ),
            ("fiber_core/src/fiber/_ring/mpi/run.py", {"mpi (half)", "examples (half)"}),
            ("fiber_core/src/fiber/pool.py", {"libraries (half)"}),
            ("bootstrap.py", {"an ordinary user (README) (half)"}),
            ("docs/index.md", set()),
        ],
    )
    def test_what_a_changed_file_adds(self, pipeline, path, more):
        always = set(names(pipeline))
        now = set(names(pipeline, path))

        assert now - always == more
        # more of something stands in place of its brief form
        brief = {f"{name.removesuffix(' (half)')} (brief)" for name in more}
        assert always - now == brief & always

    def test_a_change_of_how_tests_are_run_adds_everything_that_can_be_touched(self, pipeline):
        untouchable = {f"Python 3.{minor}" for minor in (10, 12, 13, 14)}
        untouchable |= {"a newcomer (README)", "fuzz"}
        run = {name.removesuffix(" (half)") for name in names(pipeline, "tox.ini")}
        assert set(names(pipeline, "--all")) - run == untouchable

    def test_of_what_runs_again_elsewhere_the_gate_runs_half_by_the_commit_and_the_whole_all(
        self, pipeline
    ):
        gate = [stage for stage in stages(pipeline, "tox.ini") if stage.name.endswith("half)")]
        whole = [one for one in stages(pipeline, "--all") if f"{one.name} (half)" in HALVED]

        assert {stage.name for stage in gate} == HALVED
        by_commit = {"--half=0badcafe", "--half=3.100badcafe", "--half=3.130badcafe"}
        assert {option for stage in gate for option in options(stage)} == by_commit
        assert {option for stage in whole for option in options(stage)} == {"--half="}

    def test_every_path_of_the_map_exists(self, pipeline):
        known = ran(["git", "ls-files"], cwd=ROOT, check=True).stdout.splitlines()
        watched = {
            path
            for name, value in vars(pipeline).items()
            if name.startswith("OF_") and name != "OF_CORE"
            for path in value
        }
        files = {*pipeline.OF_CORE, *pipeline.BY_USERS}

        absent = [p for p in watched if not any(each.startswith(p) for each in known)]
        absent += [path for path in files if not (ROOT / path).exists()]
        assert absent == []


def test_what_the_processors_did_counts_what_nobody_waited_for(pipeline):
    before, ours = pipeline.processor_time(), time.process_time()
    while time.process_time() < ours + 0.5:
        pass
    assert pipeline.processor_time() - before > 0.4


def test_no_two_environments_of_tox_share_a_folder():
    """Tox empties a folder that another environment made: under the tests that run there."""
    config = configparser.ConfigParser()
    config.read(ROOT / "tox.ini")
    folders = {name: config.get(name, "env_dir", fallback=name) for name in config.sections()}
    assert "env_dir" not in config["testenv"]
    assert len(set(folders.values())) == len(folders)
