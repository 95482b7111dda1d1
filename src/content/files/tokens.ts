import { randomBytes } from 'node:crypto'
import type { z } from 'zod'
import { checkStorage } from '#control/quotas/storage.ts'
import { couldEverAllow, isAllowed } from '#core/api/access.ts'
import type { StreamedBody, StreamedRequest } from '#core/api/operation.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { newId, withCell } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { type Caller, principalRecord } from '#core/iam/caller.ts'
import { sha256Of } from '#core/secrets/digest.ts'
import type { Tx } from '#core/writes/writer.ts'
import { callerForPrincipal } from '#identity/principals/principals.ts'
import { createUploaded, uploadedName } from './create.ts'
import { filePlacement } from './file-path.ts'
import { type FileRow, fileKind, type TokenUpload, type UploadTokenInput } from './model.ts'
import { isForm, receiveForm, receiveJson } from './receive-upload.ts'
import { consumeUploadToken, findUploadToken, insertUploadToken, type UploadTokenRow } from './store.ts'

const ACTION = 'files:UploadFile'

/** Issues an upload token and its URL. Only the hash of the token is stored. */
export async function issueToken(
  services: Services,
  tx: Tx,
  caller: Caller,
  projectId: string,
  input: z.output<typeof UploadTokenInput>,
): Promise<{ upload_token: string; upload_url: string; expires_at: string }> {
  const { config, clock } = services
  const { max_bytes = null, filename = null } = input
  if (max_bytes !== null && max_bytes > config.FILES_MAX_UPLOAD_BYTES)
    raiseInvalid({
      code: 'TOO_BIG',
      path: 'max_bytes',
      message: `must be at most ${config.FILES_MAX_UPLOAD_BYTES}`,
    })
  if (filename !== null) filePlacement(input.prefix, filename)
  const token = `upt_${withCell(randomBytes(32).toString('base64url'))}`
  const seconds = input.expires_in_seconds ?? config.UPLOAD_TOKEN_TTL_SECONDS
  const expires_at = new Date(clock.now().getTime() + seconds * 1000).toISOString()
  await insertUploadToken(tx, sha256Of(token), {
    project_id: projectId,
    principal: principalRecord(caller),
    prefix: input.prefix ?? null,
    filename,
    content_type: input.content_type ?? null,
    max_bytes,
    expires_at,
  })
  return { upload_token: token, upload_url: `${config.BASE_URL}/api/v1/files/upload/${token}`, expires_at }
}

const unknownToken = (): never => raise('UPLOAD_TOKEN_NOT_FOUND')

/**
 * Returns the issuer of a token with its current permissions. Raises UPLOAD_TOKEN_NOT_FOUND if they can no longer allow
 * an upload.
 */
async function requireIssuer(services: Services, row: UploadTokenRow): Promise<Caller> {
  const caller = await callerForPrincipal(services, row.principal, row.project_id)
  return caller && couldEverAllow(caller, ACTION) ? caller : unknownToken()
}

/** Reads an upload by token with the permissions of the issuer. Checks token and quota before the body is read. */
export async function receiveByToken(request: StreamedRequest): Promise<StreamedBody> {
  const { services, params, req } = request
  const { config, clock, pool } = services
  const row = (await findUploadToken(pool, sha256Of(params.token))) ?? unknownToken()
  if (row.used_at !== null) raise('UPLOAD_TOKEN_USED')
  if (new Date(row.expires_at) <= clock.now()) raise('UPLOAD_TOKEN_EXPIRED')
  await requireIssuer(services, row)
  await checkStorage(services, row.project_id, 0)
  const form = isForm(req)
  const received = await (form ? receiveForm : receiveJson)(request, {
    fileId: newId(fileKind.prefix),
    projectId: row.project_id,
    maxBytes: Math.min(
      form ? config.FILES_MAX_UPLOAD_BYTES : config.FILES_INLINE_MAX_BYTES,
      row.max_bytes ?? Number.POSITIVE_INFINITY,
    ),
  })
  try {
    // Checked again: the issuer's permissions may have changed while the body was read.
    return { ...received, as: { caller: await requireIssuer(services, row), project: row.project_id } }
  } catch (error) {
    await received.discard()
    throw error
  }
}

/** Consumes a token and creates the uploaded file. Raises UPLOAD_TOKEN_USED, UPLOAD_TOKEN_NOT_FOUND. */
export async function uploadByToken(
  services: Services,
  tx: Tx,
  caller: Caller,
  token: string,
  body: z.output<typeof TokenUpload>,
): Promise<FileRow> {
  const upload = body.file ?? body.content
  if (!upload)
    return raiseInvalid({ code: 'REQUIRED', path: 'file', message: 'is required, or content in a JSON body' })
  const hash = sha256Of(token)
  const row = await consumeUploadToken(tx, hash, services.clock.now())
  if (!row) return raise((await findUploadToken(tx, hash)) ? 'UPLOAD_TOKEN_USED' : 'UPLOAD_TOKEN_NOT_FOUND')
  const description = {
    prefix: row.prefix,
    filename: row.filename ?? body.filename,
    content_type: body.content_type,
    expected_type: row.content_type,
    metadata: body.metadata,
    tags: body.tags,
  }
  const { path } = filePlacement(description.prefix, uploadedName(description, upload))
  const target = { kind: fileKind, project_id: row.project_id, path, tags: body.tags ?? {}, requestTags: body.tags }
  if (!isAllowed(caller, ACTION, target)) return unknownToken()
  return createUploaded(services, tx, row.project_id, upload, description)
}
