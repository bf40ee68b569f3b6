"""What a person sees in a notebook: output, questions, widgets, and how a cell ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.kernel.notebook import Notebook
from tests.support.waiting import until

PORTS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")
ASKING = "rules:\n  - ask: shell\n"


@pytest.fixture(scope="module")
def careful(jupyter: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook in which commands are asked about."""
    policy = tmp_path_factory.mktemp("policy") / "policy.yaml"
    policy.write_text(ASKING)
    with Notebook("casemate-python", variables={"CASEMATE_POLICY": str(policy)}) as opened:
        yield opened


def test_a_person_types_what_input_asks_for(notebook: Notebook) -> None:
    outcome = notebook.run("import getpass; print(input('name? ') + getpass.getpass('word: '))", "Ann", "hush")
    assert (outcome.asked, outcome.text) == (["name? ", "word: "], "Annhush\n")


def test_input_fails_where_nobody_can_type(notebook: Notebook) -> None:
    assert "NoStandardInput" in notebook.run("input()", allow_stdin=False).failure


def test_a_person_allows_a_command_in_the_notebook(careful: Notebook) -> None:
    outcome = careful.run("!echo it ran", "y")
    assert "echo it ran" in outcome.asked[0]
    assert outcome.text == "it ran\n"


@pytest.mark.parametrize("answer", ["", "n", "yes please"])
def test_nothing_but_yes_allows_a_command(careful: Notebook, answer: str) -> None:
    outcome = careful.run("!echo it ran", answer)
    assert "not allowed" in outcome.failure
    assert "it ran" not in outcome.text


def test_a_command_allowed_for_the_session_is_asked_about_once(careful: Notebook) -> None:
    assert careful.run("!echo again", "s").text == "again\n"
    outcome = careful.run("!echo again")
    assert (outcome.asked, outcome.text) == ([], "again\n")


def test_a_command_is_denied_where_the_front_end_cannot_ask(careful: Notebook) -> None:
    outcome = careful.run("!echo alone", allow_stdin=False)
    assert "no person can be asked" in outcome.failure
    assert outcome.asked == []


def test_a_host_is_asked_about_where_the_cell_runs(notebook: Notebook) -> None:
    outcome = notebook.run("import urllib.request; urllib.request.urlopen('http://example.org')", "n")
    assert 'host: "example.org"' in outcome.asked[0]
    assert "Forbidden" in outcome.failure


def test_what_was_displayed_is_shown_anew_and_cleared(notebook: Notebook) -> None:
    outcome = notebook.run(
        "from IPython.display import display, clear_output, Image\n"
        "shown = display('a', display_id='one')\nshown.update('b')\nclear_output(wait=True)\n"
        "display(Image(data=b'\\x89PNG\\r\\n\\x1a\\n' + bytes(20), format='png', width=30))"
    )
    assert [kind for kind, _ in outcome.messages if kind not in ("status", "execute_input")] == [
        "display_data", "update_display_data", "clear_output", "display_data",
    ]  # fmt: skip
    first, second = outcome.of("display_data")
    assert first["transient"] == outcome.of("update_display_data")[0]["transient"] == {"display_id": "one"}
    assert outcome.of("clear_output") == [{"wait": True}]
    assert second["metadata"]["image/png"]["width"] == 30


def test_an_interrupt_ends_the_cell_and_keeps_the_state(notebook: Notebook) -> None:
    notebook.run("kept = 1")
    outcome = notebook.run(
        "print('on')\nimport time\nwhile True: time.sleep(1)", on_start=notebook.manager.interrupt_kernel
    )
    assert outcome.failure.startswith("KeyboardInterrupt")
    assert notebook.run("kept").result == "1"


def test_an_interrupt_ends_a_cell_that_waits_for_an_answer(notebook: Notebook) -> None:
    outcome = notebook.run("input('for ever? ')", on_start=notebook.manager.interrupt_kernel)
    assert outcome.failure.startswith("KeyboardInterrupt")


def test_a_cell_that_cannot_begin_says_why_and_the_next_one_runs(notebook: Notebook) -> None:
    assert "NUL byte" in notebook.run("'\0'").failure
    assert notebook.run("6 * 7").result == "42"


def test_cells_that_were_sent_before_one_failed_are_not_run(notebook: Notebook) -> None:
    first = notebook.client.execute("import time; time.sleep(0.3); 1 / 0")
    second = notebook.client.execute("ran = True")
    replies: dict[str, str] = {}
    while len(replies) < 2:
        reply = notebook.client.get_shell_msg(timeout=100)
        replies[reply["parent_header"].get("msg_id")] = reply["content"]["status"]
    assert replies == {first: "error", second: "aborted"}
    assert "NameError" in notebook.run("ran").failure


def test_the_death_of_an_interpreter_is_told_with_what_was_lost(notebook: Notebook) -> None:
    notebook.run("precious = 1; open('kept.txt', 'w').write('here')")
    outcome = notebook.run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert outcome.reply["ename"] == "interpreter_ended"
    assert "precious" in outcome.failure
    assert notebook.run("open('kept.txt').read()").result == "'here'"


def test_a_restart_forgets_all_names(notebook: Notebook) -> None:
    notebook.run("forgotten = 1")
    notebook.manager.restart_kernel()
    notebook.client.wait_for_ready(timeout=100)
    outcome = notebook.run("forgotten")
    assert "NameError" in outcome.failure
    assert outcome.reply["execution_count"] == 1


def test_an_editor_completes_looks_up_and_checks_code(notebook: Notebook) -> None:
    notebook.run("import textwrap")
    client = notebook.client
    found = notebook.ask(client.complete, "x = textwrap.ded")
    assert (found["matches"], found["cursor_start"], found["cursor_end"]) == (["dedent"], 13, 16)
    known = notebook.ask(client.inspect, "textwrap.dedent(")
    assert "common leading whitespace" in known["data"]["text/plain"]
    assert notebook.ask(client.inspect, "nothing_of_that_name")["found"] is False
    for code, name in (("alpha_value = 1\nalp", "alpha_value"), ("import decimal\ndecimal.getcon", "getcontext")):
        until(lambda code=code, name=name: name in notebook.ask(client.complete, code)["matches"])  # type: ignore[misc]
    states = [notebook.ask(client.is_complete, code) for code in ("for x in y:", "1 + 1", "1 +")]
    assert states == [{"status": "incomplete", "indent": "    "}, {"status": "complete"}, {"status": "invalid"}]


@pytest.mark.full
def test_an_object_that_never_answers_costs_no_state(notebook: Notebook) -> None:
    notebook.run("class Slow:\n    def __dir__(self):\n        while True: pass\nslow, kept = Slow(), 2")
    assert notebook.ask(notebook.client.complete, "slow.")["matches"] == []
    assert notebook.run("kept").result == "2"


def test_a_widget_and_its_other_half_speak_to_each_other(trusted: Notebook) -> None:
    outcome = trusted.run(
        "import comm\nhalf = comm.create_comm(target_name='mine', data={'n': 1}, buffers=[b'\\x00\\xff'])\n"
        "def take(message):\n"
        "    print(message['content']['data'], bytes(message['buffers'][0]))\n    half.send({'got': True})\n"
        "half.on_msg(take)"
    )
    (opened,) = outcome.of("comm_open")
    assert (opened["target_name"], opened["data"]) == ("mine", {"n": 1})
    assert opened["comm_id"] in trusted.ask(trusted.client.comm_info, "mine")["comms"]
    answer = trusted.send_to_comm(opened["comm_id"], {"from": "front"}, [b"\x01"])
    assert answer.text == "{'from': 'front'} b'\\x01'\n"
    assert answer.of("comm_msg") == [{"comm_id": opened["comm_id"], "data": {"got": True}}]


def test_a_slider_moves_the_value_in_the_cell(trusted: Notebook) -> None:
    trusted.run(
        "import ipywidgets\nslider, seen = ipywidgets.IntSlider(), ipywidgets.Output()\n"
        "def show(change):\n    with seen: print('now', change['new'])\n"
        "slider.observe(show, 'value')"
    )
    model = trusted.run("slider.model_id").result.strip("'")
    moved = trusted.send_to_comm(model, {"method": "update", "state": {"value": 7}, "buffer_paths": []})
    assert moved.text == "now 7\n"
    output_ids = [one["data"]["state"]["msg_id"] for one in moved.of("comm_msg") if "msg_id" in one["data"]["state"]]
    assert len(output_ids) == 2
    assert output_ids[0]
    assert trusted.run("slider.value").result == "7"


def test_what_cells_change_in_the_folder_is_written_when_a_person_allows_it(
    jupyter: Mapping[str, str], folder: Path
) -> None:
    spec = Path(jupyter["JUPYTER_DATA_DIR"], "kernels", "casemate-python", "kernel.json")
    reviewing = spec.parents[1] / "reviewing" / "kernel.json"
    reviewing.parent.mkdir()
    reviewing.write_text(spec.read_text().replace('"none"', '"review"'))
    (folder / "data.txt").write_text("before")
    with Notebook("reviewing", folder) as opened:
        assert opened.run("open('data.txt').read()").result == "'before'"
        opened.run("open('data.txt', 'w').write('after')")
        assert (folder / "data.txt").read_text() == "before"
        assert "+after" in opened.run("%casemate diff").text
        assert "+after" in opened.run("%casemate apply", "n").asked[0]
        assert (folder / "data.txt").read_text() == "before"
        assert "wrote 1" in opened.run("%casemate apply", "y").text
    assert (folder / "data.txt").read_text() == "after"


def test_history_has_the_cells_that_were_to_be_remembered(notebook: Notebook) -> None:
    notebook.run("first_remembered = 1")
    notebook.run("not_remembered = 1", store_history=False)
    rows = notebook.ask(lambda: notebook.client.history(hist_access_type="tail", n=1))["history"]
    assert [row[2] for row in rows] == ["first_remembered = 1"]


def test_a_message_that_is_not_signed_does_nothing(notebook: Notebook) -> None:
    key = notebook.client.session.key
    notebook.client.session.key = b"another"
    notebook.client.execute("stolen = True")
    notebook.client.session.key = key
    assert "NameError" in notebook.run("stolen").failure


def test_a_kernel_serves_no_connection_without_a_key(jupyter: Mapping[str, str], tmp_path: Path) -> None:
    ports = {f"{name}_port": 1 for name in ("shell", "iopub", "stdin", "control", "hb")}
    connection = tmp_path / "connection.json"
    connection.write_text(json.dumps({"transport": "ipc", "ip": str(tmp_path / "k"), "key": "", **ports}))
    argv = [sys.executable, "-m", "casemate.surfaces.kernel", "-f", str(connection)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert "no key" in done.stderr


def test_nothing_that_a_cell_shows_can_act_in_the_page(jupyter: Mapping[str, str]) -> None:
    with Notebook("casemate-python") as opened:
        outcome = opened.run(
            "from IPython.display import display, HTML, Javascript, Markdown, SVG\nimport ipywidgets\n"
            "display(HTML('<script>x</script><b onclick=x>b</b>'), Javascript('x'), Markdown('<img onerror=x>'))\n"
            'display(SVG(\'<svg xmlns="http://www.w3.org/2000/svg" onload="x"></svg>\'), ipywidgets.IntSlider())\n'
            "HTML('<table class=dataframe><style>x</style></table>')"
        )
        shown = [one["data"] for one in (*outcome.of("display_data"), *outcome.of("execute_result"))]
        assert [data.get("text/html", "")[:20] for data in shown] == [
            "<b>b</b>", "", "", '<img src="data:image', "", "<table class=\"datafr",
        ]  # fmt: skip
        assert {kind for data in shown for kind in data} == {"text/html", "text/plain"}
        assert outcome.of("comm_open") == []
        assert "--display all" in outcome.text
        assert opened.run("Javascript('x')").text == ""


def test_what_an_editor_is_shown_of_an_object_cannot_act_either(notebook: Notebook) -> None:
    given = {"text/plain": "x", "text/html": "<img src=https://evil.example>b", "application/javascript": "x"}
    notebook.run(
        f"kept, shell = get_ipython().object_inspect_mime, get_ipython()\nlooked_at = 1\n"
        f"shell.object_inspect_mime = lambda *names, **more: {given!r}"
    )
    found = notebook.ask(notebook.client.inspect, "looked_at")
    notebook.run("shell.object_inspect_mime = kept")
    assert found["data"] == {"text/plain": "x", "text/html": "<img>b"}


def test_a_kernel_runs_nothing_that_lies_beside_the_notebook(jupyter: Mapping[str, str], folder: Path) -> None:
    """A cell or the folder's author may have left it there."""
    for name in ("argparse", "zmq", "casemate"):
        (folder / f"{name}.py").write_text(f"open({str(folder / 'ran')!r}, 'w').close()\nraise SystemExit")
    with Notebook("casemate-python", folder) as opened:
        assert opened.run("6 * 7").result == "42"
    assert not (folder / "ran").exists()


def test_a_kernel_ends_with_the_front_end_that_has_started_it(jupyter: Mapping[str, str]) -> None:
    start = "from tests.kernel.notebook import Notebook; print(Notebook('casemate-python').run('7').result, flush=True)"
    program = f"import os, signal; {start}; os.kill(os.getpid(), signal.SIGKILL)"
    path = os.pathsep.join((jupyter["PYTHONPATH"], str(Path(__file__).parents[2])))
    before = set(_kernels())
    killed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, env={**os.environ, "PYTHONPATH": path}, check=False
    )
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, b"7\n")
    until(lambda: set(_kernels()) <= before)


def _kernels() -> Iterator[int]:
    """Processes of kernels whose connection lies where this test's do."""
    mark = os.environ["JUPYTER_RUNTIME_DIR"].encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (folder / "cmdline").read_bytes():
                yield int(folder.name)


def test_a_traceback_has_a_text_with_colours_for_each_frame(notebook: Notebook) -> None:
    (error,) = notebook.run("def f():\n    1 / 0\n\nf()").of("error")
    rule, head, outer, inner, last = error["traceback"]
    assert "-" * 70 in rule
    assert "Traceback" in head
    assert [outer.endswith("\n"), inner.endswith("\n")] == [True, True]
    assert "\x1b[" in outer
    assert "division by zero" in last
    assert notebook.run('print("\\x1b[31mred")').text == "\x1b[31mred\n"
    (error,) = notebook.run("raise ValueError('\\x1b]0;title\\x07')").of("error")
    assert "\x1b]" not in "".join((error["evalue"], *error["traceback"]))


def test_a_traceback_of_one_very_long_line_is_shown(notebook: Notebook) -> None:
    code = "class Long(Exception):\n    def _render_traceback_(self): return ['-' * 900_000]\nraise Long"
    (error,) = notebook.run(code).of("error")
    assert error["traceback"] == ["-" * 900_000]


def test_what_is_loaded_is_put_where_code_is_typed(notebook: Notebook) -> None:
    outcome = notebook.run("open('a.py', 'w').write('print(77)\\n')\n%load a.py")
    text = "# %load a.py\nprint(77)\n"
    assert outcome.reply["payload"] == [{"source": "set_next_input", "text": text, "replace": True}]
    assert outcome.of("display_data") == []
    assert notebook.run("1").reply["payload"] == []


@pytest.mark.parametrize("text", ["%casemate apply", "\\n %casemate discard a b"])
def test_a_program_cannot_put_a_command_of_the_user_where_code_is_typed(notebook: Notebook, text: str) -> None:
    assert notebook.run(f"get_ipython().set_next_input('{text}', replace=True)").reply["payload"] == []
    (payload,) = notebook.run("get_ipython().set_next_input('x = 1')").reply["payload"]
    assert (payload["text"], payload["replace"]) == ("x = 1", False)


def test_a_front_end_is_told_the_ports_that_it_has_given(notebook: Notebook) -> None:
    client = notebook.client
    message = client.session.msg("connect_request")

    def ask() -> str:
        client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    given = dict(notebook.manager.get_connection_info())
    ports = {name: given[name] for name in PORTS}
    assert notebook.ask(ask) == {"status": "ok", **ports}


@pytest.mark.parametrize(
    ("language", "whole", "open_", "wrong"),
    [
        pytest.param("node", "f(1);", "f(1,", "f(1 2)", marks=pytest.mark.needs("node")),
        ("shell", "if a; then b; fi", "if a; then", "fi"),
    ],
)
def test_a_kernel_says_whether_code_of_node_and_shell_is_complete(
    jupyter: Mapping[str, str], language: str, whole: str, open_: str, wrong: str
) -> None:
    with Notebook(f"casemate-{language}") as opened:
        codes = (whole, open_, wrong)
        states = [opened.ask(opened.client.is_complete, code)["status"] for code in codes]
        assert states == ["complete", "incomplete", "invalid"]
        if language == "node":
            opened.run("const mine = {a: [1, 2], get ran() { globalThis.has_run = 1; }}")
            found = [
                opened.ask(opened.client.inspect, name) for name in ("JSON.parse(", "mine.a", "nothing", "mine.ran")
            ]
            assert [one["found"] for one in found] == [True, True, False, False]
            assert "[ 1, 2 ]" in found[1]["data"]["text/plain"]
            long = f"'{'x' * 200_000}{chr(0x1F600) * 9}';\nmine.a"
            assert opened.ask(opened.client.inspect, long)["found"] is True
            assert opened.run("typeof has_run").result == "'undefined'"


@pytest.mark.full
def test_a_cell_of_shell_that_fails_says_its_exit_code(jupyter: Mapping[str, str]) -> None:
    with Notebook("casemate-shell") as opened:
        opened.run("x=3")
        outcome = opened.run("echo $x; (exit 5)")
    assert (outcome.text, outcome.failure) == ("3\n", "exit: its exit code is 5\nits exit code is 5")


def test_kernels_are_found_by_name(jupyter: Mapping[str, str]) -> None:
    from jupyter_client.kernelspec import KernelSpecManager

    found = KernelSpecManager().get_all_specs()
    assert {"casemate-python", "casemate-node", "casemate-shell"} <= set(found)
    assert found["casemate-node"]["spec"]["display_name"] == "JavaScript (casemate)"


@pytest.mark.parametrize(
    ("language", "name", "extension", "says", "fails"),
    [
        ("python", "python", ".py", "import sys; print('a'); print('b', file=sys.stderr)", "raise ValueError('so')"),
        ("node", "javascript", ".js", "console.log('a'); console.error('b')", "throw new Error('so')"),
        ("shell", "bash", ".sh", "echo a; echo b >&2", "false"),
    ],
)
def test_each_kernel_says_what_it_is_and_what_its_cells_say(
    jupyter: Mapping[str, str], language: str, name: str, extension: str, says: str, fails: str
) -> None:
    with Notebook(f"casemate-{language}") as opened:
        about = opened.ask(opened.client.kernel_info)
        assert (about["language_info"]["name"], about["language_info"]["file_extension"]) == (name, extension)
        streams = {one["name"]: one["text"] for one in opened.run(says).of("stream")}
        assert streams == {"stdout": "a\n", "stderr": "b\n"}
        assert opened.run(fails).reply["status"] == "error"
        assert opened.run(says).reply["status"] == "ok"
