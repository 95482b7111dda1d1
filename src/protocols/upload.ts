import { randomUUID } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import { Readable } from 'node:stream'
import { mediaProblem, raiseNotAccepted } from '#content/files/media.ts'
import { couldAllowIn, raiseForbidden } from '#core/api/access.ts'
import { AppError } from '#core/base/errors.ts'
import { callOperation, type MountRequest, type MountSurface } from './call.ts'

/** Bytes of a client, with the name and the media type of their file. */
export type ClientFile = { bytes: Buffer; filename: string; content_type: string }

/**
 * Uploads a file of a client and returns its ID. An upload that repeats an earlier one with its key makes no other file;
 * a concurrent one does, because it cannot wait: only one of the messages with the file is stored.
 * @throws MEDIA_NOT_ACCEPTED for a content that messages may not contain, before it is stored; errors of an upload
 */
export async function uploadClientFile(
  request: MountRequest,
  surface: MountSurface,
  file: ClientFile,
  target: { project_id: string; directory: string; key: string },
): Promise<string> {
  const problem = await mediaProblem(file.content_type, [file.bytes])
  if (problem) raiseNotAccepted(null, problem)
  try {
    return await upload(request, surface, file, target)
  } catch (error) {
    if (!(error instanceof AppError) || error.code !== 'IDEMPOTENCY_IN_PROGRESS') throw error
    return upload(request, surface, file, { ...target, key: randomUUID() })
  }
}

async function upload(
  request: MountRequest,
  surface: MountSurface,
  { bytes, filename, content_type }: ClientFile,
  { project_id, directory, key }: { project_id: string; directory: string; key: string },
): Promise<string> {
  const form = new FormData()
  // Each file has a separate directory, because names may be equal. Files of end users are placed by their IDs.
  if (!request.caller.end_user) form.set('prefix', `${directory}/${key}`)
  form.set('file', new Blob([new Uint8Array(bytes)], { type: content_type }), filename)
  const encoded = new Response(form)
  const headers = {
    'content-type': encoded.headers.get('content-type') as string,
    'content-length': String(bytes.length),
  }
  const source = Readable.fromWeb(encoded.body as never)
  const { body } = await callOperation(request, surface, 'uploadFile', {
    query: request.caller.project_id === null ? { project_id } : {},
    upload: Object.assign(source, { headers, complete: true }) as unknown as IncomingMessage,
    idempotencyKey: key,
  })
  return (body as { id: string }).id
}

/** Requires that a caller could send the file of a URL, before it is fetched. @throws FORBIDDEN */
export function requireFetchable({ caller }: MountRequest, project_id: string): void {
  for (const action of ['sessions:SendSessionMessage', 'files:UploadFile'])
    if (!couldAllowIn(caller, action, project_id)) raiseForbidden(caller, action)
}
