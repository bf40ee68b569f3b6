"""Packages of Node: the real npm installs them in a cell, from a registry of the tests' own."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest
from tests.packages.conftest import Opened
from tests.packages.index import Index, wheel
from tests.packages.registry import Registry

from casemate import ApprovalRequest
from casemate.errors import InvalidArgument

NAMES = [
    *("--registry=http://evil.test", "x@npm:y", "x@git+ssh://h/x", "./x", "../x", "/x", "x.tgz/", "u/r", "x@file:../y"),
    *("github:u/r", "x@workspace:*", "x@link:y", "http://evil.test/x.tgz", "x@y.tgz", "x@1.0.0-a.tgz", "x@./y"),
    *("x@..", "X", "x y", "x\n", "x\0", "$(id)", "x; id", "@a", "@a/b/c", "node_modules", "mcptools", ".x", "x@", ""),
]  # fmt: skip
MARK = "node -e \"require('fs').writeFileSync('marker', '1')\""


async def test_what_is_installed_can_be_required_and_imported_at_once_also_after_it_was_looked_for_in_vain(
    opened: Opened, registry: Registry
) -> None:
    registry.add("alpha")
    module = {"package/index.mjs": "export const B = 2;"}
    registry.add("beta", "2.0.0", type="module", exports="./index.mjs", files=module)
    async with opened() as sandbox, sandbox.session(language="node") as session:
        before = await session.run("for (const f of [() => require('alpha'), () => import('beta')]) "
                                   "try { await f(); } catch (error) { console.log(error.code); }")  # fmt: skip
        installed = await sandbox.packages.install(["alpha", "beta@^2"], language="node", session=session)
        ran = await session.run("import { B } from 'beta'; console.log(require('alpha').VERSION, B)")
        child = await session.run(
            "require('node:child_process').execFileSync('node', ['-e', \"console.log(require('alpha').VERSION)\"]) + ''"
        )
        tools = await session.run("typeof require('mcptools')")
        listed = await sandbox.packages.list(language="node", session=session)
    assert before.stdout == "MODULE_NOT_FOUND\nERR_MODULE_NOT_FOUND\n"
    assert installed.ok, installed
    assert ran.stdout == "1.0.0 2\n", ran.text
    assert "1.0.0" in child.text
    assert tools.ok, tools.text
    assert [(one.name, one.version) for one in listed] == [("alpha", "1.0.0"), ("beta", "2.0.0")]


async def test_modules_of_the_workspace_import_what_is_installed_also_after_it_was_looked_for_in_vain(
    opened: Opened, registry: Registry
) -> None:
    registry.add(
        "beta", "2.0.0", type="module", exports="./index.mjs", files={"package/index.mjs": "export const B = {};"}
    )
    files = {"app/uses.mjs": "export { B } from 'beta'; console.log('found');"}
    opening = "try { await import('./app/uses.mjs'); } catch (error) { console.log(error.code); }"
    async with (
        opened() as sandbox,
        sandbox.session("node", files=files) as session,
        sandbox.session("shell", files=files) as shell,
    ):
        before = await session.run(opening)
        await sandbox.packages.install(["beta"], language="node", session=session)
        after = await session.run(f"{opening} (await import('./app/uses.mjs')).B === (await import('beta')).B")
        npm = await shell.run("cd app; npm init -y >init.txt; npm i beta; node uses.mjs; ls", timeout=60)
        await sandbox.packages.install(["beta"], language="node")
        ran = await sandbox.run("import './app/uses.mjs'", language="node", program_name="main.mjs", files=files)
    assert before.stdout == "ERR_MODULE_NOT_FOUND\n"
    assert after.text == "found\ntrue", after.text
    assert npm.stdout == "added beta@2.0.0\nfound\ninit.txt\npackage.json\nuses.mjs\n", npm.text
    assert ran.stdout == "found\n", ran.text


async def test_without_a_session_later_runs_have_it_and_one_question_shows_exactly_what_comes(
    opened: Opened, registry: Registry, asked: list[ApprovalRequest]
) -> None:
    registry.add("@acme/alpha", dependencies={"beta": "^1.0.0"})
    content = registry.add("beta", "1.2.0", bin={"say": "index.js"})
    async with opened() as sandbox:
        installed = await sandbox.packages.install(["@acme/alpha@1.0.0"], language="node")
        ran = await sandbox.run("import a from '@acme/alpha'; console.log(a.VERSION)", language="node",
                                program_name="main.mjs")  # fmt: skip
    assert installed.ok, installed
    assert ran.stdout == "1.0.0\n", ran.text
    (request,) = asked
    assert request.arguments["packages"] == ["@acme/alpha@1.0.0", "beta@1.2.0"]
    assert request.arguments["needed_by"] == {"beta@1.2.0": ["@acme/alpha@1.0.0"]}
    assert request.arguments["language"] == "node"
    assert request.arguments["files"][1]["sha256"] == hashlib.sha256(content).hexdigest()
    assert "/@acme%2Falpha" in registry.paths() or "/@acme%2falpha" in registry.paths()


async def test_what_was_installed_before_stays_as_it_is_and_is_not_asked_about_again(
    opened: Opened, registry: Registry, asked: list[ApprovalRequest]
) -> None:
    registry.add("alpha")
    registry.add("beta")
    async with opened() as sandbox, sandbox.session(language="node") as session:
        await sandbox.packages.install(["alpha"], language="node", session=session)
        await session.run("require('alpha').mine = 1")
        registry.add("alpha", "1.1.0")
        await sandbox.packages.install(["beta"], language="node", session=session)
        ran = await session.run("console.log(require('alpha').mine, require('beta').VERSION)")
        removed = await sandbox.packages.remove(["alpha"], language="node", session=session)
        listed = await sandbox.packages.list(language="node", session=session)
    assert ran.stdout == "1 1.0.0\n", ran.text
    assert [one.arguments["packages"] for one in asked] == [["alpha@1.0.0"], ["beta@1.0.0"]]
    assert removed == (("alpha", "1.0.0"),)
    assert [one.name for one in listed] == ["beta"]


async def test_npm_and_pip_in_a_shell_session_ask_the_host_and_their_packages_are_there(
    opened: Opened, registry: Registry, index: Index
) -> None:
    registry.add("alpha", bin={"alpha-says": "say.js"}, files={"package/say.js": "#!/usr/bin/env node\nconsole.log(7)"})
    index.add(wheel("gamma", "3.0", scripts={"gamma-says": "gamma:main"}))
    async with opened() as sandbox, sandbox.session(language="shell") as session:
        npm = await session.run("npm i --save-dev alpha; node -p 'require(\"alpha\").VERSION'; alpha-says", timeout=60)
        pip = await session.run("pip install gamma; python3 -c 'import gamma; print(gamma.VERSION)'; gamma-says")
        real = await session.run("npm --version | grep -c '^[0-9]'; npm i --registry=http://evil.test alpha")
    assert npm.stdout == "added alpha@1.0.0\n1.0.0\n7\n", npm.text
    assert pip.stdout == "Successfully installed gamma-3.0\n3.0\nI am 3.0\n", pip.text
    assert real.stdout == "1\n", real.text
    assert "--registry is not supported here" in real.stderr


async def test_npm_takes_what_package_json_lists_and_says_what_it_does_not_do(
    opened: Opened, registry: Registry
) -> None:
    registry.add("alpha")
    registry.add("@acme/beta", "2.0.0", bin={"beta-says": "say.js"},
                 files={"package/say.js": "#!/usr/bin/env node\nconsole.log(7)"})  # fmt: skip
    listed = '{"dependencies": {"alpha": "^1.0.0"}, "devDependencies": {"@acme/beta": "*"}}'
    async with opened() as sandbox, sandbox.session(language="shell", files={"package.json": listed}) as session:
        without = await session.run("npm install --omit=dev", timeout=60)
        everywhere = await session.run("npm i -g @acme/beta && beta-says", timeout=60)
        locked = await session.run("npm ci")
        broken = await session.run("echo '{' > package.json; npm install")
        unknown = await session.run("rm package.json; npm install")
    assert without.stdout == "added alpha@1.0.0\n", without.text
    assert everywhere.stdout == "added @acme/beta@2.0.0\n7\n", everywhere.text
    assert "npm ci is not supported here: 'npm install' takes what package.json lists" in locked.stderr
    assert "package.json cannot be read" in broken.stderr
    assert "give names of packages" in unknown.stderr
    assert [one.exit_code for one in (locked, broken, unknown)] == [1, 1, 1]


async def test_pk_01_scripts_run_only_when_asked_for_and_only_in_the_cell(
    opened: Opened, registry: Registry, tmp_path: Path
) -> None:
    registry.add("alpha", scripts={"postinstall": MARK})
    async with opened() as sandbox:
        shown = []
        for scripts in (False, True):
            async with sandbox.session(language="node") as session:
                await sandbox.packages.install(["alpha"], language="node", session=session, scripts=scripts)
                ran = await session.run(
                    "console.log(require('fs').existsSync('/packages/node/node_modules/alpha/marker'))"
                )
                shown.append(ran.stdout)
    assert shown[0] == "false\n"
    assert shown[1] == "true\n"
    assert not list(Path().glob("marker"))


@pytest.mark.parametrize(
    ("package", "said"),
    [
        ({"dist": {"integrity": "sha512-" + base64.b64encode(b"0" * 64).decode()}}, "does not match the registry"),
        ({"dist": {"integrity": None, "shasum": "0" * 40}}, "does not match the registry"),
        ({"dist": {"integrity": None, "shasum": None}}, "No versions available|No matching version"),
        ({"says": {"dependencies": {"evil": "git+ssh://git@evil.test/x.git"}}}, ""),
        ({"says": {"dependencies": {"evil": "http://evil.test/x.tgz"}}}, ""),
        ({"says": {"dependencies": {"evil": "file:../../../etc"}}}, ""),
        ({"files": {"package/node_modules/evil/package.json": '{"name": "evil", "version": "1.0.0"}'}}, "evil 1.0.0"),
    ],
)
async def test_what_does_not_come_from_the_registry_as_it_says_is_not_installed(
    opened: Opened, registry: Registry, asked: list[ApprovalRequest], package: dict[str, Any], said: str
) -> None:
    import re

    registry.add("alpha", **package)
    async with opened() as sandbox, sandbox.session(language="node") as session:
        installed = await sandbox.packages.install(["alpha"], language="node", session=session)
        listed = await sandbox.packages.list(language="node", session=session)
    assert installed.status == "failed", installed
    assert re.search(said, installed.reason), installed.reason
    assert listed == ()
    assert asked == []


async def test_an_alias_comes_from_the_registry_and_entries_that_lead_out_of_a_file_lead_nowhere(
    opened: Opened, registry: Registry, asked: list[ApprovalRequest]
) -> None:
    registry.add("real")
    registry.add("alpha", says={"dependencies": {"x": "npm:real@1"}}, files={"package/../../../evil.js": "1"},
                 links={"package/link": "/etc/passwd"})  # fmt: skip
    async with opened() as sandbox, sandbox.session(language="node") as session:
        installed = await sandbox.packages.install(["alpha"], language="node", session=session)
        ran = await session.run(
            "console.log(require('x').VERSION, require('fs').readdirSync('/packages/node/node_modules/alpha'))"
        )
    assert installed.ok, installed
    assert asked[0].arguments["packages"] == ["alpha@1.0.0", "real@1.0.0"]
    assert ran.stdout == "1.0.0 [ 'index.js', 'package.json' ]\n", ran.text


async def test_pk_02_pk_03_pk_04_names_that_are_more_than_names_are_refused_before_anything_is_asked(
    opened: Opened, registry: Registry
) -> None:
    async with opened() as sandbox:
        for name in NAMES:
            with pytest.raises(InvalidArgument):
                await sandbox.packages.install([name], language="node")
            assert registry.asked == [], name


async def test_the_operators_credentials_stay_on_the_host_and_the_workspace_has_no_say(
    opened: Opened, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME_TOKEN", "t0ken")
    registry.authorization = "Bearer t0ken"
    registry.add("@acme/alpha")
    (tmp_path / "npmrc").write_text(
        f"registry=http://127.0.0.1:9/\n@acme:registry={registry.url}\n//127.0.0.1:{registry.port}/:_authToken=${{ACME_TOKEN}}\n"
    )
    files = {".npmrc": "registry=http://evil.test/\n"}
    async with opened() as sandbox, sandbox.session(language="node", files=files) as session:
        installed = await sandbox.packages.install(["@acme/alpha"], language="node", session=session)
        other = await sandbox.packages.install(["beta"], language="node", session=session)
    assert installed.ok, installed
    assert "127.0.0.1 cannot be reached" in other.reason
    assert "t0ken" not in installed.output + other.output
