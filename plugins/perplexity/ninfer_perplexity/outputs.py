"""Where a run puts its files; they appear when all is done, and nothing is replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from attrs import frozen

from ninfer_artifact_writer.publish import published, refuse_taken
from ninfer_perplexity import log_probs, report
from ninfer_perplexity.log_probs import ITEM_BYTES, LogProbWriter
from ninfer_perplexity.tokens import TokenizedText


@frozen(eq=False)
class Files:
    """:ivar report: open for writing, or None. :ivar log_probs: keeps them, or None."""

    report: BinaryIO | None = None
    log_probs: LogProbWriter | None = None


@frozen
class Outputs:
    """:ivar folder: of all files; without one there are none."""

    folder: Path | None
    save_logits: bool

    @property
    def paths(self) -> list[Path]:
        if self.folder is None:
            return []
        names = [report.FILE, log_probs.FILE] if self.save_logits else [report.FILE]
        return [self.folder / name for name in names]

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """The folder is there; after an error those that were made for it are not.

        :raises ArtifactError: for files in the way.
        """
        if self.folder is None:
            yield
            return
        made = [each for each in (self.folder, *self.folder.parents) if not each.exists()]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in self.paths:
                refuse_taken(path)
            yield
        except BaseException:
            for each in made:
                with suppress(OSError):  # somebody else uses it by now
                    each.rmdir()
            raise

    @contextmanager
    def open(
        self, texts: Sequence[TokenizedText], vocab_size: int, note: Callable[[str], None]
    ) -> Iterator[Files]:
        """The files, published when the context is left without an error.

        :param note: is told how large the log probabilities will be.
        :raises CapacityError: if they do not fit on the disk.
        """
        if self.folder is None:
            yield Files()
            return
        sizes = {text.text.name: len(text.ids) - 1 for text in texts}
        if self.save_logits:
            targets = sum(sizes.values())
            nbytes = targets * vocab_size * ITEM_BYTES
            note(f"log probabilities of {targets:,} tokens x {vocab_size:,} x {ITEM_BYTES} B: "
                 f"{nbytes:,} B in {self.paths[1]}")
            log_probs.require_space(self.folder, nbytes)
        with published(self.paths) as [report_file, *others]:
            writers = [LogProbWriter(file, sizes, vocab_size) for file in others]
            yield Files(report_file, *writers)
