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

/** Tries of an export: those that failed, and those whose worker was lost. */
const MAX_TRIES = 3

/** What is so again however often it is tried. */
const FINAL = new Set<string>(['FORBIDDEN', 'RESOURCE_NOT_FOUND', 'REQUEST_REJECTED', 'QUOTA_STORAGE_EXCEEDED'])

const DAY_MS = 86_400_000

const ownLease = ({ config }: Pick<Services, 'config'>): Lease =>
  leaseTimings(config.PLAYBOOK_EXPORT_LEASE_SECONDS * 1000)

type Taken = { claim: ExportClaim; row: ExportRow }

/** Claims an export that is not at its end. One that another worker holds is looked at again when its lease is over. */
async function take(tx: Tx, services: Services, message: ExportMessage): Promise<Taken | null> {
  const row = await exportKind.find(tx, message.export_id, true)
  if (!row) return null
  const named = { entity: row.id, id: message.attempt_id }
  const claim = await claimOrReschedule(tx, exportAttempts, named, ownLease(services), exportQueue, message)
  if (claim === 'held') return null
  if (!claim) {
    await abandonExport(tx, message, new AppError('INTERNAL_ERROR'))
    return null
  }
  return { claim, row: row.status === 'queued' ? await exportKind.update(tx, row.id, { status: 'running' }) : row }
}

/** Records that an export failed, under its lock. */
async function fail(tx: Tx, id: string, error: unknown): Promise<void> {
  const failed = await exportKind.update(tx, id, { status: 'failed', error: recordedFailure(error) })
  tx.emit(exportKind, 'failed', failed)
}

/** Ends an export that no live worker holds with a failure. */
export async function abandonExport(tx: Tx, { export_id, attempt_id }: ExportMessage, error: unknown): Promise<void> {
  const row = await exportKind.find(tx, export_id, true)
  if (row && (await exportAttempts.endIdle(tx, { entity: export_id, id: attempt_id }))) await fail(tx, export_id, error)
}

/** Bytes of a file; pieces of it that are written at once. */
const MAX_FILE_BYTES = 256 * 1024 * 1024
const PIECE_CHARACTERS = 256 * 1024

/** Text in buffers of some size, with the event loop let go between two of them. */
async function* buffersOf(pieces: Iterable<string>): AsyncGenerator<Buffer> {
  let waiting: string[] = []
  let length = 0
  for (const piece of pieces) {
    waiting.push(piece)
    length += piece.length
    if (length < PIECE_CHARACTERS) continue
    yield Buffer.from(waiting.join(''))
    waiting = []
    length = 0
    await setImmediate()
  }
  if (length > 0) yield Buffer.from(waiting.join(''))
}

type Written = { format: ExportFormat; id: string; staged: StagedUpload }

/** Writes the files of an export where nothing names them yet. */
async function stage(services: Services, row: ExportRow, snapshot: CaseSnapshot, written: Written[]): Promise<void> {
  for (const format of row.formats) {
    const id = newId(fileKind.prefix)
    const source = Readable.from(buffersOf(RENDERERS[format].render(snapshot)))
    const target = { projectId: row.project_id, fileId: id, maxBytes: MAX_FILE_BYTES }
    const staged = await storageBackends(services).stage(source, target)
    written.push({ format, id, staged })
  }
}

/** Makes the files of an export files of its project, and completes it: all of it, or nothing. */
async function complete(
  tx: Tx,
  services: Services,
  { claim, row }: Taken,
  { omitted }: CaseSnapshot,
  written: readonly Written[],
): Promise<void> {
  const about = await caseKind.find(tx, row.case_id, true)
  if (!about || !(await exportKind.find(tx, row.id, true)) || !(await exportAttempts.end(tx, claim)))
    throw new ClaimLostError()
  const files: ExportFile[] = []
  for (const { format, id, staged } of written) {
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

async function build(services: Services, taken: Taken, hold: ActiveClaim<ExportClaim>): Promise<AttemptOutcome> {
  await injectFault(services, 'export_claimed')
  const snapshot = await collectSnapshot(services, taken.row, taken.claim.principal)
  const written: Written[] = []
  try {
    await stage(services, taken.row, snapshot, written)
    await injectFault(services, 'export_staged')
    await hold.write(tx => complete(tx, services, taken, snapshot, written))
  } finally {
    for (const { staged } of written) await staged.discard()
  }
  await injectFault(services, 'export_completed')
  return { outcome: 'completed', files: written.length, omitted: snapshot.omitted.length }
}

/** Builds an export, unless another worker does or it is at its end. */
export async function buildExport(message: ExportMessage, context: JobContext): Promise<void> {
  const { services } = context
  const taken = await services.write(tx => take(tx, services, message))
  if (!taken) return
  const { claim, row } = taken
  await processClaim(context, {
    what: 'export',
    ids: { export_id: row.id, project_id: row.project_id },
    attempts: exportAttempts,
    claim,
    lease: ownLease(services),
    lock: tx => exportKind.find(tx, row.id, true),
    work: hold => build(services, taken, hold),
    async fail(error) {
      const { code } = recordedFailure(error)
      if (!(error instanceof AppError)) services.log.error({ err: error, export_id: row.id }, 'export')
      const last = FINAL.has(code) || claim.failures + claim.losses + 1 >= MAX_TRIES
      return services.write(async tx => {
        await exportKind.find(tx, row.id, true)
        if (last) {
          if (!(await exportAttempts.end(tx, claim))) return { outcome: 'superseded' }
          await fail(tx, row.id, error)
          return { outcome: 'failed', code, decision: 'given up' }
        }
        const delayMs = 1000 * 2 ** claim.failures
        if (!(await exportAttempts.requeue(tx, claim, { delayMs, failed: true }))) return { outcome: 'superseded' }
        tx.send(exportQueue, message, { startAfter: new Date(Date.now() + delayMs) })
        return { outcome: 'failed', code, decision: `retry in ${delayMs} ms` }
      })
    },
  })
}
