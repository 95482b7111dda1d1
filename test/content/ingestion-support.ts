import assert from 'node:assert/strict'
import { ingestionWork } from '#content/ingestion/ingest.ts'
import { sql } from '#core/db/sql.ts'
import { type Client, eventually, type Reply, type TestApp } from '../support/app.ts'
import { storedEvents } from '../support/events.ts'
import { createdBy } from '../support/replies.ts'

let counter = 0

/** Uploads a file and answers its id. */
export async function upload(
  key: Client,
  content: string | Buffer,
  fields: { content_type?: string; filename?: string; prefix?: string; project_id?: string; metadata?: object } = {},
): Promise<string> {
  return (
    await createdBy(key, '/files/upload/base64', {
      content: Buffer.from(content as string).toString('base64'),
      filename: `file ${++counter}.txt`,
      content_type: 'text/plain',
      ...fields,
    })
  ).id
}

/** The answer refuses with a status and a code. */
export function refuses({ status, body }: Reply, expected: number, code: string, problem?: string): void {
  assert.deepEqual([status, body.error?.code], [expected, code], JSON.stringify(body))
  if (problem !== undefined) assert.equal(body.error.meta.problems[0].code, problem)
}

/** Waits until a document's ingestion is over, by its status. */
export const settledStatus = (key: Client, id: string) =>
  eventually(
    async () => {
      const { body } = await key.get(`/documents/${id}/status`)
      return body.status === 'pending' || body.status === 'processing' ? null : body
    },
    { every: 50, what: `end of ${id}` },
  )

/** Ingests a file, waits for its end, and answers the document. */
export async function ingested(key: Client, fileId: string, fields: object = {}): Promise<any> {
  const { status, body } = await key.post('/documents/ingest', { file_id: fileId, ...fields })
  assert.equal(status, 202, JSON.stringify(body))
  await settledStatus(key, body.id)
  return (await key.get(`/documents/${body.id}`)).body
}

/** Events of a document in their order. */
export const eventsOf = (app: TestApp, id: string) => storedEvents(app.pool, { resource: id })

/** The chunks of a document as they are stored. */
export const chunksOf = async (app: TestApp, id: string) =>
  (await app.pool.any(sql.unsafe`
    select chunk_index, page_number, char_start, char_end, content from document_chunks
    where document_id = ${id} order by chunk_index`)) as readonly {
    chunk_index: number
    page_number: number | null
    char_start: number
    char_end: number
    content: string
  }[]

/** Changes when a document's attempt was due or claimed, as if time had passed. */
export const age = (app: TestApp, documentId: string, seconds: number) =>
  app.pool.query(sql.unsafe`
    update ingestion_attempts set due_at = now() - ${seconds} * interval '1 s' where document_id = ${documentId}`)

/** Changes the times of a running attempt and its message, as if its worker had been silent. */
export const silence = (app: TestApp, documentId: string, seconds: number) =>
  app.pool.query(sql.unsafe`
    with by as (select ${seconds} * interval '1 s' as long),
    running as (
      update ingestion_attempts set due_at = due_at - long from by
      where document_id = ${documentId} and state = 'running' returning id)
    update pgboss.job_common set start_after = start_after - long, started_on = started_on - long,
      heartbeat_on = heartbeat_on - long
    from by, running where name = ${ingestionWork.name} and data ->> 'work_id' = running.id`)

export const sweep = ({ services }: TestApp): Promise<void> =>
  ingestionWork.sweep(services, new AbortController().signal)
