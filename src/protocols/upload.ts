import type { IncomingMessage } from 'node:http'
import { Readable } from 'node:stream'
import type { CallSurface } from '../core/invoke/call.ts'
import { callOperation, type MountRequest } from './call.ts'

/** Bytes of a client, with the name and the media type of their file. */
export type ClientFile = { bytes: Buffer; filename: string; content_type: string }

/** Uploads a file of a client and returns its ID. An upload with the same key is repeated without another file. */
export async function uploadFile(
  request: MountRequest,
  surface: Exclude<CallSurface, 'rest'>,
  { bytes, filename, content_type }: ClientFile,
  { project_id, directory, idempotencyKey }: { project_id: string; directory: string; idempotencyKey: string },
): Promise<string> {
  const form = new FormData()
  // Each file has a separate directory, because names may be equal. Files of end users are placed by their IDs.
  if (!request.caller.end_user) form.set('prefix', directory)
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
    idempotencyKey,
  })
  return (body as { id: string }).id
}
