"""The encrypted file: what it keeps, who can read it, and that nothing is changed in it unnoticed."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from casemate.errors import VaultUnavailable
from casemate.policy.inject import Inject, Injected
from casemate.vault.encrypted_file import Damaged, EncryptedFile, KeyFile, Keyring, VaultHead, key_path, seal, unseal

VALUE = "hunter2hunter2"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture
def vault(folder: Path) -> EncryptedFile:
    return opened(folder)


def opened(folder: Path) -> EncryptedFile:
    return EncryptedFile(folder / "vault" / "secrets", KeyFile(folder / "key" / "vault.key"))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_set_is_there_for_the_next_who_opens_it(vault: EncryptedFile, folder: Path) -> None:
    vault.set("a", "TOKEN", VALUE)
    vault.set("b", "TOKEN", "another-value")
    again = opened(folder)
    assert (again.get("a", "TOKEN"), again.get("b", "TOKEN"), again.names("c")) == (VALUE, "another-value", ())
    assert again.delete("a", "TOKEN")
    assert not again.delete("a", "TOKEN")
    assert (vault.get("a", "TOKEN"), vault.names("b")) == (None, ("TOKEN",))


def test_where_a_secret_may_go_is_kept_with_it_and_closed_to_versions_that_do_not_know_it(
    vault: EncryptedFile, folder: Path
) -> None:
    kept = Injected(VALUE, Inject(["api.example.org:8443"], "X-Api-Key", "{}"))
    vault.set("a", "PLAIN", "another-value")
    file = folder / "vault" / "secrets"
    assert b'"casemate-vault-1"' in file.read_bytes()
    vault.set("a", "TOKEN", kept)
    assert b'"casemate-vault-2"' in file.read_bytes()
    assert VALUE.encode() not in file.read_bytes()
    again = opened(folder)
    assert (again.get("a", "TOKEN"), again.get("a", "PLAIN")) == (kept, "another-value")
    vault.set("a", "TOKEN", VALUE)
    assert b'"casemate-vault-1"' in file.read_bytes()
    assert opened(folder).get("a", "TOKEN") == VALUE


@pytest.mark.parametrize("entry", [7, None, {}, {"value": VALUE}, {"value": VALUE, "inject": {"hosts": ["*"]}}])
def test_an_entry_that_says_something_else_is_damaged(entry: object) -> None:
    key, head = bytes(32), VaultHead(1, "file")
    with pytest.raises(Damaged) as refused:
        unseal(seal({"a": {"TOKEN": entry}}, head, key), key)  # type: ignore[dict-item]
    assert VALUE not in str(refused.value)


def test_va_13_file_key_and_folders_are_their_owners_alone_whatever_the_umask(folder: Path) -> None:
    before = os.umask(0)
    try:
        opened(folder).set("a", "TOKEN", VALUE)
    finally:
        os.umask(before)
    assert {mode(folder / place) for place in ("vault", "key")} == {0o700}
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {mode(path) for path in files} == {0o600}
    assert not any(VALUE.encode() in path.read_bytes() or b"TOKEN" in path.read_bytes() for path in files)


@pytest.mark.parametrize("place", ["vault", "vault/secrets", "key", "key/vault.key"])
def test_va_13_what_others_can_open_is_refused(vault: EncryptedFile, folder: Path, place: str) -> None:
    vault.set("a", "TOKEN", VALUE)
    (folder / place).chmod(mode(folder / place) | 0o040)
    for use in (lambda: vault.set("a", "TOKEN", VALUE), lambda: vault.get("a", "TOKEN"), lambda: vault.names("a")):
        with pytest.raises(VaultUnavailable, match="accessible to others"):
            use()


@pytest.mark.parametrize("name", ["secrets", "secrets.lock"])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_va_13_what_is_no_file_is_refused_in_its_place(
    vault: EncryptedFile, folder: Path, name: str, kind: str
) -> None:
    vault.set("a", "TOKEN", VALUE)
    place = folder / "vault" / name
    place.rename(folder / "elsewhere")
    match kind:
        case "link":
            place.symlink_to(folder / "elsewhere")
        case "pipe":
            os.mkfifo(place, 0o600)
        case _:
            place.mkdir(0o700)
    with pytest.raises(VaultUnavailable) as raised:
        vault.set("a", "TOKEN", "another-value")
    assert raised.value.reason == "file"


def test_va_13_a_link_in_the_place_of_the_vault_is_refused(vault: EncryptedFile, folder: Path) -> None:
    vault.set("a", "TOKEN", VALUE)
    (folder / "vault" / "secrets").rename(folder / "elsewhere")
    (folder / "vault" / "secrets").symlink_to(folder / "elsewhere")
    with pytest.raises(VaultUnavailable, match="link"):
        vault.get("a", "TOKEN")


def test_va_13_whoever_reads_while_it_is_written_finds_it_whole(vault: EncryptedFile, folder: Path) -> None:
    vault.set("a", "TOKEN", VALUE)
    done = threading.Event()
    wrong: list[object] = []

    def read() -> None:
        reader = opened(folder)
        while not done.is_set():
            try:
                if reader.get("a", "TOKEN") != VALUE:
                    wrong.append("another value")
            except VaultUnavailable as error:
                wrong.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(30):
        vault.set("a", f"OTHER_{number}", VALUE)
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_two_processes_that_write_lose_nothing_of_each_others(folder: Path) -> None:
    program = (
        "import sys; from casemate.vault.encrypted_file import EncryptedFile, KeyFile\n"
        "vault = EncryptedFile(sys.argv[1], KeyFile(sys.argv[2]))\n"
        "for number in range(10): vault.set('a', f'{sys.argv[3]}_{number}', 'some-value-or-other')"
    )
    places = [str(folder / "vault" / "secrets"), str(folder / "key" / "vault.key")]
    children = [subprocess.Popen([sys.executable, "-c", program, *places, name]) for name in ("A", "B")]
    assert [child.wait(60) for child in children] == [0, 0]
    assert len(opened(folder).names("a")) == 20


def flipped(at: int) -> Callable[[bytes], bytes]:
    def flip(data: bytes) -> bytes:
        place = at % len(data)
        return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]

    return flip


@pytest.mark.parametrize(
    "change",
    [
        *[pytest.param(flipped(at), id=f"byte {at}") for at in (0, 12, 30, 36, 84, 85, 97, 98, -40, -17, -16, -1)],
        pytest.param(lambda data: bytes(data[:-1]), id="last byte gone"),
        pytest.param(lambda data: data[:100], id="cut"),
        pytest.param(lambda data: data[: data.index(b"\n") + 1], id="nothing but its first line"),
        pytest.param(lambda data: b"", id="emptied"),
        pytest.param(lambda data: data + b"x", id="longer"),
        pytest.param(lambda data: data.replace(b'"counter": 1', b'"counter": 9'), id="another number"),
        pytest.param(lambda data: b"[" * 5000, id="nonsense"),
    ],
)
def test_va_19_a_vault_that_was_changed_is_refused(
    vault: EncryptedFile, folder: Path, change: Callable[[bytes], bytes]
) -> None:
    vault.set("a", "TOKEN", VALUE)
    path = folder / "vault" / "secrets"
    path.write_bytes(change(path.read_bytes()))
    uses: tuple[Callable[[], object], ...] = (
        lambda: vault.get("a", "TOKEN"),
        lambda: vault.names("a"),
        lambda: vault.set("a", "OTHER", VALUE),
        lambda: vault.delete("a", "TOKEN"),
    )
    for use in uses:
        with pytest.raises(VaultUnavailable) as refused:
            use()
        assert refused.value.reason == "damaged"


def test_va_19_an_older_copy_is_refused(vault: EncryptedFile, folder: Path) -> None:
    path = folder / "vault" / "secrets"
    vault.set("a", "TOKEN", "the-old-value")
    shutil.copy2(path, folder / "copy")
    vault.set("a", "TOKEN", VALUE)
    shutil.copy2(folder / "copy", path)
    uses: tuple[Callable[[], object], ...] = (
        lambda: vault.get("a", "TOKEN"),
        lambda: vault.set("a", "TOKEN", VALUE),
    )
    for use in uses:
        with pytest.raises(VaultUnavailable, match="older copy") as refused:
            use()
        assert refused.value.reason == "older"


def test_va_19_a_vault_that_was_taken_away_is_not_an_empty_one(vault: EncryptedFile, folder: Path) -> None:
    vault.set("a", "TOKEN", VALUE)
    (folder / "vault" / "secrets").unlink()
    with pytest.raises(VaultUnavailable) as refused:
        vault.names("a")
    assert refused.value.reason == "missing"


def test_va_19_a_vault_of_another_key_is_refused(vault: EncryptedFile, folder: Path) -> None:
    vault.set("a", "TOKEN", VALUE)
    other = EncryptedFile(folder / "other" / "secrets", KeyFile(folder / "other" / "key"))
    other.set("a", "TOKEN", "their-value")
    shutil.copy2(folder / "other" / "secrets", folder / "vault" / "secrets")
    with pytest.raises(VaultUnavailable) as refused:
        vault.get("a", "TOKEN")
    assert refused.value.reason == "damaged"


def test_without_its_key_a_vault_is_not_begun_anew(vault: EncryptedFile, folder: Path) -> None:
    vault.set("a", "TOKEN", VALUE)
    (folder / "key" / "vault.key").unlink()
    with pytest.raises(VaultUnavailable) as refused:
        vault.set("a", "TOKEN", VALUE)
    assert refused.value.reason == "key"


def test_a_death_between_the_vault_and_its_counter_costs_nothing(vault: EncryptedFile, folder: Path) -> None:
    vault.set("a", "TOKEN", VALUE)
    key = folder / "key" / "vault.key"
    before = key.read_bytes()
    vault.set("a", "OTHER", VALUE)
    key.write_bytes(before)  # as if it had not come to that
    assert opened(folder).names("a") == ("OTHER", "TOKEN")
    opened(folder).set("a", "THIRD", VALUE)
    assert opened(folder).names("a") == ("OTHER", "THIRD", "TOKEN")


def test_the_key_lies_apart_from_the_vault(folder: Path) -> None:
    environ = {"XDG_CONFIG_HOME": str(folder / "config")}
    path = folder / "vault" / "secrets"
    EncryptedFile(path, environ=environ).set("a", "TOKEN", VALUE)
    assert key_path(path, environ).is_relative_to(folder / "config" / "casemate" / "keys")
    assert key_path(path, environ).exists()
    assert EncryptedFile(path, environ=environ).get("a", "TOKEN") == VALUE


def test_without_a_home_the_error_says_what_to_do(folder: Path) -> None:
    with pytest.raises(VaultUnavailable, match="HOME"):
        EncryptedFile(folder / "secrets", environ={}).names("a")


@pytest.fixture
def keyring() -> Iterator[dict[tuple[str, str], str]]:
    """A keyring of this process's own, in place of the user's."""
    library = pytest.importorskip("keyring")
    from keyring.backend import KeyringBackend

    kept: dict[tuple[str, str], str] = {}

    class Kept(KeyringBackend):
        priority = 5.0

        def get_password(self, service: str, username: str) -> str | None:
            return kept.get((service, username))

        def set_password(self, service: str, username: str, password: str) -> None:
            kept[service, username] = password

        def delete_password(self, service: str, username: str) -> None:
            del kept[service, username]

    before = library.get_keyring()
    library.set_keyring(Kept())  # type: ignore[no-untyped-call]
    yield kept
    library.set_keyring(before)


def test_where_there_is_a_keyring_it_has_the_key(folder: Path, keyring: dict[tuple[str, str], str]) -> None:
    environ = {"HOME": str(folder)}
    path = folder / "vault" / "secrets"
    EncryptedFile(path, environ=environ).set("a", "TOKEN", VALUE)
    assert not key_path(path, environ).exists()
    assert EncryptedFile(path, environ=environ).get("a", "TOKEN") == VALUE
    older = dict(keyring), path.read_bytes()
    EncryptedFile(path, environ=environ).set("a", "OTHER", VALUE)
    path.write_bytes(older[1])
    with pytest.raises(VaultUnavailable, match="older copy"):
        EncryptedFile(path, environ=environ).get("a", "TOKEN")


def test_a_keyring_that_is_gone_is_not_replaced_by_a_new_key(folder: Path, keyring: dict[tuple[str, str], str]) -> None:
    path = folder / "vault" / "secrets"
    EncryptedFile(path, Keyring(path)).set("a", "TOKEN", VALUE)
    keyring.clear()
    with pytest.raises(VaultUnavailable) as refused:
        EncryptedFile(path, environ={"HOME": str(folder)}).set("a", "TOKEN", VALUE)
    assert refused.value.reason == "key"


def test_no_error_and_no_repr_has_the_key_or_a_value(vault: EncryptedFile, folder: Path) -> None:
    vault.set("a", "TOKEN", VALUE)
    key = KeyFile(folder / "key" / "vault.key").load()
    assert key is not None
    assert repr(key) == "VaultKey(counter=1)"
    (folder / "key" / "vault.key").write_text("casemate-key-1 hunter2hunter2 1")
    with pytest.raises(VaultUnavailable) as refused:
        vault.get("a", "TOKEN")
    assert "hunter2" not in str(refused.value)


def test_without_the_library_the_error_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from casemate import VaultUnavailable; from casemate.vault.encrypted_file import EncryptedFile\n"
        "try: EncryptedFile('/nowhere/secrets')\nexcept VaultUnavailable as error: print(error.reason, error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("library")
    assert ".[vault]" in done.stdout
