"""What the ``train`` benchmark is made of."""
