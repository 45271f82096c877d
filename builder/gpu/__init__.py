"""The benchmark on a GPU machine without a network: model shapes without weights, and the script that runs
it."""
