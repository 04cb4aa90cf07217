"""Who sends the vectors: persons, or silos, such as hospitals, each with the items of many people.

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
    """The clients, which send the vectors: persons or silos.

    Args:
        people: the most people whose items one client holds; 1: clients are persons.
        max_items: the most items of one person.

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
        """The noun for a sender of a vector, in the singular and in the plural."""
        return ("client", "clients") if self.kind == "persons" else ("silo", "silos")

    @property
    def counted(self) -> tuple[str, str]:
        """The noun for what the answer counts, in the singular and in the plural."""
        return ("client", "clients") if self.kind == "persons" else ("person", "people")

    @property
    def entries(self) -> int:
        """The number of entries of a vector besides its counters: a silo's number of people."""
        return 0 if self.kind == "persons" else 1

    @property
    def most_items(self) -> int:
        """The most items that one client contributes, of all its people together."""
        return self.people * self.max_items

    @property
    def why_no_silos(self) -> str:
        """The reason why these clients cannot have options of silos, or "" if they can."""
        if self.kind == "silos":
            return ""
        return "the plan is not one of silos: set the most people of a client (Plan.people)"

    @property
    def can_be_drawn(self) -> bool:
        """Whether a simulation may resample clients; silos are too few and too different."""
        return self.kind == "persons"

    def numbered(self, persons: int, silos: int) -> str:
        """Return the number of clients in words.

        Args:
            persons: the number of clients, if they are persons.
            silos: the number of clients, if they are silos.

        >>> Clients(5000, 3).numbered(900, 2), Clients(1, 3).numbered(900, 0)
        ('2 silos of at most 5000 people each', '900 clients')
        """
        if self.kind == "persons":
            return f"{persons} clients"
        return f"{silos} silos of at most {self.people} people each"

    def most_people(self, persons: int, silos: int) -> int:
        """Return the most people in a sum.

        Args:
            persons: the number of clients in the sum, if they are persons.
            silos: the number of clients in the sum, if they are silos.
        """
        return persons if self.kind == "persons" else silos * self.people

    def shown_people(self, people: int, silos: int) -> int:
        """Return the number of people that a release shows; 0 if no silo took part.

        Args:
            people: the number of people in the release, which may carry noise.
            silos: the number of silos in the release, which is public.
        """
        return people if self.kind == "persons" or silos else 0

    def largest_entry(self, encoding: Encoding) -> int:
        """Return the most that one client adds to an entry of its vector, without noise."""
        return self.people * encoding.most_of_counter(self.max_items)

    def rows_of_table(self, people: float) -> float:
        """Return the number of table rows that one client reads; 0 for a person.

        Args:
            people: the number of people of a silo.
        """
        return 0.0 if self.kind == "persons" else people * self.max_items

    def are_hidden(self, relation: Relation | None) -> bool:
        """Whether the number of clients is private; the number of silos is always public.

        Args:
            relation: the neighbouring relation of the privacy guarantee; None: no guarantee.
        """
        return self.kind == "persons" and relation is not None and relation.hides_number

    def people_and_silos(self, entries: npt.NDArray[np.int64], num_clients: int) -> tuple[int, int]:
        """Return the number of people and the number of silos in a sum of vectors.

        Args:
            entries: int64 [entries], the sum of the entries besides the counters.
            num_clients: the number of clients in the sum.
        """
        if self.kind == "persons":
            return num_clients, 0
        return int(entries[0]), num_clients

    def fits(self, num_silos: int) -> bool:
        """Return whether a sum of `num_silos` silos (0: of persons) may be of such clients."""
        return (num_silos > 0) == (self.kind == "silos")
