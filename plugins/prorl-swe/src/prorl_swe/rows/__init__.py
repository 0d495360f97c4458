"""From rows of many data sets to an :class:`Instance`."""
