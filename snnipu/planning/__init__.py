"""Plans of operators on IPU tiles, and what a model of the machine says of them: numbers alone, no modules."""
