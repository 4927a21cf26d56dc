"""Plans of operators on IPU tiles, and their predicted memory and speed: computed from numbers, without modules."""
