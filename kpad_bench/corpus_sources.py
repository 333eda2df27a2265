"""The rows a manifest speaks of, from wherever they are to be had here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kpad_bench import corpus_files, corpus_hub
from kpad_bench.corpus_files import CutError
from kpad_bench.corpus_manifest import Manifest
from kpad_bench.errors import DataError, HostError

Say = Callable[[str], None]
#: Between two lines of progress.
PROGRESS_S = 5.0


class Source:
    """The rows of one corpus, each with the place to name in errors; and what was found on the way.

    ``lenient`` takes the whole rows of a file that is cut; ``cuts`` then says of each where.
    """

    def __init__(self, manifest: Manifest, given: Path | None, lenient: bool, say: Say) -> None:
        self._manifest, self._lenient, self._say = manifest, lenient, say
        self._n_rows, self._next_s = 0, time.monotonic() + PROGRESS_S
        self.cuts: list[CutError] = []
        self._files = self._local_files(given)

    def rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Every row. Raises DataError for a file that is damaged, HostError for rows that cannot be had."""
        for path in self._files:
            yield from self._numbered(str(path), self._file_rows(path))
        for source in [] if self._files else self._manifest.sources:
            rows = corpus_hub.split_rows(self._manifest, source)
            yield from self._numbered(source.hub_id, rows)

    def file_hashes(self) -> dict[str, str]:
        """File name -> sha256. Raises DataError when a file bears a pinned name and not its hash.

        A file that is known to be cut cannot have it.
        """
        pins = {Path(s.file).name: s for s in self._manifest.sources if s.file and s.sha256}
        hashes = {path.name: corpus_files.file_sha256(path) for path in self._files}
        for path in self._files:
            pin = pins.get(path.name)
            if pin is not None and hashes[path.name] != pin.sha256 and not self.cuts:
                raise DataError(
                    f"{path}: sha256 {hashes[path.name]}, pinned is {pin.sha256}: not the pinned file; "
                    f"download it again from {pin.hub_id} at revision {pin.revision}"
                )
        return hashes

    def _local_files(self, given: Path | None) -> list[Path]:
        if given is not None:
            return corpus_files.source_files(given)
        if (package := self._manifest.package) is not None:
            path = corpus_files.package_file(package.distribution, package.file)
            found = corpus_files.file_sha256(path)
            if found != package.sha256:
                raise HostError(
                    f"{path}: sha256 {found}, pinned is {package.sha256}: not the pinned release; "
                    f"install {package.distribution} again, or give the rows with --source FILE"
                )
            return [path]
        corpus_hub.require_access(self._manifest)
        return [corpus_hub.fetched_file(self._manifest, s) for s in self._manifest.sources if not s.splits]

    def _file_rows(self, path: Path) -> Iterator[dict[str, Any]]:
        try:
            yield from corpus_files.read_rows(path)
        except CutError as error:
            if not self._lenient:
                raise
            self.cuts.append(error)

    def _numbered(self, where: str, rows: Iterator[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
        for number, row in enumerate(rows, start=1):
            self._n_rows += 1
            if time.monotonic() >= self._next_s:
                self._next_s = time.monotonic() + PROGRESS_S
                known = self._manifest.expected_rows
                of = "" if known is None else f" of about {known}"
                self._say(f"corpus {self._manifest.name}: {self._n_rows} rows{of} read")
            yield f"{where}: row {number}", row
