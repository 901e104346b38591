"""``python -m bucketq`` is the command ``bucketq``."""

from bucketq.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
