"""The directory of the pipeline, in any file system that Spark's Hadoop knows: local, hdfs:, s3a:, abfss:, dbfs:."""

# pyright: basic
from __future__ import annotations

import os
from os import PathLike
from typing import TYPE_CHECKING, Any

from bucketq.errors import Invalid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Folder"]


class Folder:
    """A directory by its path or URL. A path is in Spark's default file system, as for Spark itself."""

    def __init__(self, spark: SparkSession, path: str | PathLike[str]) -> None:
        jvm: Any = getattr(spark, "_jvm", None)
        if jvm is None:
            raise Invalid("the pipeline needs a session in this process, and this one is remote", "option")
        self._jvm = jvm
        self.name = os.fspath(path)
        """The path as it was given."""
        conf = spark._jsparkSession.sessionState().newHadoopConf()  # type: ignore[attr-defined]
        text = self.name
        local = jvm.org.apache.hadoop.fs.FileSystem.get(conf).getScheme() == "file"
        if local and ":" not in text.partition("/")[0]:
            # The JVM may have started in another directory.
            text = f"file://{os.path.abspath(text)}"
        given = self._path(text)
        self._fs = given.getFileSystem(conf)
        self.path: str = self._fs.makeQualified(given).toString()
        """The path with its scheme."""
        if self.path.startswith("file:"):
            # Without a hidden file of checksums beside each file.
            self._fs = jvm.org.apache.hadoop.fs.FileSystem.getLocal(conf).getRawFileSystem()

    def at(self, name: str) -> str:
        """Return the path of a file or directory inside."""
        return f"{self.path.rstrip('/')}/{name}"

    def shown(self, name: str) -> str:
        """Return that path in the form of the given one."""
        return f"{self.name.rstrip('/')}/{name}"

    def create(self) -> None:
        """Create the directory if it does not exist."""
        whole = self._path(self.path)
        if self._fs.exists(whole) and not self._fs.getFileStatus(whole).isDirectory():
            raise Invalid(f"{self.name} is a file: give a directory for the tables")
        self._fs.mkdirs(whole)

    def exists(self, name: str) -> bool:
        """Return True if there is a file or directory of this name inside."""
        return self._fs.exists(self._path(self.at(name)))

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a file that :meth:`write` wrote; None if there is none."""
        for one in (name, f"{name}.new"):
            if self.exists(one):
                stream = self._fs.open(self._path(self.at(one)))
                try:
                    return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
                finally:
                    stream.close()
        return None

    def write(self, name: str, body: bytes) -> None:
        """Replace a file; at any time the old or the new one can be read."""
        stream = self._fs.create(self._path(self.at(f"{name}.new")), True)
        try:
            stream.write(bytearray(body))
        finally:
            stream.close()
        self.delete(name)
        self.rename(f"{name}.new", name)

    def delete(self, name: str) -> None:
        """Delete a file, or a directory with everything inside."""
        self._fs.delete(self._path(self.at(name)), True)

    def rename(self, name: str, to: str) -> None:
        """Rename a file or directory; nothing of the new name may exist."""
        if not self._fs.rename(self._path(self.at(name)), self._path(self.at(to))):
            raise OSError(f"{self.at(name)} cannot be renamed to {to}")

    def _path(self, text: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(text)
