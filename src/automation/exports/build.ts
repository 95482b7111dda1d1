import { Readable } from 'node:stream'
import { setImmediate } from 'node:timers/promises'
import { createFile } from '../../content/files/create.ts'
import { fileKind } from '../../content/files/model.ts'
import { type StagedUpload, storageBackends } from '../../content/storage/backends.ts'
import { AppError, recordedFailure } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import type { Tx } from '../../core/db/writer.ts'
import type { JobContext } from '../../core/jobs/handler.ts'
import {
  type ActiveClaim,
  type AttemptOutcome,
  ClaimLostError,
  claimOrReschedule,
  type Lease,
  leaseTimings,
  processClaim,
} from '../../core/jobs/work-item.ts'
import { injectFault } from '../../core/process/fault-injection.ts'
import type { Services } from '../../core/process/services.ts'
import { caseKind } from '../cases/model.ts'
import { appendTimeline, byCaller } from '../cases/timeline.ts'
import { collectSnapshot } from './collect-snapshot.ts'
import { type ExportFile, type ExportFormat, type ExportRow, exportKind } from './model.ts'
import { type ExportMessage, exportQueue } from './queue.ts'
import { RENDERERS } from './render.ts'
import type { CaseSnapshot } from './snapshot.ts'
import { type ExportClaim, exportAttempts } from './store.ts'

/** Attempts per export, including those whose worker was lost. */
const MAX_ATTEMPTS = 3

/** Errors that a retry does not fix. */
const FINAL_CODES = new Set<string>(['FORBIDDEN', 'RESOURCE_NOT_FOUND', 'REQUEST_REJECTED', 'QUOTA_STORAGE_EXCEEDED'])

const DAY_MS = 86_400_000

const exportLease = ({ config }: Pick<Services, 'config'>): Lease =>
  leaseTimings(config.PLAYBOOK_EXPORT_LEASE_SECONDS * 1000)

type ClaimedExport = { claim: ExportClaim; row: ExportRow }

/**
 * Claims an unsettled export. If another worker holds the claim, reschedules the message to the end of its lease and
 * returns null.
 */
async function claimExport(tx: Tx, services: Services, message: ExportMessage): Promise<ClaimedExport | null> {
  const row = await exportKind.find(tx, message.export_id, true)
  if (!row) return null
  const ref = { entity: row.id, id: message.attempt_id }
  const claim = await claimOrReschedule(tx, exportAttempts, ref, exportLease(services), exportQueue, message)
  if (claim === 'held') return null
  if (!claim) {
    await abandonExport(tx, message, new AppError('INTERNAL_ERROR'))
    return null
  }
  return { claim, row: row.status === 'queued' ? await exportKind.update(tx, row.id, { status: 'running' }) : row }
}

/** Marks an export as failed. Requires the row lock. */
async function markFailed(tx: Tx, id: string, error: unknown): Promise<void> {
  const failed = await exportKind.update(tx, id, { status: 'failed', error: recordedFailure(error) })
  tx.emit(exportKind, 'failed', failed)
}

/** Fails an export without a valid claim. */
export async function abandonExport(tx: Tx, { export_id, attempt_id }: ExportMessage, error: unknown): Promise<void> {
  const row = await exportKind.find(tx, export_id, true)
  if (row && (await exportAttempts.endIdle(tx, { entity: export_id, id: attempt_id })))
    await markFailed(tx, export_id, error)
}

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

/** Creates the project files of an export and completes it, in one transaction. @throws ClaimLostError */
async function completeExport(
  tx: Tx,
  services: Services,
  { claim, row }: ClaimedExport,
  { omitted }: CaseSnapshot,
  stagedFiles: readonly StagedFile[],
): Promise<void> {
  const about = await caseKind.find(tx, row.case_id, true)
  if (!about || !(await exportKind.find(tx, row.id, true)) || !(await exportAttempts.end(tx, claim)))
    throw new ClaimLostError()
  const files: ExportFile[] = []
  for (const { format, id, staged } of stagedFiles) {
    const { extension, type } = RENDERERS[format]
    const file = await createFile(services, tx, {
      id,
      project_id: row.project_id,
      prefix: 'exports',
      filename: `${row.id}.${extension}`,
      content_type: type,
      size: staged.size,
      content: staged,
    })
    tx.emit(fileKind, 'created', file)
    files.push({ format, file_id: id, size_bytes: staged.size, sha256: staged.sha256.toString('hex') })
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
  appendTimeline(tx, about, byCaller(claim), [
    {
      kind: 'exported',
      data: { export_id: row.id, subject_type: row.subject_type, formats: row.formats },
      playbook_execution_id: row.subject_type === 'playbook_execution' ? row.subject_id : null,
    },
  ])
}

async function buildFiles(
  services: Services,
  claimed: ClaimedExport,
  activeClaim: ActiveClaim<ExportClaim>,
): Promise<AttemptOutcome> {
  await injectFault(services, 'export_claimed')
  const snapshot = await collectSnapshot(services, claimed.row, claimed.claim.principal)
  const files: StagedFile[] = []
  try {
    await stageFiles(services, claimed.row, snapshot, files)
    await injectFault(services, 'export_staged')
    await activeClaim.write(tx => completeExport(tx, services, claimed, snapshot, files))
  } finally {
    for (const { staged } of files) await staged.discard()
  }
  await injectFault(services, 'export_completed')
  return { outcome: 'completed', files: files.length, omitted: snapshot.omitted.length }
}

/** Builds an export, unless it has settled or another worker holds the claim. */
export async function buildExport(message: ExportMessage, context: JobContext): Promise<void> {
  const { services } = context
  const claimed = await services.write(tx => claimExport(tx, services, message))
  if (!claimed) return
  const { claim, row } = claimed
  await processClaim(context, {
    what: 'export',
    ids: { export_id: row.id, project_id: row.project_id },
    attempts: exportAttempts,
    claim,
    lease: exportLease(services),
    lock: tx => exportKind.find(tx, row.id, true),
    work: activeClaim => buildFiles(services, claimed, activeClaim),
    async fail(error) {
      const { code } = recordedFailure(error)
      if (!(error instanceof AppError)) services.log.error({ err: error, export_id: row.id }, 'export failed')
      const last = FINAL_CODES.has(code) || claim.failures + claim.losses + 1 >= MAX_ATTEMPTS
      return services.write(async tx => {
        await exportKind.find(tx, row.id, true)
        if (last) {
          if (!(await exportAttempts.end(tx, claim))) return { outcome: 'claim_lost' }
          await markFailed(tx, row.id, error)
          return { outcome: 'failed', code, decision: 'abandoned' }
        }
        const delayMs = 1000 * 2 ** claim.failures
        if (!(await exportAttempts.requeue(tx, claim, { delayMs, failed: true }))) return { outcome: 'claim_lost' }
        tx.send(exportQueue, message, { startAfter: new Date(Date.now() + delayMs) })
        return { outcome: 'failed', code, decision: `retry in ${delayMs} ms` }
      })
    },
  })
}
