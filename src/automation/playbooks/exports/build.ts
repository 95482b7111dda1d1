import { Readable } from 'node:stream'
import { setImmediate } from 'node:timers/promises'
import { z } from 'zod'
import { caseKind } from '#automation/cases/model.ts'
import { appendTimeline, byCaller } from '#automation/cases/timeline.ts'
import { createFile } from '#content/files/create.ts'
import { fileKind } from '#content/files/model.ts'
import { type StagedUpload, storageBackends } from '#content/storage/backends.ts'
import { recordedFailure } from '#core/base/errors.ts'
import { injectFault } from '#core/base/fault-injection.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { jsonb, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import type { PrincipalRecord } from '#core/iam/caller.ts'
import { exponential } from '#core/work/retry.ts'
import { work } from '#core/work/work.ts'
import type { Tx } from '#core/writes/writer.ts'
import { collectSnapshot } from './collect-snapshot.ts'
import { type ExportFile, type ExportFormat, type ExportRow, exportKind } from './model.ts'
import { RENDERERS } from './render.ts'
import type { CaseSnapshot } from './snapshot.ts'

const DAY_MS = 86_400_000

const MAX_FILE_BYTES = 256 * 1024 * 1024
/** Minimum characters per buffer. */
const BUFFER_CHARACTERS = 256 * 1024

/** Joins chunks of text into buffers and yields to the event loop after each. */
async function* toBuffers(chunks: Iterable<string>): AsyncGenerator<Buffer> {
  let pending: string[] = []
  let length = 0
  for (const chunk of chunks) {
    pending.push(chunk)
    length += chunk.length
    if (length < BUFFER_CHARACTERS) continue
    yield Buffer.from(pending.join(''))
    pending = []
    length = 0
    await setImmediate()
  }
  if (length > 0) yield Buffer.from(pending.join(''))
}

type StagedFile = { format: ExportFormat; id: string; staged: StagedUpload }

/** Writes the files of an export to storage without referencing them yet. Adds each to `files`. */
async function stageFiles(
  services: Services,
  row: ExportRow,
  snapshot: CaseSnapshot,
  files: StagedFile[],
): Promise<void> {
  for (const format of row.formats) {
    const id = newId(fileKind.prefix)
    const source = Readable.from(toBuffers(RENDERERS[format].render(snapshot)))
    const target = { projectId: row.project_id, fileId: id, maxBytes: MAX_FILE_BYTES }
    const staged = await storageBackends(services).stage(source, target)
    files.push({ format, id, staged })
  }
}

/** Adds the staged files to the project and completes the export. Raises RESOURCE_NOT_FOUND without its case. */
async function complete(
  tx: Tx,
  services: Services,
  { row, principal }: { row: ExportRow; principal: PrincipalRecord },
  { omitted }: CaseSnapshot,
  staged: readonly StagedFile[],
): Promise<void> {
  const about = await caseKind.lock(tx, row.case_id)
  const files: ExportFile[] = []
  for (const { format, id, staged: content } of staged) {
    const { extension, type } = RENDERERS[format]
    const file = await createFile(services, tx, {
      id,
      project_id: row.project_id,
      prefix: 'exports',
      filename: `${row.id}.${extension}`,
      content_type: type,
      size: content.size,
      content,
    })
    tx.emit(fileKind, 'created', file)
    files.push({ format, file_id: id, size_bytes: content.size, sha256: content.sha256.toString('hex') })
  }
  const now = services.clock.now()
  const days = services.config.PLAYBOOK_EXPORT_TTL_DAYS
  const completed = await exportKind.update(tx, row.id, {
    status: 'completed',
    files,
    omitted: [...omitted],
    completed_at: now.toISOString(),
    expires_at: days === 0 ? null : new Date(now.getTime() + days * DAY_MS).toISOString(),
  })
  tx.emit(exportKind, 'completed', completed)
  appendTimeline(tx, about, byCaller({ principal }), [
    {
      kind: 'exported',
      data: { export_id: row.id, subject_type: row.subject_type, formats: row.formats },
      playbook_execution_id: row.subject_type === 'playbook_execution' ? row.subject_id : null,
    },
  ])
}

/** Failures that a repetition would end in again. */
const FINAL = new Set<string>(['FORBIDDEN', 'RESOURCE_NOT_FOUND', 'REQUEST_REJECTED', 'QUOTA_STORAGE_EXCEEDED'])

/** Builds the files of an export: all of them, or none. */
export const exportWork = work({
  name: 'export.build',
  concern: 'orchestration',
  entity: exportKind,
  table: 'playbook_export_attempts',
  entityColumn: 'export_id',
  columns: { principal: z.custom<PrincipalRecord>() },
  ids: ({ id, project_id }) => ({ export_id: id, project_id }),
  leaseSeconds: config => config.PLAYBOOK_EXPORT_LEASE_SECONDS,
  // Each holds the content of its case and its files in memory.
  concurrency: 2,
  begin: sql.fragment`status = 'running', updated_at = now()`,
  retry: { attempts: 3, losses: 2, delayMs: exponential(1000) },
  isFinal: error => FINAL.has(recordedFailure(error).code),
  lockFirst: (tx, { case_id }) => caseKind.find(tx, case_id, true),
  sweep: { seconds: 30, dueIf: sql.fragment`exists (select from playbook_export_attempts)` },
  async run({ services, entity: row, claim, settle }) {
    const snapshot = await collectSnapshot(services, row, claim.principal)
    const written: StagedFile[] = []
    try {
      await stageFiles(services, row, snapshot, written)
      await injectFault(services, 'export_staged')
      await settle(tx => complete(tx, services, { row, principal: claim.principal }, snapshot, written))
    } finally {
      for (const { staged } of written) await staged.discard()
    }
    return { outcome: 'completed', files: written.length, omitted: snapshot.omitted.length }
  },
  async fail(tx, { entity, error }) {
    const failed = await exportKind.update(tx, entity.id, { status: 'failed', error: recordedFailure(error) })
    tx.emit(exportKind, 'failed', failed)
  },
})

/** Starts the export of a new row with the permissions of `principal`. */
export async function startExport(tx: Tx, { id, project_id }: ExportRow, principal: PrincipalRecord): Promise<void> {
  const work_id = newId('pbk_exp_att')
  await insertExportWork(tx, id, work_id, principal)
  exportWork.wake(tx, { entity: id, id: work_id, project_id })
}

const insertExportWork = (db: Queryable, exportId: string, id: string, principal: PrincipalRecord) =>
  db.query(voidStatement`
    insert into playbook_export_attempts (export_id, id, principal) values (${exportId}, ${id}, ${jsonb(principal)})`)
