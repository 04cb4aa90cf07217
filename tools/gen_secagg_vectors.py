"""Known answers of secure summation, computed by `tools/secagg_reading.py` from docs/protocol.md.

The values of keys, generator, packing, sharing and graph are here; whole rounds and what parties do
with single messages are in ``secagg_transcripts.py``, ``secagg_client_cases.py`` and
``secagg_server_cases.py``. `tools/gen_vectors.py` writes them to ``tests/vectors/secagg*.json``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import secagg_reading as page
from secagg_client_cases import (
    invite_cases,
    later_cases,
    order_cases,
    roster_cases,
)
from secagg_cut_cases import cut_vectors
from secagg_reading import (
    ACTIVE,
    SEMI_HONEST,
    Draws,
    u8,
)
from secagg_server_cases import (
    advertise_cases,
    phase_cases,
)
from secagg_transcripts import (
    PRIME,
    SETTINGS,
    Json,
    Transcript,
    numbers,
    shake,
)


def label_vectors() -> list[Json]:
    """Return every derivation of the table of keys, the contexts and the digests, with inputs.

    Returns:
        One object each: ``name``, inputs in hex, ``output``.
    """
    found: list[Json] = []

    def add(name: str, output: bytes | Sequence[int], **inputs: Any) -> None:
        shown = {k: v.hex() if isinstance(v, bytes) else v for k, v in inputs.items()}
        found.append(
            {
                "name": name,
                **shown,
                "output": output.hex() if isinstance(output, bytes) else list(output),
            }
        )

    for round_, (i, j) in enumerate(((0, 1), (3, 700), (65_536, 2**20 - 1))):
        ctx, ctx2 = shake(f"ctx {round_}"), shake(f"ctx2 {round_}")
        seed, b = (page.join(numbers(f"{what} {round_}", 5, PRIME)) for what in ("seed", "b"))
        one, other = shake(f"one {round_}"), shake(f"other {round_}")
        keys = {i: page.public_key(one), j: page.public_key(other)}
        add("mask secret key", page.mask_secret(seed, ctx), seed=seed, ctx=ctx)
        add("commitment to b", page.commitment(b, ctx), b=b, ctx=ctx)
        add("self mask", page.self_mask_key(b, ctx2, j), b=b, ctx2=ctx2, index=j)
        pair = page.pair_mask_key(one, i, j, keys, ctx2)
        assert pair == page.pair_mask_key(other, j, i, keys, ctx2)
        ends: Json = {
            "i": i,
            "j": j,
            "secret_i": one,
            "secret_j": other,
            "public_i": keys[i],
            "public_j": keys[j],
        }
        add("pair mask", pair, ctx2=ctx2, **ends)
        for direction, sender in enumerate((i, j)):
            key = page.share_key(one, i, j, keys, ctx2, sender)
            assert key == page.share_key(other, j, i, keys, ctx2, sender)
            share = page.join(numbers(f"share {round_} {direction}", 10, PRIME))
            sealed = page.seal(key, share)
            add(
                "share encryption",
                key,
                ctx2=ctx2,
                direction=direction,
                share=share,
                sealed=sealed,
                **ends,
            )
        for n in (12, 33):
            add("ring order", page.ring_order(ctx2, n), ctx2=ctx2, n=n)
        terms, session = shake(f"terms {round_}", 123), shake(f"session {round_}")
        add("context", page.context_of(session, terms), session=session, terms=terms)
        for size, profile in ((112, SEMI_HONEST), (176, ACTIVE)):
            adverts = [shake(f"advert {round_} {a}", size) for a in range(3)]
            digest = page.adverts_digest(adverts)
            add("adverts", digest, adverts=[advert.hex() for advert in adverts])
            roster = shake(f"roster {round_}", 1) if profile == ACTIVE else None
            made = page.roster_context(ctx, 3, roster, digest)
            add(
                "roster context",
                made,
                ctx=ctx,
                n=3,
                adverts=digest,
                roster=None if roster is None else roster.hex(),
            )
        survivors, salt = shake(f"survivors {round_}", 2), shake(f"salt {round_}")
        total = [0, 1, -1, 2**63 - 1, -(2**63)]
        made = page.result_digest(ctx2, survivors, salt, total)
        add("result", made, ctx2=ctx2, survivors=survivors, salt=salt, total=total)
        secret, registrar = shake(f"client {round_}"), page.identity_of(shake(f"reg {round_}"))
        purpose = ("hospital study 2026", 'K\u00f6ln "West" \\ \U0001f3e5', "x" * 200)[round_]
        add(
            "proof of possession",
            page.possession(secret, registrar, purpose),
            secret=secret,
            registrar=registrar,
            purpose=purpose,
            line=page.proof_line(secret, registrar, purpose),
        )
        ended = sorted(shake(f"ended {round_} {number}") for number in range(round_))
        signed = page.Signed(
            shake(f"plan {round_}"),
            purpose,
            (1, 300, 2**32 - 1)[round_],
            ("1970-01-01", "2026-12-31", "9999-12-31")[round_],
            ended,
        )
        add(
            "signed plan",
            page.plan_signature(secret, signed),
            secret=secret,
            fingerprint=signed.fingerprint,
            purpose=signed.purpose,
            number=signed.number,
            last_day=signed.last_day,
            replaced=[one.hex() for one in signed.replaced],
            line=page.plan_line(secret, signed),
        )
        revoked = [*ended, b"\xff" * 32]
        add(
            "revocation",
            page.revocation(secret, revoked),
            secret=secret,
            revoked=[one.hex() for one in revoked],
            line=page.revocation_line(secret, revoked),
        )
    return found


def point_vectors() -> list[Json]:
    """Return public X25519 keys that are accepted and refused.

    Returns:
        One object each.
    """
    edge = 2**255 - 19
    low = sorted(page.LOW_ORDER)
    refused = [
        *low,
        *(value + edge for value in low if value + edge < 2**255),
        edge,
        edge + 5,
        2**255 - 1,
    ]
    refused += [value + 2**255 for value in low] + [2**256 - 1, 2**255 + 9]
    values = [(value, False) for value in sorted(set(refused))] + [
        (value, True) for value in (2, 9, edge - 2)
    ]
    return [
        {"key": value.to_bytes(32, "little").hex(), "success": success} for value, success in values
    ]


def prg_vectors() -> list[Json]:
    """Return what is on both sides of each edge of a chunk, and digests of whole streams.

    Returns:
        One object for each key.
    """
    found = []
    for key in (bytes(32), bytes(range(32)), shake("prg key")):
        length = 3 * page.CHUNK + 5
        stream = page.prg(key, length)
        for chunk in range(3):
            for block in (0, 1, 8191):
                at = page.CHUNK * chunk + 16 * block
                assert stream[at : at + 16] == page.prg_block(key, chunk, block)
        edges = [0, page.CHUNK, 2 * page.CHUNK, 3 * page.CHUNK]
        found.append(
            {
                "key": key.hex(),
                "length": length,
                "sha256": hashlib.sha256(stream).hexdigest(),
                "chunks": [
                    {
                        "first": stream[e : e + 32].hex(),
                        "last": stream[e + page.CHUNK - 32 : e + page.CHUNK].hex(),
                    }
                    for e in edges[:-1]
                ],
                "tail": stream[edges[-1] :].hex(),
                "masks": [
                    {
                        "bits": b,
                        "count": 11,
                        "entries": [str(entry) for entry in page.mask(key, 11, b)],
                    }
                    for b in (1, 16, 17, 32, 33, 64)
                ],
                "long_masks": [
                    {
                        "bits": b,
                        "count": count,
                        "sha256": (
                            hashlib.sha256(
                                b"".join(
                                    entry.to_bytes(size, "little")
                                    for entry in page.mask(key, count, b)
                                )
                            ).hexdigest()
                        ),
                    }
                    for b, size in ((16, 2), (32, 4), (64, 8))
                    for count in (
                        page.CHUNK // size - 1,
                        page.CHUNK // size,
                        page.CHUNK // size + 1,
                    )
                ],
            }
        )
    return found


def packing_vectors() -> list[Json]:
    """Return packed integers of every width, and bytes that are not packed integers.

    Returns:
        One object each.
    """
    found: list[Json] = []
    for b in range(1, 65):
        for count in (1, 11 if b % 3 else 8):
            values = numbers(f"packing {b} {count}", count, 2**b)
            values[-1] = 2**b - 1
            packed = page.pack(values, b)
            assert page.unpack(packed, count, b) == values and len(packed) == page.packed_length(
                count, b
            )
            shown = [str(value) for value in values]
            found.append({"success": True, "bits": b, "values": shown, "packed": packed.hex()})
    values = numbers("packing long", 1003, 2**23)
    digest = hashlib.sha256(page.pack(values, 23)).hexdigest()
    found.append(
        {"success": True, "bits": 23, "values": [str(value) for value in values], "sha256": digest}
    )
    for b, count in ((1, 3), (2, 3), (3, 5), (4, 1), (6, 7), (11, 11), (13, 2), (63, 1)):
        good = page.pack(numbers(f"refused {b}", count, 2**b), b)
        bad = [good[:-1], good + b"\0"]
        offset = 0
        for p, _ in page.planes(b):
            offset += -(-count * p // 8)
            if p < 8:  # every bit of the last byte that may be padding
                bad += [
                    good[: offset - 1] + u8(good[offset - 1] ^ (1 << bit)) + good[offset:]
                    for bit in (7, 6, 4)
                ]
        for data in bad:
            try:
                page.unpack(data, count, b)
            except page.AbortError:
                found.append({"success": False, "bits": b, "count": count, "packed": data.hex()})
    return found


def shamir_vectors() -> list[Json]:
    """Return shares of given coefficients, their combination, and decodings with errors.

    Returns:
        One object each, told apart by ``operation``.
    """
    found: list[Json] = []
    for t, points in (
        (2, [1, 2, 65_535]),
        (3, [1, 5, 6, 9]),
        (5, list(range(1, 10))),
        (6, [1, 2, 3, 4, 5, 6]),
    ):
        secret = numbers(f"secret {t}", 10, PRIME)
        secret[0], secret[9] = 0, PRIME - 1
        draws = shake(f"coefficients {t}", 40 * (t - 1))
        skipped = draws[:4] + b"\xff\xff\xff\x7f" + draws[4:48] + b"\xff\xff\xff\xff" + draws[48:]
        source = Draws(skipped if t == 3 else draws)
        coefficients = [source.elements(10) for _ in range(t - 1)]
        shares = {x: page.split(secret, coefficients, x) for x in points}
        found.append(
            {
                "operation": "split",
                "success": True,
                "secret": secret,
                "threshold": t,
                "draws": source.data[: source.used].hex(),
                "points": points,
                "shares": [shares[x] for x in points],
            }
        )
        for chosen in (points[:t], points[-t:]):
            base = {x: shares[x] for x in chosen}
            assert page.value_at(base, 0) == secret
            row: Json = {
                "operation": "combine",
                "points": chosen,
                "shares": [shares[x] for x in chosen],
            }
            found.append({**row, "success": True, "secret": secret})
    t, points = 3, list(range(1, 9))
    secret = numbers("decoded", 5, PRIME)
    coefficients = [numbers(f"decoded {power}", 5, PRIME) for power in range(t - 1)]
    for count, wrong in (
        (3, []),
        (5, [2]),
        (6, [1]),
        (7, [1, 7]),
        (8, [3, 4]),
        (4, [1]),
        (5, [1, 2]),
        (7, [1, 2, 3]),
    ):
        shares = {x: page.split(secret, coefficients, x) for x in points[:count]}
        for position, x in enumerate(wrong):
            entry = position % 5
            shares[x] = [
                *shares[x][:entry],
                (shares[x][entry] + 1 + x) % PRIME,
                *shares[x][entry + 1 :],
            ]
        result = page.decode(shares, t)
        assert (result is not None) == (2 * len(wrong) <= count - t)
        row = {
            "operation": "decode",
            "threshold": t,
            "points": list(shares),
            "shares": list(shares.values()),
        }
        if result is None:
            found.append({**row, "success": False})
        else:
            assert result == (secret, wrong)
            found.append({**row, "success": True, "secret": secret, "wrong": wrong})
    return found


def graph_vectors() -> list[Json]:
    """Return which rings are safe, on both sides of both inequalities.

    Returns:
        One object each.
    """
    found = []

    def add(n: int, k: int, t: int, corrupt: int, dropout: int, survivors: int) -> bool:
        safe = page.ring_is_safe(n, k, t, corrupt, dropout, survivors)
        keys = ("n", "k", "t", "corrupt", "max_dropout", "min_survivors", "success")
        found.append(dict(zip(keys, (n, k, t, corrupt, dropout, survivors, safe), strict=True)))
        return safe

    for n, corrupt, dropout in (
        (100, 10, 50_000),
        (1000, 100, 100_000),
        (1000, 1, 0),
        (3001, 600, 300_000),
    ):
        survivors = n - dropout * n // page.PPM
        for part in (Fraction(1, 2), Fraction(2, 3), Fraction(1)):
            degrees = range(4, min(n - 2, 400), 2)
            terms = (corrupt, dropout, survivors)
            k = next((k for k in degrees if page.ring_is_safe(n, k, int(k * part), *terms)), None)
            if k is not None:
                for degree in (k - 2, k - 1, k, k + 1):
                    add(n, degree, int(degree * part), *terms)
                low = int(k * part)
                while low >= 2 and add(n, k, low, *terms):
                    low -= 1
                add(n, k, int(k * part), corrupt + n // 10, dropout, survivors)
                add(n, k, int(k * part), corrupt, dropout, survivors - n // 5)
    for row in (
        (12, 6, 3, 1, 0, 8),
        (13, 6, 3, 1, 0, 8),
        (13, 6, 3, 1, 0, 9),
        (12, 6, 1, 1, 0, 8),
        (12, 6, 7, 1, 0, 8),
    ):
        add(*row)
    for row in (
        (12, 10, 3, 1, 0, 8),
        (11, 10, 3, 1, 0, 8),
        (12, 5, 3, 1, 0, 8),
        (12, 6, 2, 2, 0, 9),
        (12, 6, 3, 2, 0, 9),
    ):
        add(*row)
    # Safe if a client's neighbours were drawn from n clients, not from the n - 1 others.
    add(84, 20, 17, 17, 0, 84)
    add(90, 26, 20, 20, 0, 90)
    # floor(max_dropout n) at its edge
    for dropout in (416_666, 416_667, 333_333, 333_334):
        add(12, 6, 3, 1, dropout, 12)
    assert {entry["success"] for entry in found} == {True, False}
    return found


def modulus_vectors() -> list[Json]:
    """Return bits of sums, lanes, and bounds of noise.

    Returns:
        One object each, told apart by ``operation``.
    """
    found: list[Json] = []
    for n_max, largest, tau, signed in (
        (3, 1, 0, True),
        (1000, 1, 0, True),
        (64, 1, 0, True),
        (63, 1, 0, True),
        (10_000, 5, 123, True),
        (3, 1, 0, False),
        (255, 1, 0, False),
        (256, 1, 0, False),
        (253, 1, 1, False),
        (254, 1, 1, False),
        (2**20, 2**42, 7, False),
        (2**20, 2**42, 7, True),
    ):
        exact = page.modulus_bits(n_max, largest, tau, whole_bytes=False, signed=signed)
        whole = page.modulus_bits(n_max, largest, tau, whole_bytes=True, signed=signed)
        row = {
            "operation": "bits",
            "n_max": n_max,
            "largest": largest,
            "tau": tau,
            "signed": signed,
            "exact": exact,
            "rounded": whole,
        }
        found.append({**row, "success": exact <= 64})
    found.append(
        {
            **found[-1],
            "n_max": 2**20,
            "largest": 2**43,
            "tau": 0,
            "exact": 65,
            "rounded": 72,
            "success": False,
        }
    )
    assert page.modulus_bits(2**20, 2**43, 0, whole_bytes=False) == 65
    found += [
        {
            "operation": "lanes",
            "success": True,
            "bits": b,
            "lanes": page.checksum_count(b),
            "width": page.lane_width(b),
        }
        for b in (1, 2, 11, 16, 17, 21, 22, 31, 32, 33, 63, 64)
    ]
    for s in ("0.5", "1", "3", "40", "12345.678"):
        for length in (1, 1000, 320_000):
            row = {"operation": "tau", "success": True, "stddev": s, "length": length}
            for name, of in (("gaussian", page.gaussian_tau), ("skellam", page.skellam_tau)):
                row[name] = f"{of(Decimal(s), length):.15e}"
            found.append(row)
    return found


def sections() -> dict[str, list[Json]]:
    """Return all vectors of the page.

    Returns:
        Lists by name.
    """
    transcripts = [Transcript(setting) for setting in SETTINGS]
    ring, complete, active = transcripts
    clients = [*invite_cases(ring, complete, active), *roster_cases(ring, complete, active)]
    servers: list[Json] = []
    for transcript in transcripts:
        clients += later_cases(transcript) + order_cases(transcript)
        servers += advertise_cases(transcript) + phase_cases(transcript)
    for cases in (clients, servers):
        assert len({case["name"] for case in cases}) == len(cases)
    codes = {op.get("code") for case in clients for op in case["operations"]}
    assert codes >= set(range(1, 15)) | {18}, codes
    codes = {op.get("code") for case in servers for op in case["operations"]}
    assert codes >= {5, 12, 13, 14, 15, 16, 17}, codes
    return {
        "derivations": label_vectors(),
        "points": point_vectors(),
        "generator": prg_vectors(),
        "packing": packing_vectors(),
        "shamir": shamir_vectors(),
        "rings": graph_vectors(),
        "cuts": cut_vectors(),
        "numbers": modulus_vectors(),
        "transcripts": [transcript.to_json() for transcript in transcripts],
        "clients": clients,
        "servers": servers,
    }


if __name__ == "__main__":
    for section, vectors in sections().items():
        print(section, len(vectors), len(json.dumps(vectors, separators=(",", ":"))))
