"""The drafts whose reports a task may take: a row each, with all that differs in their reports."""

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
    """What clients of a draft send.

    Attributes:
        in_id: the bytes in front of the configuration, where the id of a task is its digest.
        protocol: the VDAF.
        input_share_info: returns the purpose of an input share that is sealed to a server.
        input_share_aad: returns the associated data of a sealed input share, by the task's id and
            configuration, the metadata and the public share.
        read_upload: returns the reports of an upload as draft 18 has them, or raises
            `MalformedError`.
        write_upload: returns the upload of a report, which is given as draft 18 has it.
        is_single: whether an upload is one report, and its answer a problem or nothing.
        method: the method of an upload.
        upload_media: the media type of an upload.
        is_upload: tells whether a Content-Type is the one of an upload.
        keys_media: the media type of the keys of a server.
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
