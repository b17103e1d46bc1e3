"""A Flower app in which silos and aggregators are ClientApps and the coordinator is a ServerApp."""
