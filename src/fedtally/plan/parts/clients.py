"""The senders of the vectors: persons, or silos (such as hospitals) with many people each.

>>> persons, silos = Clients(1, 3), Clients(5000, 3)
>>> persons.kind, persons.senders, persons.counted, persons.entries, persons.most_items
('persons', ('client', 'clients'), ('client', 'clients'), 0, 3)
>>> silos.kind, silos.senders, silos.counted, silos.entries, silos.most_items
('silos', ('silo', 'silos'), ('person', 'people'), 1, 15000)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from fedtally.base.encoding import Encoding

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from fedtally.privacy.events import Relation

Kind = Literal["persons", "silos"]


@dataclass(frozen=True)
class Clients:
    """The kind of the clients, who send the vectors: persons or silos.

    Args:
        people: the most people whose items one client holds; 1 means that clients are persons.
        max_items: the most items of one person that are counted in a round.

    Attributes:
        kind: "persons" or "silos".
    """

    people: int
    max_items: int
    kind: Kind = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", "persons" if self.people == 1 else "silos")

    @property
    def senders(self) -> tuple[str, str]:
        """The English noun for a sender of a vector, in the singular and in the plural."""
        return ("client", "clients") if self.kind == "persons" else ("silo", "silos")

    @property
    def counted(self) -> tuple[str, str]:
        """The English noun for what the answer counts, in the singular and in the plural."""
        return ("client", "clients") if self.kind == "persons" else ("person", "people")

    @property
    def entries(self) -> int:
        """The number of entries of a vector besides its counters: 1 for a silo, otherwise 0.

        A silo's entry is its number of people.
        """
        return 0 if self.kind == "persons" else 1

    @property
    def most_items(self) -> int:
        """The most items that one client contributes in a round.

        For a silo, these are the items of all its people together.
        """
        return self.people * self.max_items

    @property
    def why_no_silos(self) -> str:
        """The error message for an option that only silos have; "" if the clients are silos."""
        if self.kind == "silos":
            return ""
        return "the plan is not one of silos: set the most people of a client (Plan.people)"

    @property
    def can_be_drawn(self) -> bool:
        """Whether a simulation may draw its clients anew for each campaign: True for persons.

        Silos are too few for this, and differ too much.
        """
        return self.kind == "persons"

    def numbered(self, persons: int, silos: int) -> str:
        """Return the number of clients in words; the kind selects one of the two numbers.

        Args:
            persons: the number to use if clients are persons.
            silos: the number to use if clients are silos.

        >>> Clients(5000, 3).numbered(900, 2), Clients(1, 3).numbered(900, 0)
        ('2 silos of at most 5000 people each', '900 clients')
        """
        if self.kind == "persons":
            return f"{persons} clients"
        return f"{silos} silos of at most {self.people} people each"

    def most_people(self, persons: int, silos: int) -> int:
        """Return the most people whose items are in a sum.

        For persons it is the argument `persons`. For silos it is the argument `silos` times the
        attribute `people`.

        Args:
            persons: the number of clients in the sum, used if clients are persons.
            silos: the number of clients in the sum, used if clients are silos.
        """
        return persons if self.kind == "persons" else silos * self.people

    def shown_people(self, people: int, silos: int) -> int:
        """Return the number of people that a reader of a release (an opened sum) sees.

        It is `people`, but 0 if clients are silos and none took part: `people` is then only noise.

        Args:
            people: the number of people in the release; for silos it carries noise if the plan has
                privacy.
            silos: the number of silos in the release, which is public.
        """
        return people if self.kind == "persons" or silos else 0

    def largest_entry(self, encoding: Encoding) -> int:
        """Return the most (absolute value) that one client adds to an entry of a sum.

        The entries are the counters and, for silos, the number of people. Noise is not counted.

        Args:
            encoding: whether items are counted in a sketch or in a histogram.
        """
        return self.people * encoding.most_of_counter(self.max_items)

    def rows_of_table(self, people: float) -> float:
        """Return the most rows that a silo reads from its table of items; 0 if clients are persons.

        A row has one item of one person. A silo reads at most `max_items` rows of each person.

        Args:
            people: the number of people of the silo.
        """
        return 0.0 if self.kind == "persons" else people * self.max_items

    def are_hidden(self, relation: Relation | None) -> bool:
        """Return whether the privacy guarantee hides the number of clients.

        The number of silos is always public, so the result is False for silos.

        Args:
            relation: the relation between the two inputs that must look alike (see `Relation`);
                None: the plan has no privacy, so the result is False.
        """
        return self.kind == "persons" and relation is not None and relation.hides_number

    def people_and_silos(self, entries: npt.NDArray[np.int64], num_clients: int) -> tuple[int, int]:
        """Return the number of people and the number of silos in a sum of vectors.

        If clients are persons, the two numbers are `num_clients` and 0.

        Args:
            entries: int64 [entries], the sum of the vectors' entries besides the counters; for
                silos the first is the number of people.
            num_clients: the number of clients in the sum.
        """
        if self.kind == "persons":
            return num_clients, 0
        return int(entries[0]), num_clients

    def fits(self, num_silos: int) -> bool:
        """Return whether a sum with this number of silos can come from clients of this kind.

        A sum of silos has at least 1 silo, and a sum of persons has 0 silos.

        Args:
            num_silos: the number of silos in the sum; 0 for a sum of persons.
        """
        return (num_silos > 0) == (self.kind == "silos")
