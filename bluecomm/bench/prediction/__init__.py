"""Cost models of ``simulate``: what exchanges cost, and what hides them."""
