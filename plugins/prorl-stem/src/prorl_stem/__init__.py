"""Science, technology and engineering for ProRL Agent: search, calculation, and answers with units."""
