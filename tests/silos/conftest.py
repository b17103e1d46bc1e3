"""Lets the folders in here import what stands beside this file."""
