"""Taking the masks off: from the shares that survivors gave to the sum of their vectors.

Of a survivor the server opens b, the seed of its self mask. Of a client that shared and did not
survive it opens the seed of its mask key, from which follow the masks that its neighbours added for
it (Bonawitz et al. 2017). Every secret is verified before it is used: by the commitment, or by the
public key. Where the first shares do not give it, all of them are decoded with errors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedtally.crypto import keys, shamir
from fedtally.crypto.keys import Secret
from fedtally.crypto.prg import Lanes, Masking
from fedtally.errors import InvalidInputError
from fedtally.secagg import wire
from fedtally.secagg.graph import Neighbourhood
from fedtally.secagg.messages import AbortCode, Bits, RemoteProtocolError, Unmask
from fedtally.secagg.packing import centred
from fedtally.secagg.params import Parameters

_OWNERS = 1024  # clients whose shares are gathered at a time: bounds memory to a few MiB

I64 = npt.NDArray[np.int64]


class Unmasking:
    """The shares that have come, and what they open.

    Args:
        parameters: the parameters of the session.
        ctx: the context of the session, 32 bytes.
        ctx2: the context of its roster, 32 bytes.
        graph: the neighbours in the roster.
        adverts: the adverts as they were sent, by index.
        present: the clients that dealt shares: [n].
        alive: the clients whose vectors are in the total: [n], a part of `present`.

    Attributes:
        blamed: pairs (owner, holder) whose share was found wrong; (owner, None) where no shares
            give the owner's secret.
    """

    def __init__(
        self,
        parameters: Parameters,
        ctx: bytes,
        ctx2: bytes,
        graph: Neighbourhood,
        adverts: Sequence[bytes],
        present: Bits,
        alive: Bits,
    ) -> None:
        self._parameters, self._ctx, self._ctx2, self._graph = parameters, ctx, ctx2, graph
        self._adverts = [wire.decode_advert(advert, parameters.adversary) for advert in adverts]
        self._present, self._alive = present, alive
        holders = graph.neighbours + 1
        # by holder and slot; the last is the share of its own
        self._given = np.zeros((graph.n, holders), np.bool_)
        self._shares = np.zeros((graph.n, holders, shamir.SECRET_ELEMENTS), np.uint32)
        self._caught = np.zeros(graph.n, np.bool_)  # holders of a share that was wrong
        self.blamed: list[tuple[int, int | None]] = []

    def __getstate__(self) -> None:
        raise InvalidInputError(
            "the shares of an unmasking are secret: they cannot be copied or pickled"
        )

    def add(self, holder: int, unmask: Unmask) -> None:
        """Keep the shares that a survivor gave."""
        self._given[holder, :-1], self._given[holder, -1] = unmask.given, True
        self._shares[holder, :-1][unmask.given], self._shares[holder, -1] = (
            unmask.shares,
            unmask.own,
        )

    def short(self) -> list[int]:
        """Return the clients of whose secret too few shares have been given."""
        holders = self._given[:, -1].astype(np.int64)
        for slot in range(self._graph.neighbours):
            holders += self._given[self._graph.at_slot(slot), self._graph.mirror[slot]]
        return np.flatnonzero(self._present & (holders < self._graph.threshold)).tolist()

    def open(self, total: Lanes) -> I64:
        """Take the masks off the survivors' total, in place; return the sum, int64 [V].

        Raises:
            RemoteProtocolError: a secret cannot be opened, or a mask is left.
        """
        present, masking = np.flatnonzero(self._present), Masking(total)
        for start in range(0, len(present), _OWNERS):
            owners = present[start : start + _OWNERS]
            for owner, secret in zip(owners.tolist(), self._secrets(owners), strict=True):
                # A survivor's pair masks with other survivors cancel; those with the dead come off
                # with the dead one's key.
                if self._alive[owner]:
                    mask = keys.self_mask_key(secret, self._ctx2, owner)
                    masking.subtract(mask)
                    mask.wipe()
                else:
                    self._remove_pair_masks(masking, owner, secret)
                secret.wipe()
        masking.wipe()
        self.wipe()
        bits, checksum_entries = self._parameters.bits, self._parameters.checksum_entries
        total &= total.dtype.type(2**bits - 1)
        # Every client added 1 to each of these entries. A wrong, missing or extra mask is uniform
        # on all 64 bits of them together, and passes with a probability of 2^-64 at most.
        if (total[-checksum_entries:] != int(self._alive.sum()) % 2**bits).any():
            raise RemoteProtocolError(AbortCode.CHECKSUM_WRONG)
        return centred(total[:-checksum_entries], bits)

    def wipe(self) -> None:
        """Erase the shares that were given."""
        self._shares.fill(0)

    def _remove_pair_masks(self, masking: Masking, dead: int, secret: Secret) -> None:
        """Remove what the survivors added for a client that shared and did not survive."""
        key = keys.mask_key(secret, self._ctx)
        for peer in self._graph.of(dead).tolist():
            if self._alive[peer]:
                peer_key = self._adverts[peer].mask_key
                shared = key.exchange(peer_key)
                mask = keys.pair_mask_key(shared, self._ctx2, dead, key.public, peer, peer_key)
                # the survivor added it where its index is smaller, and subtracted it otherwise
                (masking.subtract if peer < dead else masking.add)(mask)
                shared.wipe()
                mask.wipe()
        key.wipe()

    def _secrets(self, owners: I64) -> list[Secret]:
        """Return the secret of each owner: b of a survivor, else the seed of its mask key.

        The first t shares are taken; a holder whose share was wrong once is asked last from then
        on, so that a liar costs one decoding and not one for each of its neighbours.
        """
        given, shares = self._gather(owners)
        holders = np.column_stack([[self._graph.of(owner) for owner in owners.tolist()], owners])
        found: dict[int, Secret] = {}
        rows = np.arange(len(owners))
        while len(rows):
            order = (~given[rows]).astype(np.int8) * 2 + self._caught[holders[rows]]
            secrets = self._combined(
                np.argsort(order, axis=1, kind="stable")[:, : self._graph.threshold], shares[rows]
            )
            is_right = [
                self._is_committed(int(owners[row]), secret)
                for row, secret in zip(rows, secrets, strict=True)
            ]
            found |= {
                int(row): secret
                for row, secret, right in zip(rows, secrets, is_right, strict=True)
                if right
            }
            rows = rows[~np.array(is_right)]
            if len(rows):
                row = int(rows[0])
                points = np.flatnonzero(given[row]) + 1
                found[row] = self._decode(
                    int(owners[row]), points, shares[row, given[row]], holders[row]
                )
                rows = rows[1:]
        return [found[row] for row in range(len(owners))]

    def _combined(self, taken: npt.NDArray[np.intp], shares: shamir.U32) -> list[Secret]:
        """Return the secret of each owner from the shares at some of its slots, [owners, t]."""
        taken = np.sort(taken, axis=1)
        values = np.take_along_axis(shares, taken[:, :, None], axis=1)
        same = bool((taken == taken[0]).all())
        return [
            Secret(shamir.to_bytes(elements))
            for elements in shamir.combine((taken[0] if same else taken) + 1, values)
        ]

    def _gather(self, owners: I64) -> tuple[Bits, shamir.U32]:
        """Return which holders gave a share of each owner's secret, and the shares.

        Both are by owner and x: [owners, k + 1].
        """
        peers, mirror = (
            np.array([self._graph.of(owner) for owner in owners.tolist()]),
            self._graph.mirror,
        )
        given = np.column_stack([self._given[peers, mirror], self._given[owners, -1]])
        shares = np.concatenate([self._shares[peers, mirror], self._shares[owners, -1:]], axis=1)
        return given, shares

    def _is_committed(self, owner: int, secret: Secret) -> bool:
        """Tell whether a secret is the one that its owner advertised."""
        if self._alive[owner]:
            return keys.commitment(secret, self._ctx) == self._adverts[owner].commitment
        return keys.mask_key(secret, self._ctx).public == self._adverts[owner].mask_key

    def _decode(self, owner: int, points: I64, shares: shamir.U32, holders: I64) -> Secret:
        """Return a secret of which some shares are wrong, and blame the pairs of these shares.

        Raises:
            RemoteProtocolError: too many are wrong.
        """
        try:
            elements, wrong = shamir.decode(points, shares, self._graph.threshold)
            secret = Secret(shamir.to_bytes(elements))
            # the shares may lie on one polynomial that is not the owner's: a dealer can do that
            if not self._is_committed(owner, secret):
                raise shamir.DecodingError("the secret is not what its owner committed to")
        except shamir.DecodingError as error:
            self.blamed.append((owner, None))
            raise RemoteProtocolError(AbortCode.RECONSTRUCTION_FAILED, str(error)) from error
        self.blamed += [(owner, int(holders[point - 1])) for point in wrong.tolist()]
        self._caught[holders[wrong - 1]] = True
        return secret
