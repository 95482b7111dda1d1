import { randomUUID } from 'node:crypto'
import { z } from 'zod'
import { fileKind } from '#content/files/model.ts'
import { listedBelow } from '#content/paths.ts'
import { type Operation, operation, operations } from '#core/api/operation.ts'
import { raise } from '#core/base/errors.ts'
import { allOf, sql } from '#core/db/sql.ts'
import { rejectBody } from '#core/http/body.ts'
import { sendJson } from './response.ts'
import { invokeOperation, type OpenAiSession } from './session.ts'

const FileRecord = z.object({
  id: z.string(),
  filename: z.string(),
  size: z.int().nullable(),
  created_at: z.string(),
  metadata: z.record(z.string(), z.unknown()).nullable(),
})
type FileRecord = z.output<typeof FileRecord>
const fileRow = sql.type(FileRecord)

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

const MAX_LISTED = 1000

/** Lists files after another file. By files_project; with one row beyond the page, which shows that there are more. */
const listOperation = operation({
  id: 'listOpenAiFiles',
  method: 'get',
  path: '/openai/v1/files',
  summary: 'List files',
  tag: 'OpenAI',
  action: 'files:GetFile',
  lists: fileKind,
  paged: false,
  query: z.object({
    after: z.string().max(255).optional(),
    limit: z
      .string()
      .regex(/^[1-9]\d{0,8}$/, 'must be a positive integer')
      .transform(text => Math.min(Number(text), MAX_LISTED))
      .default(100),
    order: z.enum(['asc', 'desc']).default('desc'),
  }),
  answers: { 200: null },
  async run({ db, query: { after, limit, order }, visible }) {
    const [project, id, tags, path] = ['project_id', 'id', 'tags', 'path'].map(
      name => sql.fragment`${sql.identifier(['t', name])}`,
    )
    const own = allOf([visible({ project, id, tags, path }).rows, listedBelow(path, undefined)])
    const direction = order === 'asc' ? sql.fragment`asc` : sql.fragment`desc`
    const select = sql.fragment`
      select t.id, t.filename, t.size, t.created_at, jsonb_build_object('purpose', t.metadata -> 'purpose') as metadata
      from files t where ${own}`
    const last = after === undefined ? null : await db.maybeOne(fileRow`${select} and t.id = ${after}`)
    if (after !== undefined && !last) raise('RESOURCE_NOT_FOUND', { meta: { id: after, param: 'after' } })
    const following =
      last &&
      sql.fragment`and (t.created_at, t.id) ${order === 'asc' ? sql.fragment`>` : sql.fragment`<`}
        (${last.created_at}::timestamptz, ${last.id})`
    const files = await db.any(fileRow`${select} ${following ?? sql.fragment``}
      order by t.created_at ${direction}, t.id ${direction} limit ${limit + 1}`)
    return { files: files.slice(0, limit), has_more: files.length > limit }
  },
})

/** Handles GET /files. */
export async function listFiles(session: OpenAiSession): Promise<void> {
  const { after, limit, order } = session.exchange.req.query
  const query = {
    ...(after !== undefined && { after }),
    ...(limit !== undefined && { limit }),
    ...(order !== undefined && { order }),
  }
  const { body } = await invokeOperation(session, listOperation, { query })
  const { files, has_more } = body as { files: FileRecord[]; has_more: boolean }
  sendJson(session, {
    object: 'list',
    data: files.map(presentFile),
    has_more,
    first_id: files.at(0)?.id ?? null,
    last_id: files.at(-1)?.id ?? null,
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
