"""Read archive objects with pyarrow, from docs/archive.md alone, and print what is in them as JSON."""

import base64
import json
import sys
from datetime import datetime

import pyarrow.parquet as pq


def plain(value: object) -> object:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    return value


def main() -> None:
    told = []
    for path in sys.argv[1:]:
        table = pq.read_table(path)
        meta = {k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()}
        columns = [[f.name, str(f.type), f.nullable] for f in table.schema]
        rows = [{k: plain(v) for k, v in row.items()} for row in table.to_pylist()]
        told.append({"meta": meta, "columns": columns, "rows": rows})
    json.dump(told, sys.stdout)


main()
