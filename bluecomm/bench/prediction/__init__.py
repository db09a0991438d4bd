"""What ``simulate`` is made of: costs of exchanges, and when they are hidden."""
