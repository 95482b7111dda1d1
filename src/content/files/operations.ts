import { randomUUID } from 'node:crypto'
import { z } from 'zod'
import { checkStorage } from '#control/quotas/storage.ts'
import { referencesTo } from '#core/api/dependents.ts'
import { columnFilter, tagsFilter } from '#core/api/filters.ts'
import { pageOf, pageOfArray, pageResult, textFilter } from '#core/api/lists.ts'
import { itemOperation, type Operation, operation } from '#core/api/operation.ts'
import { tagOperations } from '#core/api/tags.ts'
import type { Config } from '#core/base/config.ts'
import type { ErrorCode } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import { sql } from '#core/db/sql.ts'
import type { Caller } from '#core/iam/caller.ts'
import { resource } from '#core/resources/resource.ts'
import { Directory, isReserved, listedBelow } from '../paths.ts'
import {
  actorFilePath,
  checkActorUpload,
  createActorFile,
  fileAccess,
  uploadAccess,
  uploadLimits,
} from './actor-files.ts'
import { changeFile, checkRemoval, writeFileContent } from './change.ts'
import { createFile, createUploaded } from './create.ts'
import { downloadBase64, hasDownloadToken, sendFile } from './download.ts'
import { requestedPath, requireWritable } from './file-path.ts'
import { essenceOf, mediaTypeOf } from './media-type.ts'
import {
  ContentUpload,
  File,
  FileContent,
  FileDependent,
  FileInput,
  FilePatch,
  type FileRow,
  fileKind,
  TokenUpload,
  UploadForm,
  UploadJson,
  UploadToken,
  UploadTokenInput,
} from './model.ts'
import { declaredLength, isForm, receiveBytes, receiveForm, receiveJson } from './receive-upload.ts'
import { issueToken, receiveByToken, uploadByToken } from './tokens.ts'
import { Upload } from './upload.ts'

const tag = 'Files'
const FORM = 'multipart/form-data'

const files = resource(fileKind, { path: '/files', tag })

/** Returns a receiver of uploads that checks the storage quota of a bound credential's project before the body. */
const receiveWith =
  (
    read: typeof receiveForm,
    maxBytes: (config: Config, caller: Caller | null) => number,
  ): NonNullable<Operation['receive']> =>
  async request => {
    const { project, services, caller, req } = request
    const limit = maxBytes(services.config, caller)
    // Before the body is read: beyond its limit an end user sends no bytes.
    if (caller?.end_user)
      await uploadLimits.only()?.(services, caller.end_user, Math.min(declaredLength(req) ?? limit, limit))
    if (project !== null) await checkStorage(services, project, 0)
    return read(request, { fileId: newId(fileKind.prefix), projectId: project, maxBytes: limit })
  }

/** Maximum size of an upload by a form. */
const formLimit = (config: Config, caller: Caller | null): number =>
  caller?.end_user
    ? Math.min(config.ACTOR_FILE_MAX_BYTES, config.FILES_MAX_UPLOAD_BYTES)
    : config.FILES_MAX_UPLOAD_BYTES

const uploadRaises: ErrorCode[] = [
  'NAME_CONFLICT',
  'QUOTA_STORAGE_EXCEEDED',
  'REQUEST_REJECTED',
  'FILE_STORAGE_MISCONFIGURED',
]

const createPresignedUrl = operation({
  id: 'createPresignedUrl',
  command: ['files', 'presign'],
  method: 'post',
  path: '/files/presigned-url',
  summary: 'Create an upload URL',
  description: 'Returns a URL with a single-use, expiring token. Uploading to it requires no other credential.',
  tag,
  action: 'files:UploadFile',
  creates: fileKind,
  pathOf: requestedPath,
  body: UploadTokenInput,
  answers: { 201: UploadToken },
  secretAnswer: true,
  run: ({ body, project, services, tx, caller }) => issueToken(services, tx, caller, project as string, body),
})

const downloadFile = itemOperation(fileKind, {
  id: 'downloadFile',
  method: 'get',
  path: '/files/{file_id}/download',
  summary: 'Download a file',
  description: 'Supports Range with a single range, If-Range, and If-None-Match with the ETag of an earlier download.',
  tag,
  action: 'files:DownloadFile',
  endUser: fileAccess({ bytes: true }),
  query: z.object({ token: z.string().optional().describe('Download token for this file, in place of a credential') }),
  pass: ({ params, query, services }) => hasDownloadToken(services, params.file_id, query.token),
  answers: { 200: null, 206: null, 304: null },
  produces: 'application/octet-stream',
  raises: ['FILE_STORAGE_MISCONFIGURED'],
  rejects: [416],
  internal: true,
  run: sendFile,
})

const downloadFileBase64 = itemOperation(fileKind, {
  id: 'downloadFileBase64',
  command: ['files', 'download-base64'],
  method: 'get',
  path: '/files/{file_id}/download/base64',
  summary: 'Get file content as base64',
  description: 'For small files and for clients that can read only JSON. Use the download endpoint for larger files.',
  tag,
  action: 'files:DownloadFile',
  answers: { 200: FileContent },
  raises: ['FILE_STORAGE_MISCONFIGURED'],
  rejects: [413],
  run: ({ resource, services }) => downloadBase64(services, resource),
})

const replaceFileContent = itemOperation(fileKind, {
  id: 'replaceFileContent',
  command: ['files', 'replace-content'],
  method: 'put',
  path: '/files/{file_id}/content',
  summary: 'Replace file content',
  description:
    'Stores the first content of the file or replaces it. The ID is unchanged; size, content type and checksum are updated. Documents created from the file change only when they are ingested again.',
  tag,
  action: 'files:UploadFile',
  consumes: ['application/octet-stream', FORM],
  async receive(request) {
    const { req, resource, services } = request
    const { id, project_id } = resource as FileRow
    await checkStorage(services, project_id, 0)
    return (isForm(req) ? receiveForm : receiveBytes)(request, {
      fileId: id,
      // A new object: the current bytes stay until the new ones are committed.
      objectId: `${id}.${randomUUID()}`,
      projectId: project_id,
      maxBytes: services.config.FILES_MAX_UPLOAD_BYTES,
    })
  },
  body: ContentUpload,
  answers: { 200: File },
  raises: ['FILE_HAS_DEPENDENTS', 'QUOTA_STORAGE_EXCEEDED', 'REQUEST_REJECTED', 'FILE_STORAGE_MISCONFIGURED'],
  run: async ({ resource, body, services, tx }) =>
    fileKind.present(await writeFileContent(services, tx, resource.id, body.file)),
})

const updateFileMetadata = itemOperation(fileKind, {
  id: 'updateFileMetadata',
  command: ['files', 'update-metadata'],
  method: 'patch',
  path: '/files/{file_id}/metadata',
  summary: 'Update file metadata, directory or name',
  description: 'Moving or renaming the file requires permission for both the old and the new path.',
  tag,
  action: 'files:UpdateFileMetadata',
  body: FilePatch,
  answers: { 200: File },
  raises: ['NAME_CONFLICT', 'FILE_HAS_DEPENDENTS'],
  run: async ({ resource, body, services, tx, allow }) =>
    fileKind.present(await changeFile(services, tx, resource.id, body, allow)),
})

const listFileDependents = itemOperation(fileKind, {
  id: 'listFileDependents',
  method: 'get',
  path: '/files/{file_id}/dependents',
  summary: 'List file dependents',
  description: 'Resources that reference the file. The file cannot be deleted while there are any.',
  tag,
  action: 'files:GetFile',
  paged: true,
  timed: false,
  answers: { 200: pageOf(FileDependent) },
  run: async context => {
    const references = referencesTo(fileKind, context.resource.id)
    if (!references) return pageOfArray([], context.page)
    return pageResult<{ type: string; id: string }>(context, {
      columns: sql.fragment`r.type, r.id`,
      from: sql.fragment`${references} as r`,
      order: sql.fragment`r.type, r.id`,
      present: ({ type, id }) => ({ resource_type: type, resource_id: id }),
    })
  },
})

export const fileOperations: Operation[] = [
  // Indexes: files_project for the order, files_path for a directory, files_tags for tags.
  files.list({
    action: 'files:GetFile',
    filters: {
      path_prefix: columnFilter(Directory.optional().describe('Files at or below this directory'), path =>
        // Message texts are below the reserved root and are never listed.
        isReserved(path)
          ? sql.fragment`not exists (select 1 from documents d where d.file_id = t.id and d.kind = 'message')`
          : null,
      ),
      content_type: columnFilter(
        textFilter.describe('Exact media type, ignoring parameters'),
        type => sql.fragment`lower(trim(split_part(t.content_type, ';', 1))) = ${essenceOf(type)}`,
      ),
      tags: tagsFilter,
    },
    where: ({ query }) => [listedBelow(sql.fragment`t.path`, query.path_prefix)],
  }),
  files.create({
    summary: 'Create a file without content',
    description: 'Upload the content later with PUT /files/{file_id}/content.',
    pathOf: requestedPath,
    body: FileInput,
    raises: ['NAME_CONFLICT', 'QUOTA_STORAGE_EXCEEDED'],
    async make({ body, project, services, tx }) {
      const id = newId(fileKind.prefix)
      const filename = body.filename ?? body.name ?? id
      return createFile(services, tx, {
        id,
        project_id: project,
        prefix: body.prefix,
        filename,
        content_type: await mediaTypeOf({ claimed: body.content_type, filename }),
        size: body.size ?? null,
        content: null,
        metadata: body.metadata,
        tags: body.tags,
      })
    },
  }),
  files.create({
    id: 'uploadFile',
    path: '/files/upload',
    summary: 'Upload a file',
    description:
      'The form is streamed. The response is sent when the content and the record are stored. An end user uploads images, PDFs and texts of at most ACTOR_FILE_MAX_BYTES for its chats; the name is kept, the path follows from the IDs.',
    action: 'files:UploadFile',
    endUser: uploadAccess,
    pathOf: (body, _db, _project, { end_user }) =>
      end_user && body.file instanceof Upload
        ? actorFilePath(end_user.actor_id, body.file.fileId)
        : requestedPath(body),
    consumes: [FORM],
    receive: receiveWith(receiveForm, formLimit),
    body: UploadForm,
    raises: [...uploadRaises, 'ACTOR_LIMIT_EXCEEDED', 'MEDIA_NOT_ACCEPTED'],
    prepare: async ({ body, caller, project, services, request }) =>
      caller.end_user
        ? checkActorUpload(services, { project: project as string, upload: body.file }, request.closed)
        : null,
    make: ({ body, caller, prepared, project, services, tx }) =>
      caller.end_user
        ? createActorFile(services, tx, {
            project,
            actorId: caller.end_user.actor_id,
            upload: body.file,
            contentType: prepared as unknown as string,
          })
        : createUploaded(services, tx, project, body.file, body),
  }),
  files.create({
    id: 'uploadFileBase64',
    command: ['files', 'upload-base64'],
    path: '/files/upload/base64',
    summary: 'Upload a file as base64 in JSON',
    description:
      'For small files and for clients that can send only JSON. Use a multipart upload or an upload URL for larger files.',
    action: 'files:UploadFile',
    pathOf: requestedPath,
    receive: receiveWith(receiveJson, config => config.FILES_INLINE_MAX_BYTES),
    body: UploadJson,
    raises: uploadRaises,
    make: ({ body, project, services, tx }) => createUploaded(services, tx, project, body.content, body),
  }),
  createPresignedUrl,
  files.create({
    id: 'uploadFileWithToken',
    path: '/files/upload/{token}',
    summary: 'Upload a file with an upload token',
    description:
      'The token in the path is the credential and can be used once. The directory, and the filename if one was set, are fixed by the token.',
    action: 'files:UploadFile',
    gate: 'public',
    consumes: [FORM, 'application/json'],
    receive: receiveByToken,
    bodyTimeMs: config => config.UPLOAD_TIMEOUT_MS,
    body: TokenUpload,
    raises: [
      ...uploadRaises,
      'UPLOAD_TOKEN_NOT_FOUND',
      'UPLOAD_TOKEN_USED',
      'UPLOAD_TOKEN_EXPIRED',
      'RESOURCE_NOT_FOUND',
      'IDEMPOTENCY_KEY_REUSED',
      'IDEMPOTENCY_IN_PROGRESS',
    ],
    internal: true,
    make({ body, caller, params, services, tx, audit }) {
      audit.detail.via = 'upload_token'
      return uploadByToken(services, tx, caller, params.token, body)
    },
  }),
  files.get({ summary: 'Get a file', endUser: fileAccess() }),
  downloadFile,
  downloadFileBase64,
  replaceFileContent,
  updateFileMetadata,
  files.remove({
    summary: 'Delete a file',
    description: 'Refused while other resources reference the file. The content is removed in the background.',
    raises: ['FILE_HAS_DEPENDENTS'],
    check: (row, { tx }) => checkRemoval(tx, row),
  }),
  listFileDependents,
  ...tagOperations(fileKind, {
    path: '/files/{file_id}',
    tag,
    read: 'files:GetFile',
    write: 'files:UpdateFileMetadata',
    setTags(tx, row, tags) {
      requireWritable(row)
      return fileKind.update(tx, row.id, { tags })
    },
  }),
]
