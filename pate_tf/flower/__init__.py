"""A Flower app: silos and aggregators as ClientApps, the coordinator as a ServerApp."""
