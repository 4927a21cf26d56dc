"""``Options.TensorLocations``: where an IPU stores tensors. Checked and kept; a host has one memory."""

from typing import Any, Optional

from snnipu.poptorch._errors import InvalidArgument, InvalidType, check_bool, check_int
from snnipu.poptorch._options_base import OptionsDict


class TensorLocationSettings(OptionsDict):
    """Where one kind of tensor is stored; every method returns self."""

    def minElementsForOffChip(self, min_elements: int) -> "TensorLocationSettings":
        """Tensors with fewer elements stay on chip."""
        self.createOrSet(minElementsForOffChip=check_int(min_elements, "minElementsForOffChip"))
        return self

    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> "TensorLocationSettings":
        """Tensors with fewer elements are not spread over replicas."""
        name = "minElementsForReplicatedTensorSharding"
        self.createOrSet(minElementsForReplicatedTensorSharding=check_int(min_elements, name))
        return self

    def useOnChipStorage(self, use: Optional[bool] = True) -> "TensorLocationSettings":
        """On chip (True), off chip (False) or not said (None)."""
        if use is None:
            self.deleteIfExists("onChip")
        else:
            self.createOrSet(onChip=int(check_bool(use, "useOnChipStorage")))
        return self

    def useReplicatedTensorSharding(self, use: bool = True) -> "TensorLocationSettings":
        """Spread the tensor over replicas."""
        self.createOrSet(useReplicatedTensorSharding=int(check_bool(use, "useReplicatedTensorSharding")))
        return self

    def useIOTilesToLoad(self, use: bool = True) -> "TensorLocationSettings":
        """Load through IO tiles."""
        self.createOrSet(useIOTilesToLoad=int(check_bool(use, "useIOTilesToLoad")))
        return self

    def useIOTilesToStore(self, use: bool = True) -> "TensorLocationSettings":
        """Store through IO tiles."""
        self.createOrSet(useIOTilesToStore=int(check_bool(use, "useIOTilesToStore")))
        return self


class _TensorLocationOptions(OptionsDict):
    """``Options.TensorLocations``; every method returns self."""

    def numIOTiles(self, num_tiles: int) -> "_TensorLocationOptions":
        """Tiles for input and output: an even number from 32 to 192."""
        if not 32 <= check_int(num_tiles, "TensorLocations.numIOTiles") <= 192 or num_tiles % 2:
            raise InvalidArgument(f"TensorLocations.numIOTiles: expected an even number, 32 to 192, got {num_tiles}")
        self.createOrSet(numIOTiles=num_tiles)
        return self

    def setActivationLocation(self, location: TensorLocationSettings) -> "_TensorLocationOptions":
        """Where activations are stored."""
        return self._location("setActivationLocation", location_activation=location)

    def setWeightLocation(self, location: TensorLocationSettings) -> "_TensorLocationOptions":
        """Where weights are stored."""
        return self._location("setWeightLocation", location_weight=location)

    def setOptimizerLocation(self, location: TensorLocationSettings) -> "_TensorLocationOptions":
        """Where the optimizer's state is stored."""
        return self._location("setOptimizerLocation", location_optimizer=location)

    def setAccumulatorLocation(self, location: TensorLocationSettings) -> "_TensorLocationOptions":
        """Where accumulated gradients are stored."""
        return self._location("setAccumulatorLocation", location_accumulator=location)

    def _location(self, method: str, **locations: Any) -> "_TensorLocationOptions":
        for name, location in locations.items():
            if not isinstance(location, TensorLocationSettings):
                raise InvalidType(f"TensorLocations.{method}: expected TensorLocationSettings, got {location!r}")
            self.createOrSet(**{name: location.toDict()})
        return self
