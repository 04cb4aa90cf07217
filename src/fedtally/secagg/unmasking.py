"""Remove the masks from the sum of masked vectors, with the shares that survivors gave.

Every client that sent Shares has two secrets (Bonawitz et al. 2017). If it survived, the server
recovers the seed of its self mask, which the specification calls b. If it did not, the server
recovers the seed of its mask key. From this seed follow the pair masks that the client has in
common with its neighbours: the neighbours added or subtracted these masks.

Every secret is checked before it is used: b by its commitment, the seed of the mask key by the
public mask key. If t shares give a wrong secret, all shares of one such client are decoded with
error correction. The wrong shares that this finds tell whose shares to use last for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

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

_OWNERS = 1024  # the most owners whose secrets are recovered at once: more take more memory

I64 = npt.NDArray[np.int64]


class Unmasking:
    """Collect the shares that survivors give, recover secrets from them, and remove the masks.

    Every client that sent Shares is an owner: its neighbours hold shares of its secrets.

    Args:
        parameters: the parameters of the session.
        ctx: the context of the session, a digest (`wire.context`), 32 bytes.
        ctx2: the context of the roster, a digest (`wire.roster_context`), 32 bytes.
        graph: the neighbours in the roster.
        adverts: the adverts as they were sent, by index in the roster.
        present: bool [n]; the clients that sent Shares.
        alive: bool [n]; the survivors, a subset of `present`: their vectors are in the total.

    Attributes:
        blamed: the wrong shares that were found, each as a pair (owner, holder) of indexes; (owner,
            None) if an owner's shares do not give its secret.
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
        # Indexed by holder and slot; the last slot is the holder's share of its own secret.
        self._given = np.zeros((graph.n, holders), np.bool_)
        self._shares = np.zeros((graph.n, holders, shamir.SECRET_ELEMENTS), np.uint32)
        self._caught = np.zeros(graph.n, np.bool_)  # the holders of a share that was found wrong
        self.blamed: list[tuple[int, int | None]] = []

    def __getstate__(self) -> None:
        raise InvalidInputError(
            "the shares of an unmasking are secret: they cannot be copied or pickled"
        )

    def add(self, holder: int, unmask: Unmask) -> None:
        """Store the shares that a survivor gave; nothing is checked yet.

        Args:
            holder: the index of the survivor in the roster.
            unmask: the shares.
        """
        self._given[holder, :-1], self._given[holder, -1] = unmask.given, True
        self._shares[holder, :-1][unmask.given], self._shares[holder, -1] = (
            unmask.shares,
            unmask.own,
        )

    def short(self) -> list[int]:
        """List the indexes of clients whose secret has fewer than t shares so far.

        Only clients that sent Shares are listed. The list is empty once `open` can be called.
        """
        holders = self._given[:, -1].astype(np.int64)
        for slot in range(self._graph.neighbours):
            holders += self._given[self._graph.at_slot(slot), self._graph.mirror[slot]]
        return np.flatnonzero(self._present & (holders < self._graph.threshold)).tolist()

    def open(self, total: Lanes) -> I64:
        """Remove the masks from the sum of the survivors' masked vectors.

        Call this only once the list of `short` is empty. All shares and recovered secrets are
        erased at the end, also if an error is raised.

        Args:
            total: lane(bits) [V + checksum entries], see `crypto.prg.lane`; the sum of the masked
                vectors. It is changed in place.

        Returns:
            The sum, int64 [V].

        Raises:
            RemoteProtocolError: a secret cannot be recovered (code RECONSTRUCTION_FAILED), or a
                mask is left (code CHECKSUM_WRONG).
        """
        present, masking = np.flatnonzero(self._present), Masking(total)
        with ExitStack() as made:
            made.callback(self.wipe)
            made.callback(masking.wipe)
            for start in range(0, len(present), _OWNERS):
                self._remove_masks(masking, present[start : start + _OWNERS])
        bits, checksum_entries = self._parameters.bits, self._parameters.checksum_entries
        total &= total.dtype.type(2**bits - 1)
        # Every client set each of its checksum entries to 1. A wrong, missing or extra mask makes
        # all their bits together, 64 or more, uniform. So it goes unnoticed with a probability of
        # at most 2^-64.
        if (total[-checksum_entries:] != int(self._alive.sum()) % 2**bits).any():
            raise RemoteProtocolError(AbortCode.CHECKSUM_WRONG)
        return centred(total[:-checksum_entries], bits)

    def wipe(self) -> None:
        """Erase all shares that were added."""
        self._shares.fill(0)

    def _remove_masks(self, masking: Masking, owners: I64) -> None:
        """Remove the masks that the secrets of some owners give, and wipe these secrets.

        Args:
            masking: the total from which the masks are removed.
            owners: int64 [owners]; indexes in the roster.

        Raises:
            RemoteProtocolError: the shares of an owner do not give its secret.
        """
        with ExitStack() as recovered:
            for owner, secret in zip(
                owners.tolist(), self._secrets(owners, recovered), strict=True
            ):
                # A survivor's pair masks with other survivors cancel in the sum. Its pair masks
                # with a dead client, which is not in the sum, are removed when the loop comes to
                # that client.
                if self._alive[owner]:
                    mask = keys.self_mask_key(secret, self._ctx2, owner)
                    masking.subtract(mask)
                    mask.wipe()
                else:
                    self._remove_pair_masks(masking, owner, secret)
                secret.wipe()

    def _remove_pair_masks(self, masking: Masking, dead: int, secret: Secret) -> None:
        """Remove the pair masks that survivors have in common with a client that is not in the sum.

        Args:
            masking: the total from which the masks are removed.
            dead: the index of the client in the roster.
            secret: the seed of its mask key.
        """
        key = keys.mask_key(secret, self._ctx)
        for peer in self._graph.of(dead).tolist():
            if self._alive[peer]:
                peer_key = self._adverts[peer].mask_key
                shared = key.exchange(peer_key)
                mask = keys.pair_mask_key(shared, self._ctx2, dead, key.public, peer, peer_key)
                # The survivor added the mask if its index is the smaller one, else subtracted it.
                (masking.subtract if peer < dead else masking.add)(mask)
                shared.wipe()
                mask.wipe()
        key.wipe()

    def _secrets(self, owners: I64, recovered: ExitStack) -> list[Secret]:
        """Recover one secret of each owner.

        If the owner survived, this is b, the seed of its self mask, else the seed of its mask key.

        For each owner, t shares are combined and the secret is checked. If the secret is wrong, all
        shares of this owner are decoded, which is slow. If this finds a share wrong, the shares of
        its holder are used last for other owners. So a holder that lies costs about one decoding,
        and not one for each of its neighbours.

        Args:
            owners: int64 [owners]; indexes in the roster.
            recovered: a stack; when it is closed, it wipes all that was recovered here, wrong
                secrets too.

        Returns:
            The secrets, in the order of `owners`.

        Raises:
            RemoteProtocolError: the shares of an owner do not give its secret.
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
            for secret in secrets:
                recovered.callback(secret.wipe)
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
                    int(owners[row]), points, shares[row, given[row]], holders[row], recovered
                )
                rows = rows[1:]
        return [found[row] for row in range(len(owners))]

    def _combined(self, taken: npt.NDArray[np.intp], shares: shamir.U32) -> list[Secret]:
        """Recover the secret of each owner from t shares; neither shares nor secrets are checked.

        Args:
            taken: integers [owners, t]; the slots of the shares that are used, in any order.
            shares: uint32 [owners, k + 1, 5]; the shares of each owner, by slot.
        """
        taken = np.sort(taken, axis=1)
        values = np.take_along_axis(shares, taken[:, :, None], axis=1)
        same = bool((taken == taken[0]).all())
        return [
            Secret(shamir.to_bytes(elements))
            for elements in shamir.combine((taken[0] if same else taken) + 1, values)
        ]

    def _gather(self, owners: I64) -> tuple[Bits, shamir.U32]:
        """Collect the shares that holders gave of each owner's secret.

        Returns:
            bool [owners, k + 1], whether the holder at a slot gave its share; and uint32 [owners, k
            + 1, 5], the shares. Slot k is the owner's share of its own secret.
        """
        peers, mirror = (
            np.array([self._graph.of(owner) for owner in owners.tolist()]),
            self._graph.mirror,
        )
        given = np.column_stack([self._given[peers, mirror], self._given[owners, -1]])
        shares = np.concatenate([self._shares[peers, mirror], self._shares[owners, -1:]], axis=1)
        return given, shares

    def _is_committed(self, owner: int, secret: Secret) -> bool:
        """Return whether a secret fits its owner's advert.

        A survivor's secret, the seed of its self mask, must fit the commitment. The secret of a
        client that did not survive, the seed of its mask key, must fit the public mask key.
        """
        if self._alive[owner]:
            return keys.commitment(secret, self._ctx) == self._adverts[owner].commitment
        key = keys.mask_key(secret, self._ctx)
        key.wipe()  # its public key stays
        return key.public == self._adverts[owner].mask_key

    def _decode(
        self, owner: int, points: I64, shares: shamir.U32, holders: I64, recovered: ExitStack
    ) -> Secret:
        """Recover a secret although some shares are wrong, and add the wrong ones to `blamed`.

        Args:
            owner: the index of the owner in the roster.
            points: int64 [shares]; the points x of the shares, ascending.
            shares: uint32 [shares, 5]; the shares at these points.
            holders: int64 [k + 1]; the index of the holder at each slot.
            recovered: the stack that wipes the secret.

        Raises:
            RemoteProtocolError: too many shares are wrong, or the secret is not the one in the
                owner's advert.
        """
        try:
            elements, wrong = shamir.decode(points, shares, self._graph.threshold)
            secret = Secret(shamir.to_bytes(elements))
            recovered.callback(secret.wipe)
            # An owner that lies can send shares of another secret than the one in its advert. These
            # shares fit one polynomial, so that `decode` finds nothing wrong with them.
            if not self._is_committed(owner, secret):
                raise shamir.DecodingError("the secret is not what its owner committed to")
        except shamir.DecodingError as error:
            self.blamed.append((owner, None))
            raise RemoteProtocolError(AbortCode.RECONSTRUCTION_FAILED, str(error)) from error
        self.blamed += [(owner, int(holders[point - 1])) for point in wrong.tolist()]
        self._caught[holders[wrong - 1]] = True
        return secret
