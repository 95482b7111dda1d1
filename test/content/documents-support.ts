import { newId } from '#core/base/ids.ts'
import { rawQuery } from '#core/db/sql.ts'
import type { Client, TestApp } from '../support/app.ts'
import { storedEvents } from '../support/events.ts'
import { createdBy } from '../support/replies.ts'

/** Rows of a statement, on the app's own database. */
export const rowsOf = async (app: TestApp, text: string, values: unknown[] = []): Promise<readonly any[]> =>
  (await app.pool.any(rawQuery(text, values))) as readonly any[]

/** Statements that a process sends when they are due, independent of requests: the uses of keys, and which projects have quotas. */
const DUE = /last_used_at|select distinct project_id from quotas/

/** The statements that a piece of work sends. */
export async function statementsOf(app: TestApp, work: () => Promise<unknown>): Promise<string[]> {
  const from = app.statements.length
  await work()
  return app.statements.slice(from).filter(text => !DUE.test(text))
}

/** Names and data of the events about a resource, oldest first. */
export const eventsOf = async (app: TestApp, id: string): Promise<{ name: string; data: any }[]> =>
  (await storedEvents(app.pool, { resource: id })).map(({ name, data }) => ({ name, data }))

export const problemCodes = (reply: { body: any }): string[] =>
  reply.body.error.meta.problems.map((problem: { code: string }) => problem.code)

export async function makeDocument(key: Client, body: object = {}): Promise<any> {
  return createdBy(key, '/documents', { content: 'alpha beta', ...body })
}

/** A document that came from a file of another type, with a text that was extracted from it. */
export async function plantDocument(
  app: TestApp,
  projectId: string,
  fields: {
    content_type?: string
    status?: string
    text?: string | null
    path?: string
    kind?: 'document' | 'message'
  } = {},
): Promise<string> {
  const { content_type = 'application/pdf', status = 'ready', text = 'extracted', kind = 'document' } = fields
  const [fileId, id] = app.inCellOf(projectId, () => [newId('file'), newId('doc')])
  const path = fields.path ?? `/${id}.bin`
  await rowsOf(
    app,
    `with f as (
      insert into files (id, project_id, path, filename, content_type, size, sha256, storage, location)
      values ($1, $2, $3, 'planted', $4, 3, '\\x00', 'postgres', gen_random_uuid()::text)
    ), d as (
      insert into documents (id, project_id, file_id, kind, status, text_version, path, filename, content_type, size,
        chunk_strategy, chunk_count)
      values ($5, $2, $1, $6, $7, case when $8::text is null then null else 1 end, $3, 'planted', $4, 3, 'page', 0)
    ), v as (
      insert into document_versions (document_id, version, path, chunk_strategy, text_version)
      values ($5, 1, $3, 'page', case when $8::text is null then null else 1 end)
    )
    insert into document_texts select $5, $8 where $8::text is not null returning document_id`,
    [fileId, projectId, path, content_type, id, kind, status, text],
  )
  return id
}
