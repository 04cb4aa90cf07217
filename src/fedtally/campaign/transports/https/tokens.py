"""The tokens of one campaign, by which the server knows which client sends a request.

A token is a secret of 256 random bits that a client sends with each request. A request without a
valid token is refused. The campaign's folder has only the SHA-256 digests of the tokens, in a file
of mode 0600::

    fedtally-tokens/1
    4f0c1d2e9a8b7c60 = 0f9d...
    end

Each line between the first and the last has the name of a client and the digest of its token. The
last line shows that the file is complete. Names that fedtally makes are random, so nobody can see
from them that clients of two campaigns are the same person. A name means the same client for ever:
a client whose token is replaced keeps its history.

A server reads the file at its start, and again at the signal SIGHUP. Until it has read the file
again, it refuses tokens that were added, and accepts tokens that were revoked.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fedtally.base import archive
from fedtally.base.text import shortened, word
from fedtally.errors import InvalidInputError, UnreadableFileError

TOKENS = "tokens"  # the file in the folder of a campaign
SUFFIX = ".token"  # the suffix of a file with one token, for its client
SCHEMA, _END = "fedtally-tokens/1", "end"
SECRET_BYTES, NAME_BYTES = 32, 8
MOST_MINTED = 1_000_000  # the most tokens that one call makes
_PREFIX = "fedtally_"  # by it, scanners that search published text for secrets find a token
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")

Digests = dict[str, str]  # a client's name -> the SHA-256 of its token, 64 hexadecimal digits


def digest_of(token: str) -> str:
    """Return the SHA-256 digest of a token, 64 hexadecimal digits.

    >>> digest_of("a token")[:16]
    'e3316e2bafebb610'
    """
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()


@dataclass
class Tokens:
    """The valid tokens of a campaign, as they were last read from its folder.

    Args:
        folder: the folder of the campaign.
        warn: called with a text if `reload` cannot read the tokens.

    Raises:
        UnreadableFileError: the file of tokens cannot be read, or is damaged.
        InvalidInputError: the file is missing, or users other than its owner may read or write it.
    """

    folder: Path
    warn: Callable[[str], None]
    _names: dict[str, str] = field(init=False, repr=False)  # the digest of a token -> the name

    def __post_init__(self) -> None:
        self._names = _by_digest(self.folder)

    def name_of(self, token: str) -> str | None:
        """Return the name of the client that has this token; None: the token is not valid.

        How long the call takes depends on the digest of the token. An attacker cannot choose the
        digest, so the times do not help to guess the tokens of clients.
        """
        return self._names.get(digest_of(token))

    def reload(self) -> None:
        """Read the file of tokens again; if that fails, warn and keep the old tokens."""
        try:
            self._names = _by_digest(self.folder)
        except InvalidInputError as error:
            self.warn(f"the tokens were not read again, and those of before count: {error}")


def _by_digest(folder: Path) -> dict[str, str]:
    return {digest: name for name, digest in read(folder).items()}


def read(folder: Path) -> Digests:
    """Return the digests of a campaign's tokens, by the names of clients, from its folder.

    Args:
        folder: the folder of the campaign.

    Raises:
        UnreadableFileError: the file of tokens cannot be read, or is damaged.
        InvalidInputError: the file is missing, or users other than its owner may read or write it.
    """
    place = folder / TOKENS
    try:
        with open(place, encoding="ascii") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read()
    except FileNotFoundError:
        raise InvalidInputError(
            f"{folder} has no file {TOKENS!r}, so no client could speak: put the file back if there"
            f" was one; else fedtally campaign tokens mint {word(folder)} --count N"
        ) from None
    except PermissionError as error:
        raise UnreadableFileError(
            f"cannot read {place} ({error.strerror}): run this as the user that owns it, the one of"
            f" the service, or give it to that user (chown)"
        ) from None
    except OSError as error:
        raise UnreadableFileError(
            f"cannot read {place} ({error.strerror}): put the file back"
        ) from None
    except UnicodeDecodeError:
        raise UnreadableFileError(
            f"cannot read {place} (it is no ASCII text): put it back"
        ) from None
    if mode & 0o077:
        raise InvalidInputError(
            f"{place} is open to others than its owner (mode {mode:04o}): chmod 600 {word(place)}"
        )
    first, *lines = text.split("\n")
    if first != SCHEMA or lines[-2:] != [_END, ""]:
        raise UnreadableFileError(
            f"{place} is cut off or no file of tokens: its first line is {SCHEMA!r} and its last"
            f" {_END!r}; put it back"
        )
    return parse(lines[:-2], str(place), 2)


def parse(lines: Iterable[str], source: str, first: int = 1) -> Digests:
    """Return the digests of tokens, by the names of clients, from lines `NAME = DIGEST`.

    Args:
        lines: the lines, without line feeds.
        source: the name of the file that has the lines, for messages of errors.
        first: the number of the first line in that file, for messages of errors.

    Raises:
        UnreadableFileError: a line has another form, or a name or a digest occurs twice.
    """
    found: Digests = {}
    seen: set[str] = set()
    for number, line in enumerate(lines, first):
        name, _, digest = (part.strip() for part in line.partition("="))
        if not (_NAME.fullmatch(name) and _DIGEST.fullmatch(digest)):
            raise UnreadableFileError(
                f"line {number} of {source} is not NAME = DIGEST, where DIGEST is the SHA-256 of a"
                " token in 64 lower-case hexadecimal digits"
            )
        if name in found or digest in seen:
            # The line and not the name: a server's log has this text, and names clients only if it
            # is a debug log.
            what = "the name of another line" if name in found else "the token of another name"
            raise UnreadableFileError(f"line {number} of {source} has {what} once more: remove one")
        found[name] = digest
        seen.add(digest)
    return found


# ---- changes ----


def mint(
    folder: Path, number: int, random: Callable[[int], bytes], output: Path | None = None
) -> dict[str, str]:
    """Add clients with new random names and tokens to a campaign.

    The tokens are only in the returned value and in the files of `output`: the campaign's folder
    has only their digests.

    Args:
        folder: the folder of the campaign.
        number: the number of clients, 1 to a million.
        random: returns uniform bytes from a cryptographic source. Its argument is their number.
        output: a folder that gets one file of mode 0600 for each token; None: no files.

    Returns:
        A dict from the name of each new client to its token.

    Raises:
        InvalidInputError: `number` is out of bounds, the campaign's tokens cannot be read, or a
            file cannot be written. No token was added.
    """
    if not 1 <= number <= MOST_MINTED:
        raise InvalidInputError(
            f"a campaign mints 1 to {MOST_MINTED:,} tokens at once, got {number:,}"
        )
    made: dict[str, str] = {}
    with _files(output) as put, changing(folder) as digests:
        while len(made) < number:
            name = random(NAME_BYTES).hex()
            if name not in digests:
                made[name] = new_token(random)
        put(made)
        digests |= {name: digest_of(token) for name, token in made.items()}
    return made


def add(
    folder: Path, names: Iterable[str], random: Callable[[int], bytes], output: Path | None = None
) -> dict[str, str]:
    """Add clients with given names and new tokens to a campaign.

    The tokens are only in the returned value and in the files of `output`: the campaign's folder
    has only their digests.

    Args:
        folder: the folder of the campaign.
        names: the names of the clients. A name that occurs twice gets one token.
        random: returns uniform bytes from a cryptographic source. Its argument is their number.
        output: a folder that gets one file of mode 0600 for each token; None: no files.

    Returns:
        A dict from the name of each client to its token.

    Raises:
        InvalidInputError: a name has a token already or is not allowed, the campaign's tokens
            cannot be read, or a file cannot be written. No token was added.
    """
    made = {check_name(name): new_token(random) for name in names}
    with _files(output) as put, changing(folder) as digests:
        _check_new(digests, made)
        put(made)
        digests |= {name: digest_of(token) for name, token in made.items()}
    return made


def take(folder: Path, digests: Digests) -> None:
    """Add clients whose tokens somebody else made; only the digests of these tokens are known.

    Args:
        folder: the folder of the campaign.
        digests: the clients' names and the digests of their tokens, from `parse`.

    Raises:
        InvalidInputError: a name has a token already, another client has the same token, or the
            campaign's tokens cannot be read. No token was added.
    """
    with changing(folder) as held:
        _check_new(held, digests)
        if twice := sorted(set(held.values()) & set(digests.values())):
            name = next(name for name, digest in digests.items() if digest == twice[0])
            raise InvalidInputError(f"the token of {name} is that of another name: make another")
        held |= digests


def revoke(folder: Path, names: Iterable[str]) -> None:
    """Remove the tokens of clients, so that their requests are refused.

    A server that runs refuses the tokens only after it has read the file again (see the module).

    Args:
        folder: the folder of the campaign.
        names: the names of the clients.

    Raises:
        InvalidInputError: a name has no token, or the campaign's tokens cannot be read. No token
            was removed.
    """
    gone = set(names)
    with changing(folder) as digests:
        if missing := sorted(gone - digests.keys()):
            raise InvalidInputError(
                f"no client is called {shortened(missing[0], 40)!r}: fedtally campaign tokens list"
                f" {word(folder)}"
            )
        for name in gone:
            del digests[name]


def take_back(folder: Path, made: dict[str, str]) -> None:
    """Remove tokens that `mint` or `add` has just made, since nobody has them.

    A name that has another token by now, or none, stays as it is: somebody else changed it.

    Args:
        folder: the folder of the campaign.
        made: the tokens, by the names of their clients.

    Raises:
        InvalidInputError: the campaign's tokens cannot be read. No token was removed.
        OSError: the file cannot be written. No token was removed.
    """
    with changing(folder) as digests:
        for name, token in made.items():
            if digests.get(name) == digest_of(token):
                del digests[name]


@contextmanager
def changing(folder: Path) -> Iterator[Digests]:
    """Let a `with` block change the tokens of a campaign.

    If the block ends without an error, the digests are written to the file. Otherwise the file
    stays as it was. During the block, other processes that call this function wait.

    Yields:
        A dict from the names of clients to the digests. The block changes this dict in place. It is
            empty if the campaign has no tokens yet.

    Raises:
        InvalidInputError: the file of tokens cannot be read, is damaged, or users other than its
            owner may read or write it.
    """
    place = folder / TOKENS
    with _locked(folder):
        digests = read(folder) if os.path.lexists(place) else {}
        yield digests
        lines = (f"{name} = {digest}\n" for name, digest in sorted(digests.items()))
        with archive.replacing(place, private=True) as temporary:
            Path(temporary).write_text(f"{SCHEMA}\n{''.join(lines)}{_END}\n", encoding="ascii")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    file = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def check_name(name: str) -> str:
    """Return a name unchanged if a client may have it.

    Raises:
        InvalidInputError: the name is empty, longer than 64 characters, begins with a dot, or has a
            character other than letters and digits of ASCII, `-`, `_` and `.`.
    """
    if not _NAME.fullmatch(name):
        raise InvalidInputError(
            f"{shortened(name, 40)!r} is no name of a client: at most 64 letters, digits, '-', '_'"
            " and '.', with no '.' first"
        )
    return name


def new_token(random: Callable[[int], bytes]) -> str:
    """Make a new token: "fedtally_" and 43 random characters, which encode 32 bytes.

    Args:
        random: returns uniform bytes from a cryptographic source. Its argument is their number.

    >>> new_token(lambda size: bytes(size))
    'fedtally_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'
    """
    return _PREFIX + base64.urlsafe_b64encode(random(SECRET_BYTES)).decode().rstrip("=")


def _check_new(digests: Digests, names: Iterable[str]) -> None:
    for name in names:
        if name in digests:
            raise InvalidInputError(
                f"{name} has a token already: revoke it first; the client stays the same one"
            )


@contextmanager
def _files(folder: Path | None) -> Iterator[Callable[[dict[str, str]], None]]:
    """Yield a function that writes one file for each token of a dict from names to tokens.

    A file has the name of the client and the suffix `SUFFIX`. If a file exists already or cannot be
    written, the yielded function raises `InvalidInputError`. If the `with` block fails, the files
    are removed again.

    Args:
        folder: the folder of the files, made if it is missing; None: no file is written.
    """
    with ExitStack() as undo:

        def put(made: dict[str, str]) -> None:
            if folder is None:
                return
            try:
                folder.mkdir(mode=0o700, exist_ok=True)
                for name, token in made.items():
                    _write_file(folder / f"{name}{SUFFIX}", token, undo)
            except OSError as error:
                raise InvalidInputError(
                    f"cannot write {error.filename or folder} ({error.strerror}): name a folder"
                    " without files of these names"
                ) from None

        yield put
        undo.pop_all()


def _write_file(place: Path, token: str, undo: ExitStack) -> None:
    file = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    undo.callback(place.unlink)
    with open(file, "w", encoding="ascii") as stream:
        stream.write(f"{token}\n")
