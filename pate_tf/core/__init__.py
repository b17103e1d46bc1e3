"""Types that check sensitive and public values, base classes of settings, and files of a run."""
