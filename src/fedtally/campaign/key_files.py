"""The key files of a campaign's servers, registrar and clients.

A private key file is three lines of ASCII, each ended by one line feed::

    fedtally-private-key/1 ROLE
    public PUBLIC
    secret SECRET

PUBLIC and SECRET are 64 lower-case hexadecimal digits. ROLE says who has the key and what it is
for:

- ``server``: Ed25519; it signs Invites, the first messages of a secure sum,
- ``leader`` and ``helper``: X25519; clients encrypt reports to these two servers,
- ``registrar``: Ed25519; it signs plans,
- ``client``: Ed25519; its public key is the client's identity,
- ``aggregator``: X25519; clients of DAP encrypt reports to it,
- ``collector``: X25519; the servers of DAP encrypt their shares of sums to it.

The public key file has the same name with ``.pub`` at its end, and one line::

    fedtally-public-key/1 ROLE PUBLIC

`create_key_files` makes the two files, and overwrites none. `load_server_key`, `load_leader_key`,
`load_helper_key`, `load_registrar_key`, `load_client_key`, `load_aggregator_key` and
`load_collector_key` read a private key. They refuse a file that users other than its owner have any
right on. `read_public_key` reads a public key for a plan. `retire_key` destroys a private key.

The source of randomness is an argument. A secret is only in its file and in the key object, and
never in an error.
"""

from __future__ import annotations

import binascii
import os
import re
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from fedtally.base.sync import sync
from fedtally.crypto.hpke import PrivateKey
from fedtally.crypto.hpke_aad import RecipientKey
from fedtally.crypto.keys import KEY_BYTES, Secret, SigningKey
from fedtally.errors import InvalidInputError, UnreadableFileError

PRIVATE_SCHEMA, PUBLIC_SCHEMA = "fedtally-private-key/1", "fedtally-public-key/1"
PUBLIC_SUFFIX = ".pub"
# The most bytes that are read of a file: more than any key file has. Without this bound, reading a
# device file might never end.
_MOST_BYTES = 4096
_HEX = b"[0-9a-f]{%d}" % (2 * KEY_BYTES)
_PRIVATE = re.compile(
    rb"%s (\w+)\npublic (%s)\nsecret (%s)\n" % (PRIVATE_SCHEMA.encode(), _HEX, _HEX)
)
_PUBLIC = re.compile(rb"%s (\w+) (%s)\n?" % (PUBLIC_SCHEMA.encode(), _HEX))


class Role(StrEnum):
    """What the owner of a key is.

    A `SERVER` computes sums by secagg. `LEADER` and `HELPER` are two servers that compute sums
    together. The `REGISTRAR` decides which clients may take part, and signs plans. A `CLIENT` takes
    part in sums. An `AGGREGATOR` is one of the two servers of DAP. A `COLLECTOR` gets the sums of
    DAP.
    """

    SERVER = "server"
    LEADER = "leader"
    HELPER = "helper"
    REGISTRAR = "registrar"
    CLIENT = "client"
    AGGREGATOR = "aggregator"
    COLLECTOR = "collector"


# The class of each role's key. The comment says what the owner signs or decrypts with the key. A
# new role needs an entry here and a name in `Role`.
_KINDS: dict[Role, type[SigningKey] | type[PrivateKey] | type[RecipientKey]] = {
    Role.SERVER: SigningKey,  # Invites
    Role.LEADER: PrivateKey,  # shares of reports
    Role.HELPER: PrivateKey,  # seeds of reports
    Role.REGISTRAR: SigningKey,  # plans and revocations
    Role.CLIENT: SigningKey,  # what a client sends, and its proof
    Role.AGGREGATOR: RecipientKey,  # shares of reports of DAP
    Role.COLLECTOR: RecipientKey,  # shares of batches of DAP
}
_Key = TypeVar("_Key", SigningKey, PrivateKey, RecipientKey)


@dataclass(frozen=True)
class PublicKey:
    """A public key and the role of its owner.

    Args:
        role: the role of the owner.
        value: the 32 bytes of the key; Ed25519 for roles that sign, X25519 for all other roles.
    """

    role: Role
    value: bytes

    def to_line(self) -> str:
        """Return the key as the line of a public key file.

        >>> PublicKey(Role.HELPER, bytes(32)).to_line()[:40]
        'fedtally-public-key/1 helper 00000000000'
        """
        return f"{PUBLIC_SCHEMA} {self.role} {self.value.hex()}\n"


def create_key_files(
    path: str | os.PathLike[str], role: Role | str, random: Callable[[int], bytes]
) -> PublicKey:
    """Write a new private key file and its public key file, and return the public key.

    The private key file has mode 0600 and is not encrypted. If there is an error, no file is made.
    Both files are on the disk before this function returns.

    Args:
        path: the path of the private key file. The path of the public key file has `.pub` added.
        role: the role of the owner.
        random: a cryptographic source; `random(n)` returns n uniform bytes.

    Raises:
        InvalidInputError: one of the two files exists or cannot be written, or there is no such
            role.
    """
    role = _parse(role)
    private, public = Path(path), public_path(path)
    for each in (private, public):
        if os.path.lexists(each):
            raise _exists(each)
    secret, text = bytearray(random(KEY_BYTES)), bytearray()
    # `secret` and `text` are bytearrays, because bytes and str cannot be erased.
    try:
        key = PublicKey(role, _key_of(role, Secret(secret)).public)
        text += f"{PRIVATE_SCHEMA} {role}\npublic {key.value.hex()}\nsecret ".encode()
        text += binascii.hexlify(secret) + b"\n"
        _create(private, text, 0o600)
    finally:  # otherwise the traceback of an error would show the secret
        _erase(secret, text)
    try:
        _create(public, key.to_line().encode(), 0o644)
    except InvalidInputError:
        os.unlink(private)  # without its public key file, the private key file has no use
        raise
    return key


def retire_key(
    path: str | os.PathLike[str], warn: Callable[[str], None] | None = None
) -> PublicKey:
    """Destroy a private key file, and return its public key.

    The public key file stays. The private key file is overwritten with zeros, which are written to
    the disk, and then removed. Copies that a disk, a file system or a backup keeps elsewhere are
    not destroyed.

    Args:
        path: the path of the private key file. It is destroyed even if other users have a right on
            it.
        warn: called with a warning, in words, if users other than the owner had a right on the
            file.

    Raises:
        UnreadableFileError: there is no such file, or it is damaged, or no private key file of this
            version.
        InvalidInputError: the file cannot be written or removed.
    """
    opened: list[int] = []
    (role, loaded), private = _load(path, None, opened.append), Path(path)
    key = PublicKey(role, loaded.public)
    try:
        with open(private, "r+b", buffering=0) as file:
            file.write(bytes(os.fstat(file.fileno()).st_size))
            os.fsync(file.fileno())
        os.unlink(private)
        with suppress(OSError):  # some systems cannot sync a folder
            sync(private.parent)
    except OSError as error:
        raise InvalidInputError(
            f"cannot destroy {private} ({error.strerror}): make the file and its folder writable,"
            " and try again; if it says that the file is no key now, remove it"
        ) from None
    if opened and warn is not None:
        warn(
            f"{private} was open to others than its owner (mode {opened[0]:04o}): who copied it"
            " still has the key"
        )
    return key


def public_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of the public key file that belongs to a private key file.

    >>> public_path("server.key").name
    'server.key.pub'
    """
    return Path(os.fspath(path) + PUBLIC_SUFFIX)


def load_server_key(path: str | os.PathLike[str]) -> SigningKey:
    """Return the private key with which a server signs Invites, for `FrequencyServer.open`.

    Raises:
        UnreadableFileError: there is no such file, or it is damaged, or no private key file of this
            version.
        InvalidInputError: users other than the owner have a right on the file, or the key has
            another role.
    """
    return _key(path, Role.SERVER, SigningKey)


def load_registrar_key(path: str | os.PathLike[str]) -> SigningKey:
    """Return the private key with which a registrar signs plans, for `enrolment.sign_plan`.

    Raises:
        UnreadableFileError, InvalidInputError: as for `load_server_key`.
    """
    return _key(path, Role.REGISTRAR, SigningKey)


def load_client_key(path: str | os.PathLike[str]) -> SigningKey:
    """Return a client's private key, for `FrequencyClient` and `enrolment.make_proof`.

    Raises:
        UnreadableFileError, InvalidInputError: as for `load_server_key`.
    """
    return _key(path, Role.CLIENT, SigningKey)


def load_leader_key(path: str | os.PathLike[str]) -> PrivateKey:
    """Return the private key with which a leader decrypts reports, for `FrequencyServer.leader`.

    Raises:
        UnreadableFileError, InvalidInputError: as for `load_server_key`.
    """
    return _key(path, Role.LEADER, PrivateKey)


def load_helper_key(path: str | os.PathLike[str]) -> PrivateKey:
    """Return the private key with which a helper decrypts reports, for `FrequencyServer.helper`.

    Raises:
        UnreadableFileError, InvalidInputError: as for `load_server_key`.
    """
    return _key(path, Role.HELPER, PrivateKey)


def load_aggregator_key(path: str | os.PathLike[str]) -> RecipientKey:
    """Return the private key with which a DAP server decrypts the reports of clients.

    Raises:
        UnreadableFileError, InvalidInputError: as for `load_server_key`.
    """
    return _key(path, Role.AGGREGATOR, RecipientKey)


def load_collector_key(path: str | os.PathLike[str]) -> RecipientKey:
    """Return the private key with which a DAP collector decrypts both servers' shares of a sum.

    Raises:
        UnreadableFileError, InvalidInputError: as for `load_server_key`.
    """
    return _key(path, Role.COLLECTOR, RecipientKey)


def public_key_of(path: str | os.PathLike[str]) -> PublicKey:
    """Return the public key in a private key file, after checking that it fits the secret.

    Raises:
        UnreadableFileError: there is no such file, or it is damaged, or no private key file of this
            version.
        InvalidInputError: users other than the owner have a right on the file.
    """
    role, key = _load(path, None)
    return PublicKey(role, key.public)


def read_public_key(given: str | os.PathLike[str], role: Role | str) -> bytes:
    """Return a public key, 32 bytes, from 64 hexadecimal digits or a public key file.

    Prefer the file: it names the role of its key, so that the role is checked.

    Args:
        given: the digits, or the path of the file.
        role: the role that the key in the file must have.

    Raises:
        UnreadableFileError: `given` is neither 64 lower-case digits nor a file, or the file is
            damaged.
        InvalidInputError: the key has another role, the file has a private key, or there is no role
            `role`.

    >>> read_public_key("09" * 32, "helper") == bytes([9]) * 32
    True
    """
    role = _parse(role)
    text = os.fspath(given)
    if re.fullmatch(f"[0-9a-f]{{{2 * KEY_BYTES}}}", text):
        return bytes.fromhex(text)
    key = load_public_key(given)
    if key.role is not role:
        raise InvalidInputError(
            f"{text} holds the public key of the {key.role}, and that of the {role} is needed"
        )
    return key.value


def load_public_key(path: str | os.PathLike[str]) -> PublicKey:
    """Return the key in a public key file, with its role.

    Raises:
        UnreadableFileError: there is no such file, or it is no public key file of this version.
        InvalidInputError: the file has a private key.
    """
    name, (text, _) = (
        os.fspath(path),
        _read(path, "the 64 hexadecimal digits of a public key, or its file"),
    )
    if text.startswith(PRIVATE_SCHEMA.encode()):
        _erase(text)
        raise InvalidInputError(
            f"{name} holds a private key, which nobody else may get: name its {PUBLIC_SUFFIX} file"
        )
    found = _PUBLIC.fullmatch(text)
    role = found and _known(found[1])
    if found is None or role is None:
        raise UnreadableFileError(
            f"{name} is no public key of this version: give the {PUBLIC_SUFFIX} file that fedtally"
            " keys new wrote"
        )
    return PublicKey(role, bytes(binascii.unhexlify(found[2])))


def _key(path: str | os.PathLike[str], role: Role, kind: type[_Key]) -> _Key:
    """Return the key in a private key file of this role; `kind` is the role's class in `_KINDS`."""
    key = _load(path, role)[1]
    assert isinstance(key, kind)
    return key


def _load(
    path: str | os.PathLike[str],
    role: Role | None,
    opened: Callable[[int], None] | None = None,
) -> tuple[Role, SigningKey | PrivateKey | RecipientKey]:
    """Return the role and the key in a private key file.

    Args:
        path: the path of the file.
        role: the role that the key must have; None: any role.
        opened: called with the file's mode if users other than the owner have a right on the file;
            None: such a file is an error.

    Raises:
        UnreadableFileError: there is no such file, or it is damaged, or no private key file of this
            version.
        InvalidInputError: the key has another role; or users other than the owner have a right on
            the file, and `opened` is None.
    """
    name, (text, mode) = os.fspath(path), _read(path, "a private key file")
    raw = bytearray()
    if text.startswith(PUBLIC_SCHEMA.encode()):
        raise UnreadableFileError(
            f"{name} holds a public key, and a private one is needed: name the file without"
            f" {PUBLIC_SUFFIX}"
        )
    try:
        # This check comes before the check of the mode, since a file without a key needs no
        # protection.
        if not text.startswith(PRIVATE_SCHEMA.encode()):
            raise _no_private_key(name)
        # Other users may know a key that they can read, and may replace a key that they can write.
        if os.name == "posix" and mode & 0o077 and opened is not None:
            opened(mode)
        elif os.name == "posix" and mode & 0o077:
            raise InvalidInputError(
                f"{name} is open to others than its owner (mode {mode:04o}): chmod 600 {name}, and"
                " make a new key if anybody may have read it"
            )
        found = _PRIVATE.fullmatch(text)
        held = found and _known(found[1])
        if found is None or held is None:
            raise _no_private_key(name)
        if role not in (None, held):
            raise InvalidInputError(
                f"{name} holds the key of the {held}, and that of the {role} is needed"
            )
        raw += binascii.unhexlify(text[slice(*found.span(3))])
        key = _key_of(held, Secret(raw))
        # A damaged secret is refused here. Otherwise no client would accept the server's Invites,
        # or no report could be decrypted.
        if key.public != binascii.unhexlify(found[2]):
            raise UnreadableFileError(
                f"{name} is damaged: its secret is not that of its public key"
            )
        return held, key
    finally:
        _erase(text, raw)


def _key_of(role: Role, secret: Secret) -> SigningKey | PrivateKey | RecipientKey:
    """Make a role's key from a secret, erase the secret, and return the key."""
    key = _KINDS[role](secret)
    secret.wipe()
    return key


def _erase(*buffers: bytearray) -> None:
    for each in buffers:
        each[:] = bytes(len(each))


def _parse(role: Role | str) -> Role:
    found = _known(role.encode()) if isinstance(role, str) else None
    if found is None:
        *others, last = Role
        raise InvalidInputError(
            f"the role of a key must be {', '.join(others)} or {last}, got {role!r}"
        )
    return found


def _known(name: bytes) -> Role | None:
    return {role.encode(): role for role in Role}.get(bytes(name))


def _read(path: str | os.PathLike[str], wanted: str) -> tuple[bytearray, int]:
    """Return up to `_MOST_BYTES` bytes of a file, and the file's mode, its access rights.

    Raises:
        UnreadableFileError: the file cannot be read.
    """
    # The mode is read from the open file. A mode that is read by name could belong to another file,
    # which got the name in between. The file is unbuffered, since a buffer would keep the secret.
    text = bytearray(_MOST_BYTES)
    try:
        with open(path, "rb", buffering=0) as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            del text[file.readinto(text) :]
    except (OSError, ValueError) as error:  # ValueError if the path has a zero byte
        why = getattr(error, "strerror", None) or error
        raise UnreadableFileError(
            f"cannot read {os.fspath(path)!r} ({why}): give {wanted}"
        ) from None
    return text, mode


def _create(path: Path, text: bytes | bytearray, mode: int) -> None:
    """Write a new file, which gets its name only when it is complete; never overwrite a file.

    Raises:
        InvalidInputError: the file exists, or cannot be written.
    """
    temporary = None
    try:
        # `mkstemp` makes the file with mode 0600, so that other users can never read it.
        handle, temporary = tempfile.mkstemp(prefix=".fedtally-", dir=path.parent)
        with os.fdopen(handle, "wb", buffering=0) as file:
            file.write(text)
            os.fsync(handle)
        os.chmod(temporary, mode)
        os.link(temporary, path)  # in contrast to `os.rename`, this fails if the name is taken
        with suppress(OSError):  # some systems cannot sync a folder
            sync(path.parent)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        raise InvalidInputError(
            f"cannot write {path} ({error.strerror}): choose a folder that exists, is writable and"
            " can have hard links"
        ) from None
    finally:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)


def _no_private_key(name: str) -> UnreadableFileError:
    return UnreadableFileError(
        f"{name} is no private key of this version, or damaged: give the file that fedtally keys"
        " new wrote"
    )


def _exists(path: Path) -> InvalidInputError:
    return InvalidInputError(f"{path} exists, and keys are never overwritten: name another file")
