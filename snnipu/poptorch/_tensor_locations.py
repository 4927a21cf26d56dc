"""``Options.TensorLocations``: the memory in which an IPU stores tensors. The host checks it and has one memory."""

from typing import Any, Optional

from snnipu.poptorch._errors import InvalidArgument, check_bool, check_int, check_type
from snnipu.poptorch._options_base import OptionRow, OptionsDict


def _flag(value: Any, name: str) -> int:
    return int(check_bool(value, name))


def _io_tiles(value: Any, name: str) -> int:
    if not 32 <= check_int(value, name) <= 192 or value % 2:
        raise InvalidArgument(f"{name}: expected an even number, 32 to 192, got {value}")
    return value


def _settings(value: Any, name: str) -> Any:
    return check_type(value, name, TensorLocationSettings, "TensorLocationSettings").toDict()


class TensorLocationSettings(OptionsDict):
    """The storage of one kind of tensor; every method returns self."""

    _table = (
        OptionRow(
            "minElementsForOffChip",
            "min_elements",
            doc="Keep tensors with fewer elements on chip.",
            convert=check_int,
            stored_as="minElementsForOffChip",
        ),
        OptionRow(
            "minElementsForReplicatedTensorSharding",
            "min_elements",
            doc="Do not spread tensors with fewer elements over replicas.",
            convert=check_int,
            stored_as="minElementsForReplicatedTensorSharding",
        ),
        *(
            OptionRow(name, "use", doc=doc, convert=_flag, call_default=True, stored_as=name)
            for name, doc in (
                ("useReplicatedTensorSharding", "Spread the tensor over replicas."),
                ("useIOTilesToLoad", "Load through IO tiles."),
                ("useIOTilesToStore", "Store through IO tiles."),
            )
        ),
    )

    def useOnChipStorage(self, use: Optional[bool] = True) -> "TensorLocationSettings":
        """Store the tensors on chip or off chip.

        Args:
            use: True: on chip; False: off chip; None: PopART decides.
        """
        if use is None:
            self.deleteIfExists("onChip")
        else:
            self.createOrSet(onChip=_flag(use, "useOnChipStorage"))
        return self


class _TensorLocationOptions(OptionsDict):
    """The group ``Options.TensorLocations``; every method returns self."""

    _prefix = "TensorLocations."
    _table = (
        OptionRow(
            "numIOTiles",
            "num_tiles",
            doc="Reserve tiles for input and output: an even number from 32 to 192.",
            convert=_io_tiles,
            stored_as="numIOTiles",
        ),
        *(
            OptionRow(
                f"set{kind.capitalize()}Location",
                "location",
                doc=f"Set the storage of {kind} tensors.",
                convert=_settings,
                stored_as=f"location_{kind}",
            )
            for kind in ("activation", "weight", "optimizer", "accumulator")
        ),
    )
