"""What fails, or kills, at every call to the system; what damages files at any place."""
