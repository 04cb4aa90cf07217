"""The drafts whose reports a task may accept: a table with all differences of their reports."""

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
    """The form of the reports of one draft.

    Attributes:
        in_id: the bytes that are hashed before a task's configuration to get the task's id.
        protocol: the class of the VDAF.
        input_share_info: a function that returns the purpose of an input share for a server's role.
        input_share_aad: a function that returns the associated data of a sealed input share, from
            the task's id and configuration, the metadata and the public share.
        read_upload: a function that returns the reports of an upload in the form of draft 18, or
            raises `MalformedError`.
        write_upload: a function that returns the body of an upload, for a report in the form of
            draft 18.
        is_single: whether an upload is one report, whose answer is a problem or empty.
        method: the HTTP method of an upload.
        upload_media: the media type of an upload.
        is_upload: a function that tells whether a Content-Type is that of an upload.
        keys_media: the media type of a server's key configurations.
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
