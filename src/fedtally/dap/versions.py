"""A table of the drafts of DAP whose reports a task may accept, 18 and 9, and how they differ."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from fedtally.dap import draft09, draft18
from fedtally.dap.draft18 import (
    HpkeConfigList,
    Report,
    ReportMetadata,
    Role,
    TaskConfiguration,
    UploadRequest,
    is_media_type,
    media_type,
)
from fedtally.flp.prio3 import Prio3
from fedtally.flp.prio3_draft08 import Prio3Draft08


class Version(NamedTuple):
    """How one draft encodes, seals and uploads reports.

    In the program, reports always have the form of draft 18. An upload is the HTTP request by which
    a client sends reports to the leader.

    Attributes:
        in_id: the bytes that are hashed before a task's configuration to get the task's id.
        protocol: the class of the VDAF, the scheme that splits and verifies measurements.
        input_share_info: returns the HPKE `info`, the purpose of the ciphertext, of an input share.
            Its argument is the role of the server that the share is sealed to.
        input_share_aad: returns the associated data of a sealed input share. Its arguments are the
            task's id, the task's configuration, the report's metadata and its public share.
        read_upload: returns the reports in the body of an upload, converted to draft 18. It raises
            `MalformedError` if the body cannot be read. Its second argument is the task's
            configuration.
        write_upload: returns the body of an upload with one report. Its arguments are the report,
            in the form of draft 18, and the task's configuration.
        is_single: True: an upload is one report, and a refused report is answered by a problem
            document. False: an upload is a list, and the answer lists the refused reports.
        method: the HTTP method of an upload.
        upload_media: the media type of an upload.
        is_upload: tells whether a Content-Type is the media type of an upload.
        keys_media: the media type of the answer with a server's public keys.
    """

    in_id: bytes
    protocol: type[Prio3]
    input_share_info: Callable[[Role], bytes]
    input_share_aad: Callable[[bytes, TaskConfiguration, ReportMetadata, bytes], bytes]
    read_upload: Callable[[bytes, TaskConfiguration], tuple[Report, ...]]
    write_upload: Callable[[Report, TaskConfiguration], bytes]
    is_single: bool
    method: str
    upload_media: str
    is_upload: Callable[[str], bool]
    keys_media: str


VERSIONS = {
    18: Version(
        b"",
        Prio3,
        draft18.input_share_info,
        draft18.input_share_aad,
        draft18.read_upload,
        draft18.write_upload,
        False,
        "POST",
        media_type(UploadRequest),
        partial(is_media_type, message=UploadRequest),
        media_type(HpkeConfigList),
    ),
    9: Version(
        draft09.VERSION,
        Prio3Draft08,
        draft09.input_share_info,
        draft09.input_share_aad,
        draft09.read_upload,
        draft09.write_upload,
        True,
        "PUT",
        draft09.UPLOAD_MEDIA,
        draft09.UPLOAD_MEDIA.__eq__,
        draft09.KEYS_MEDIA,
    ),
}
