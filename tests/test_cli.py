"""The program as a whole: configurations, errors, exit codes, pipes, interruptions."""

from __future__ import annotations

import os
import subprocess
import sys
import types

import pytest

from statifier_router import ChartRegistry, Config, create_engine
from tests.support import charts
from tests.support.command_line import COMMAND, environment, process, run

HOST = """
import os, sys
from datetime import UTC, datetime
from statifier_router import Binding, ChartRegistry, Config, Step, create_engine
from statifier_router.interpreters import function

print("the host's module says something")

registry = ChartRegistry()
registry.publish("parcel", function.chart(
    "parcel", create=lambda data, now: Step(0, active=["open"]),
    step=lambda position, event, now: Step(position + 1, active=["open"])))

def config():
    return Config(create_engine(os.environ["HOST_DATABASE"]), charts=registry, bindings=[
        Binding(id="scans", source="carrier", match={}, key="parcel", document="parcel", event="scanned")])

class app:
    config = config()
"""
SCAN = '{"source": "carrier", "message_id": "m-1", "scope": "acme", "data": {"parcel": "P7"}}\n'


@pytest.fixture
def host(tmp_path, sqlite):
    """A directory with the module `host`, and the environment that points it at a migrated database."""
    (tmp_path / "host.py").write_text(HOST)
    return tmp_path, {"HOST_DATABASE": sqlite.url}


@pytest.fixture
def module(monkeypatch):
    """A module `the_host` whose attributes a test sets."""
    made = types.ModuleType("the_host")
    monkeypatch.setitem(sys.modules, "the_host", made)
    monkeypatch.delenv("STATIFIER_ROUTER_CONFIG", raising=False)
    return made


# --- finding the configuration ----------------------------------------------------------------------


def test_the_current_directory_is_importable_and_a_callable_answers_the_config(host):
    """A host's module beside the prompt is found, as `python -m` would find it."""
    directory, env = host
    done = process("verify", "--config", "host:config", cwd=directory, env=env)
    assert (done.code, done.out.count("\n")) == (0, 1)


def test_a_dotted_attribute_and_the_environment_variable_name_it_too(host):
    directory, env = host
    done = process("verify", cwd=directory, env=env | {"STATIFIER_ROUTER_CONFIG": "host:app.config"})
    assert done.code == 0


def test_config_may_stand_before_the_command_and_the_command_s_own_goes_before_it(host):
    directory, env = host
    assert process("--config", "host:config", "verify", cwd=directory, env=env).code == 0
    both = process("--config", "no:where", "verify", "--config", "host:config", cwd=directory, env=env)
    assert both.code == 0


def test_what_the_host_prints_is_kept_out_of_the_document(host):
    """Standard output holds one JSON document and nothing else, whatever the host's module prints."""
    directory, env = host
    done = process("ledger", "--json", "--config", "host:config", cwd=directory, env=env)
    assert done.json == {"rows": [], "next": None}
    assert "the host's module says something" in done.err


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("", "no configuration: give --config package.module:attribute, or set STATIFIER_ROUTER_CONFIG"),
        ("the_host", "must be of the form package.module:attribute, not 'the_host'"),
        ("the_host:", "must be of the form package.module:attribute"),
        (":config", "must be of the form package.module:attribute"),
        (".the_host:config", "must be of the form package.module:attribute"),
        ("no.such:config", "there is no module 'no'"),
        ("statifier_router.nowhere:config", "there is no module 'statifier_router.nowhere'"),
        ("the_host:absent", "the_host has no attribute 'absent'"),
        ("the_host:nothing", "it is None"),
        ("the_host:text", "it is of type str"),
        ("the_host:raises", "calling it raised ZeroDivisionError: division by zero"),
        ("the_host:leaves", "calling it raised SystemExit(3)"),
        ("the_host:asynchronous", "it is async"),
        ("the_host:refused", "charts is missing"),
    ],
)
def test_a_faulty_reference_is_one_line_that_names_it(module, reference, says):
    """Usage and configuration faults exit with 2 and one line, never a traceback."""

    async def asynchronous():
        return None

    def leaves():
        raise SystemExit(3)

    module.nothing, module.text = None, "text"
    module.raises, module.leaves, module.asynchronous = (lambda: 1 / 0), leaves, asynchronous
    module.refused = lambda: Config(create_engine("sqlite:///x.db"))
    done = run("verify", "--config", reference)
    assert (done.code, done.out) == (2, "")
    assert says in done.error
    assert done.error.startswith("error: ")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "import absent_module",
            "importing broken raised ModuleNotFoundError: No module named 'absent_module'",
        ),
        ("1 +", "importing broken raised SyntaxError"),
        ("raise ValueError('two\\nlines')", "importing broken raised ValueError: two lines"),
        ("import sys; sys.exit('bye')", "importing broken raised SystemExit(bye)"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line(tmp_path, monkeypatch, text, says):
    (tmp_path / "broken.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    done = run("verify", "--config", "broken:config")
    assert done.code == 2
    assert says in done.error


# --- ends -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_the_extra_one_line_names_it(missing, tmp_path):
    """The library itself needs neither; the command says which extra brings them."""
    program = f"import sys; sys.modules[{missing!r}] = None; from statifier_router.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "error: the command line needs the extra 'cli': pip install 'statifier-router[cli]'\n"
    )


def test_without_a_command_the_help_is_shown():
    done = run()
    assert done.code == 0
    assert "Begin with: statifier-router demo" in done.out


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["ledger", "--nonsense"],
        ["ledger", "--limit", "many"],
        ["execution"],
        ["route", "no.file"],
    ],
)
def test_misuse_is_one_line_that_points_at_the_help(arguments):
    done = run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert "--help" in done.error


def test_a_database_that_was_not_migrated_is_told_with_the_line_that_mends_it(module, unmigrated):
    module.config = Config(unmigrated.engine(), charts=ChartRegistry())
    done = run("ledger", "--config", "the_host:config")
    assert (done.code, done.out) == (1, "")
    assert "run: statifier-router migrate" in done.error


@pytest.mark.parametrize("command", [["ledger"], ["migrate"], ["verify"], ["reap"], ["explain", "m-1"]])
def test_a_database_that_cannot_be_reached_is_one_line_without_its_password(module, command):
    engine = create_engine("postgresql://someone:secret@127.0.0.1:1/nowhere")
    module.config = Config(engine, charts=ChartRegistry(), retries=0)
    done = run(*command, "--config", "the_host:config")
    assert (done.code, done.out) == (1, "")
    assert "127.0.0.1" in done.error
    assert "secret" not in done.error


def test_what_nobody_foresaw_is_one_line_and_its_traceback_is_there_for_the_asking(module, sqlite):
    module.config = Config(
        sqlite.engine(),
        charts=charts.registry(parcel=charts.obedient()),
        bindings=[charts.scans()],
        clock=lambda: 1 / 0,
    )
    done = run("reap", "--config", "the_host:config")
    assert done.code == 1
    assert done.error == (
        "error: ZeroDivisionError: division by zero "
        "(set STATIFIER_ROUTER_TRACEBACK=1 to see where it was raised)"
    )
    traced = run("reap", "--config", "the_host:config", env={"STATIFIER_ROUTER_TRACEBACK": "1"})
    assert "Traceback" in traced.err


def test_a_reader_that_goes_away_ends_the_command_quietly(host):
    """A closed pipe is no fault to speak of: nothing on standard error, and the code of SIGPIPE."""
    directory, env = host
    for arguments in (["ledger"], ["ledger", "--json"], ["migrate", "--sql"]):
        reader, writer = os.pipe()
        os.close(reader)
        try:
            done = subprocess.run(
                [*COMMAND, *arguments, "--config", "host:app.config"],
                cwd=directory,
                env=environment(**env),
                stdout=writer,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        finally:
            os.close(writer)
        assert done.returncode == 141
        assert done.stderr == "the host's module says something\n"


def test_texts_of_others_cannot_steer_the_terminal(module, sqlite):
    """A message id may hold what a terminal obeys; it is shown as an escape, and markup as it is."""
    module.config = Config(
        sqlite.engine(), charts=charts.registry(parcel=charts.obedient()), bindings=[charts.scans()]
    )
    line = '{"source": "carrier", "message_id": "\\u001b[2J[bold]", "scope": "", "data": {"parcel": "P"}}'
    assert run("route", "-", "--config", "the_host:config", stdin=line).code == 0
    shown = run("ledger", "--config", "the_host:config").out
    assert "\x1b" not in shown
    assert "\\x1b[2J[bold]" in shown


# --- migrate and verify -----------------------------------------------------------------------------


def test_migrate_goes_up_and_down_and_verify_tells(module, unmigrated):
    module.config = Config(unmigrated.engine(), charts=ChartRegistry())

    def ran(*arguments):
        return run(*arguments, "--json", "--config", "the_host:config")

    missing = ran("verify")
    assert (missing.code, missing.json["verified"]) == (1, False)
    up = ran("migrate").json
    assert (up["before"], up["applied"][0]) == (0, 1)
    assert ran("migrate").json == {"before": up["after"], "after": up["after"], "applied": []}
    assert ran("verify").json == {"verified": True, "version": up["after"]}
    assert ran("migrate", "--down", "--to", "0").json["after"] == 0
    assert ran("migrate", "--to", "1").json["after"] == 1
    behind = ran("migrate", "--to", "0")
    assert (behind.code, behind.out) == (2, "")
    assert "add --down" in behind.error


def test_migrate_says_in_words_what_it_did(module, unmigrated_sqlite):
    module.config = Config(unmigrated_sqlite.engine(), charts=ChartRegistry())
    first = run("migrate", "--to", "1", "--config", "the_host:config")
    assert first.out == "the tables statifier_router_* went from version 0 to 1\n"
    again = run("migrate", "--to", "1", "--config", "the_host:config")
    assert again.out == "the tables statifier_router_* are at version 1: nothing to do\n"


def test_the_offline_script_connects_to_nothing(module):
    """`--sql` needs the dialect and the table names only."""
    module.config = Config(create_engine("postgresql://nobody@127.0.0.1:1/nowhere"), charts=ChartRegistry())
    script = run("migrate", "--sql", "--config", "the_host:config").out
    assert "CREATE TABLE" in script
    document = run("migrate", "--sql", "--json", "--to", "1", "--config", "the_host:config").json
    assert (document["dialect"], document["since"], document["to"]) == ("postgresql", 0, 1)
    back = run("migrate", "--sql", "--since", "1", "--down", "--config", "the_host:config").out
    assert "DROP TABLE" in back
    nowhere = run("migrate", "--sql", "--down", "--config", "the_host:config")
    assert nowhere.code == 2
    alone = run("migrate", "--since", "1", "--config", "the_host:config")
    assert alone.code == 2
    assert "--since goes with --sql" in alone.error
