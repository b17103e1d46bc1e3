import json

Line = dict


def key_of(line):
    return tuple(line[n] for n in ("dataset", "pool", "method", "epsilon", "seed"))


def read(path):
    return [json.loads(l) for l in path.read_text().splitlines()] if path.exists() else []
