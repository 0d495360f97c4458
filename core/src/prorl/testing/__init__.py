"""The test kit that ships: engines that are real, scripted or faulty, for plugins' tests and for our own."""
