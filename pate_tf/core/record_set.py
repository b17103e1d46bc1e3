"""Which private records an ensemble was trained on, as digests: to recognise the same ones."""

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

SKETCH_SIZE: Final = 64
_DIGEST_BYTES: Final = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordSet:
    """Sensitive: a set of private records, known by digests of what each holds but its label.

    Records are equal if their raw inputs hold the same numbers, in float32. The order of records,
    their type, their shape and their representation do not matter. Digests
    without a key confirm a guess at a record, so they stay below `sensitive/`; the registry keeps
    them keyed.

    Attributes:
        digest: of all records, hexadecimal.
        sketch: the smallest digests of single records, at most `SKETCH_SIZE`, hexadecimal. Two sets
            whose sketches meet share records; sets that share many have sketches that meet.
        num_records: how many there are. Public where single records are protected; not for owners.
    """

    digest: str = dataclasses.field(repr=False)
    sketch: tuple[str, ...] = dataclasses.field(repr=False)
    num_records: int = dataclasses.field(repr=False)

    @classmethod
    def of(cls, inputs: npt.NDArray[Any]) -> "RecordSet":
        """Returns the set of raw inputs `[num_records, ...]`."""
        found = sorted(
            hashlib.blake2b(
                (np.asarray(row, "<f4") + 0.0).tobytes(),  # -0.0 is 0.0
                digest_size=_DIGEST_BYTES,
            ).digest()
            for row in inputs
        )
        distinct = sorted(set(found))
        return cls(
            digest=hashlib.sha256(b"".join(found)).hexdigest(),
            sketch=tuple(one.hex() for one in distinct[:SKETCH_SIZE]),
            num_records=len(found),
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values, sensitive."""
        return {**dataclasses.asdict(self), "sketch": list(self.sketch)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "RecordSet":
        """Rebuilds what `to_dict` returned.

        Raises:
            ValueError: if it is none.
        """
        try:
            found = cls(
                digest=str(fields["digest"]),
                sketch=tuple(map(str, fields["sketch"])),
                num_records=int(fields["num_records"]),
            )
            for digest in (found.digest, *found.sketch):
                bytes.fromhex(digest)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                "record set: expected digests of records, got something else"
            ) from error
        return found
