"""Write embeddings to Parquet or safetensors files."""

import errno
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path

from levelfield.core.errors import UserError
from levelfield.core.files import explain_write_errors, write_atomically
from levelfield.use.encoder import Embedded

SUFFIXES = (".parquet", ".safetensors")


def check_output(path: Path) -> None:
    """Raise UserError for an unsupported suffix or a read-only folder, before anything is embedded."""
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"--output {path}: give a file ending in {' or '.join(SUFFIXES)}")
    with explain_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not os.access(path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def write_embeddings(embedded: Embedded, path: Path, origin: Mapping[str, str]) -> None:
    """Write embeddings with the names of their samples, and labels if there are any.

    Parquet has the columns `name`, `label` and `embedding` (a list of fixed size, float32); safetensors the tensor
    `embeddings` (N, D), and `names` and `labels` as JSON lists in its metadata.

    Args:
        origin: the origin of the embeddings, for the metadata of the file.

    Raises:
        UserError: an unsupported suffix, or a file that cannot be written.
    """
    check_output(path)
    rows = embedded.embeddings.contiguous()
    if path.suffix.lower() == ".safetensors":
        from safetensors.torch import save

        named = {"names": embedded.names, **({"labels": embedded.labels} if embedded.labels is not None else {})}
        metadata = {**origin, **{key: json.dumps(value, ensure_ascii=False) for key, value in named.items()}}
        write_atomically(path, save({"embeddings": rows}, metadata=metadata))
        return
    import pyarrow as pa
    from pyarrow import parquet

    columns = {"name": pa.array(embedded.names, pa.string())}
    if embedded.labels is not None:
        columns["label"] = pa.array([label or None for label in embedded.labels], pa.string())
    columns["embedding"] = pa.FixedSizeListArray.from_arrays(pa.array(rows.flatten().numpy()), rows.shape[1])
    content = io.BytesIO()
    parquet.write_table(pa.table(columns).replace_schema_metadata(dict(origin)), content)
    write_atomically(path, content.getvalue())
