import { randomUUID } from 'node:crypto'
import { z } from 'zod'
import type { Config } from '../../config.ts'
import { checkStorage } from '../../control/quotas/storage.ts'
import { referencesTo } from '../../core/api/dependents.ts'
import { newId } from '../../core/api/ids.ts'
import { listTable, page, pageOf, pageOfArray, tagCondition, tagFilter, textFilter } from '../../core/api/lists.ts'
import { itemOperation, type Operation, operation } from '../../core/api/operation.ts'
import { tagOperations } from '../../core/api/tags.ts'
import { sql } from '../../core/db/sql.ts'
import { Directory, isReserved, listedBelow } from '../paths.ts'
import { changeFile, removeFile, replaceContent } from './change.ts'
import { createFile, createUploaded } from './create.ts'
import { download, downloadBase64, holdsDownloadToken } from './download.ts'
import { essenceOf, mediaTypeOf } from './media-type.ts'
import {
  ContentUpload,
  File,
  FileContent,
  FileDependent,
  FileInput,
  FilePatch,
  type FileRow,
  fileColumns,
  fileKind,
  TokenUpload,
  UploadForm,
  UploadJson,
  UploadToken,
  UploadTokenInput,
} from './model.ts'
import { requestedPath, requireWritable } from './place.ts'
import { isForm, receiveBytes, receiveForm, receiveJson } from './receive.ts'
import { setFileTags } from './store.ts'
import { issueToken, receiveByToken, uploadByToken } from './tokens.ts'

const tag = 'Files'
const FORM = 'multipart/form-data'

const present = (row: FileRow): object => fileKind.present(row)

const FileFilter = z.object({
  path_prefix: Directory.optional().describe('Files at or below this directory'),
  content_type: textFilter.describe('Exact type; its parameters do not count'),
  tags: tagFilter,
})

const listFiles = operation({
  id: 'listFiles',
  method: 'get',
  path: '/files',
  summary: 'List files',
  tag,
  action: 'files:GetFile',
  lists: fileKind,
  query: FileFilter,
  answers: { 200: pageOf(File) },
  // files_project serves the order, files_path a directory, files_tags tags.
  run: context => {
    const { path_prefix, content_type, tags } = context.query
    return listTable<FileRow>(context, {
      table: 'files',
      columns: fileColumns,
      path: true,
      tags: true,
      where: [
        listedBelow(sql.fragment`t.path`, path_prefix),
        // Texts of messages, which are below the reserved root, are in no list.
        path_prefix !== undefined &&
          isReserved(path_prefix) &&
          sql.fragment`not exists (select 1 from documents d where d.file_id = t.id and d.kind = 'message')`,
        content_type !== undefined &&
          sql.fragment`lower(trim(split_part(t.content_type, ';', 1))) = ${essenceOf(content_type)}`,
        tagCondition(sql.fragment`t.tags`, tags),
      ],
      present,
    })
  },
})

const createRecord = operation({
  id: 'createFile',
  method: 'post',
  path: '/files',
  summary: 'Create the record of a file without content',
  tag,
  action: 'files:CreateFile',
  creates: fileKind,
  pathOf: requestedPath,
  body: FileInput,
  answers: { 201: File },
  raises: ['NAME_CONFLICT', 'QUOTA_STORAGE_EXCEEDED'],
  async run({ body, project, services, tx }) {
    const id = newId('file')
    const filename = body.filename ?? body.name ?? id
    const row = await createFile(services, tx, {
      id,
      project_id: project as string,
      prefix: body.prefix,
      filename,
      content_type: await mediaTypeOf({ claimed: body.content_type, filename }),
      size: body.size ?? null,
      content: null,
      metadata: body.metadata,
      tags: body.tags,
    })
    return present(row)
  },
})

/** Reads an upload; a bound credential of a project that is full already is refused before. */
const receiving =
  (read: typeof receiveForm, maxBytes: (config: Config) => number): NonNullable<Operation['receive']> =>
  async request => {
    const { project, services } = request
    if (project !== null) await checkStorage(services, project, 0)
    return read(request, { fileId: newId('file'), projectId: project, maxBytes: maxBytes(services.config) })
  }

const uploadFile = operation({
  id: 'uploadFile',
  method: 'post',
  path: '/files/upload',
  summary: 'Upload a file',
  tag,
  action: 'files:UploadFile',
  creates: fileKind,
  pathOf: requestedPath,
  consumes: [FORM],
  receive: receiving(receiveForm, config => config.FILES_MAX_UPLOAD_BYTES),
  body: UploadForm,
  answers: { 201: File },
  raises: ['NAME_CONFLICT', 'QUOTA_STORAGE_EXCEEDED', 'REQUEST_REJECTED', 'FILE_STORAGE_MISCONFIGURED'],
  run: async ({ body, project, services, tx }) =>
    present(await createUploaded(services, tx, project as string, body.file, body)),
})

const uploadFileBase64 = operation({
  id: 'uploadFileBase64',
  method: 'post',
  path: '/files/upload/base64',
  summary: 'Upload a file as base64 in JSON',
  tag,
  action: 'files:UploadFile',
  creates: fileKind,
  pathOf: requestedPath,
  receive: receiving(receiveJson, config => config.FILES_INLINE_MAX_BYTES),
  body: UploadJson,
  answers: { 201: File },
  raises: ['NAME_CONFLICT', 'QUOTA_STORAGE_EXCEEDED', 'REQUEST_REJECTED', 'FILE_STORAGE_MISCONFIGURED'],
  run: async ({ body, project, services, tx }) =>
    present(await createUploaded(services, tx, project as string, body.content, body)),
})

const createPresignedUrl = operation({
  id: 'createPresignedUrl',
  method: 'post',
  path: '/files/presigned-url',
  summary: 'Make an address to upload one file to without a credential',
  tag,
  action: 'files:UploadFile',
  creates: fileKind,
  pathOf: requestedPath,
  body: UploadTokenInput,
  answers: { 201: UploadToken },
  secretAnswer: true,
  run: ({ body, project, services, tx, caller }) => issueToken(services, tx, caller, project as string, body),
})

const uploadFileWithToken = operation({
  id: 'uploadFileWithToken',
  method: 'post',
  path: '/files/upload/{token}',
  summary: 'Upload the file that a token was made for',
  tag,
  action: 'files:UploadFile',
  gate: 'public',
  creates: fileKind,
  consumes: [FORM, 'application/json'],
  receive: receiveByToken,
  body: TokenUpload,
  answers: { 201: File },
  raises: [
    'UPLOAD_TOKEN_NOT_FOUND',
    'UPLOAD_TOKEN_USED',
    'UPLOAD_TOKEN_EXPIRED',
    'NAME_CONFLICT',
    'QUOTA_STORAGE_EXCEEDED',
    'REQUEST_REJECTED',
    'FILE_STORAGE_MISCONFIGURED',
    'RESOURCE_NOT_FOUND',
    'IDEMPOTENCY_KEY_REUSED',
    'IDEMPOTENCY_IN_PROGRESS',
  ],
  internal: true,
  async run({ body, caller, params, services, tx, audit }) {
    audit.detail.via = 'upload_token'
    return present(await uploadByToken(services, tx, caller, params.token, body))
  },
})

const getFile = itemOperation(fileKind, {
  id: 'getFile',
  method: 'get',
  path: '/files/{file_id}',
  summary: 'Read the record of one file',
  tag,
  action: 'files:GetFile',
  answers: { 200: File },
  run: async ({ resource }) => present(resource),
})

const downloadFile = itemOperation(fileKind, {
  id: 'downloadFile',
  method: 'get',
  path: '/files/{file_id}/download',
  summary: 'Download the bytes of one file, or a range of them',
  description: 'Understands Range with one range, If-Range, and If-None-Match with the ETag of an earlier download.',
  tag,
  action: 'files:DownloadFile',
  query: z.object({ token: z.string().optional().describe('Instead of a credential, for this file alone') }),
  pass: ({ params, query, services }) => holdsDownloadToken(services, params.file_id, query.token),
  answers: { 200: null, 206: null, 304: null },
  produces: 'application/octet-stream',
  raises: ['FILE_STORAGE_MISCONFIGURED'],
  rejects: [416],
  internal: true,
  run: download,
})

const downloadFileBase64 = itemOperation(fileKind, {
  id: 'downloadFileBase64',
  method: 'get',
  path: '/files/{file_id}/download/base64',
  summary: 'Read the bytes of one file as base64 in JSON',
  tag,
  action: 'files:DownloadFile',
  answers: { 200: FileContent },
  raises: ['FILE_STORAGE_MISCONFIGURED'],
  rejects: [413],
  run: ({ resource, services }) => downloadBase64(services, resource),
})

const replaceFileContent = itemOperation(fileKind, {
  id: 'replaceFileContent',
  method: 'put',
  path: '/files/{file_id}/content',
  summary: 'Give a file its bytes, or other ones',
  tag,
  action: 'files:UploadFile',
  consumes: ['application/octet-stream', FORM],
  async receive(request) {
    const { req, resource, services } = request
    const { id, project_id } = resource as FileRow
    await checkStorage(services, project_id, 0)
    return (isForm(req) ? receiveForm : receiveBytes)(request, {
      fileId: id,
      // What the file has stays where it is until the new bytes are committed.
      objectId: `${id}.${randomUUID()}`,
      projectId: project_id,
      maxBytes: services.config.FILES_MAX_UPLOAD_BYTES,
    })
  },
  body: ContentUpload,
  answers: { 200: File },
  raises: ['FILE_HAS_DEPENDENTS', 'QUOTA_STORAGE_EXCEEDED', 'REQUEST_REJECTED', 'FILE_STORAGE_MISCONFIGURED'],
  run: async ({ resource, body, services, tx }) => present(await replaceContent(services, tx, resource.id, body.file)),
})

const updateFileMetadata = itemOperation(fileKind, {
  id: 'updateFileMetadata',
  method: 'patch',
  path: '/files/{file_id}/metadata',
  summary: 'Change the metadata of a file, move or rename it',
  tag,
  action: 'files:UpdateFileMetadata',
  body: FilePatch,
  answers: { 200: File },
  raises: ['NAME_CONFLICT', 'FILE_HAS_DEPENDENTS'],
  run: async ({ resource, body, services, tx, allow }) =>
    present(await changeFile(services, tx, resource.id, body, allow)),
})

const deleteFile = itemOperation(fileKind, {
  id: 'deleteFile',
  method: 'delete',
  path: '/files/{file_id}',
  summary: 'Delete a file that nothing refers to',
  tag,
  action: 'files:DeleteFile',
  answers: { 204: null },
  raises: ['FILE_HAS_DEPENDENTS'],
  run: ({ resource, services, tx }) => removeFile(services, tx, resource.id),
})

const listFileDependents = itemOperation(fileKind, {
  id: 'listFileDependents',
  method: 'get',
  path: '/files/{file_id}/dependents',
  summary: 'List what keeps a file from being deleted',
  tag,
  action: 'files:GetFile',
  paged: true,
  timed: false,
  answers: { 200: pageOf(FileDependent) },
  run: async context => {
    const references = referencesTo(fileKind, context.resource.id)
    if (!references) return pageOfArray([], context.page)
    return page<{ type: string; id: string }>(context, {
      columns: sql.fragment`r.type, r.id`,
      from: sql.fragment`${references} as r`,
      where: [],
      order: sql.fragment`r.type, r.id`,
      present: ({ type, id }) => ({ resource_type: type, resource_id: id }),
    })
  },
})

export const fileOperations: Operation[] = [
  listFiles,
  createRecord,
  uploadFile,
  uploadFileBase64,
  createPresignedUrl,
  uploadFileWithToken,
  getFile,
  downloadFile,
  downloadFileBase64,
  replaceFileContent,
  updateFileMetadata,
  deleteFile,
  listFileDependents,
  ...tagOperations(fileKind, {
    path: '/files/{file_id}',
    tag,
    read: 'files:GetFile',
    write: 'files:UpdateFileMetadata',
    setTags: (tx, row, tags) => {
      requireWritable(row)
      return setFileTags(tx, row.id, tags)
    },
  }),
]
