import { randomUUID } from 'node:crypto'
import { raiseInvalid } from '../../core/api/errors.ts'
import { type Operation, operations } from '../../core/api/operation.ts'
import { rejectBody } from '../../core/http/body.ts'
import { sendJson } from './response.ts'
import { invokeOperation, type OpenAiSession } from './session.ts'

type FileRecord = {
  id: string
  filename: string
  size: number | null
  created_at: string
  metadata: Record<string, unknown> | null
}

const presentFile = ({ id, filename, size, created_at, metadata }: FileRecord) => ({
  id,
  object: 'file',
  bytes: size ?? 0,
  created_at: Math.floor(Date.parse(created_at) / 1000),
  filename,
  purpose: typeof metadata?.purpose === 'string' ? metadata.purpose : 'user_data',
  status: 'processed',
})

/** The upload of a form with `file` and `purpose`; each file has a separate directory, because names may be equal. */
function uploadOperation(): Operation {
  const upload = operations.get('uploadFile')
  const receive = upload.receive as NonNullable<Operation['receive']>
  return {
    ...upload,
    async receive(request) {
      const received = await receive(request)
      const { file, purpose } = received.body
      const metadata = typeof purpose === 'string' ? { purpose: purpose.slice(0, 64) } : {}
      return { ...received, body: { ...(file !== undefined && { file }), prefix: `/openai/${randomUUID()}`, metadata } }
    },
  }
}

/** Handles POST /files. */
export async function uploadFile(session: OpenAiSession): Promise<void> {
  const { body } = await invokeOperation(session, uploadOperation(), {})
  sendJson(session, presentFile(body as FileRecord))
}

const MAX_LISTED = 100

/** Handles GET /files: the newest files. */
export async function listFiles(session: OpenAiSession): Promise<void> {
  const { limit = MAX_LISTED } = session.exchange.req.query
  const count = Number(limit)
  if (!Number.isInteger(count) || count < 1)
    raiseInvalid({ code: 'INVALID_VALUE', path: 'limit', message: 'must be a positive integer' })
  const query = { limit: String(Math.min(count, MAX_LISTED)) }
  const { body } = await invokeOperation(session, operations.get('listFiles'), { query })
  const { data, total } = body as { data: FileRecord[]; total: number }
  sendJson(session, {
    object: 'list',
    data: data.map(presentFile),
    has_more: total > data.length,
    first_id: data.at(0)?.id ?? null,
    last_id: data.at(-1)?.id ?? null,
  })
}

/** Handles GET /files/{id}. */
export async function getFile(session: OpenAiSession, [, file_id]: RegExpExecArray): Promise<void> {
  const { body } = await invokeOperation(session, operations.get('getFile'), { params: { file_id } })
  sendJson(session, presentFile(body as FileRecord))
}

/** Handles DELETE /files/{id}. */
export async function deleteFile(session: OpenAiSession, [, file_id]: RegExpExecArray): Promise<void> {
  await invokeOperation(session, operations.get('deleteFile'), { params: { file_id } })
  sendJson(session, { id: file_id, object: 'file', deleted: true })
}

/** Handles GET /files/{id}/content. */
export async function downloadFile(session: OpenAiSession, [, file_id]: RegExpExecArray): Promise<void> {
  const { exchange } = session
  const { status, headers, stream, contentType } = await invokeOperation(session, operations.get('downloadFile'), {
    params: { file_id },
  })
  for (const [name, value] of Object.entries(headers ?? {})) exchange.res.setHeader(name, value)
  if (stream) return exchange.stream(status, contentType ?? 'application/octet-stream', stream)
  rejectBody(exchange.req, exchange.res)
  exchange.end(status, null)
}
