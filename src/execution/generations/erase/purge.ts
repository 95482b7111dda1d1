import { deleteAllBytes } from '../../../content/storage/backends.ts'
import { redactFields } from '../../../control/events/redact.ts'
import {
  type Counts,
  contentUnavailable,
  type ErasedBy,
  eraseTurnContent,
  sumCounts,
} from '../../../control/retention/erasure.ts'
import { requireNoLegalHold } from '../../../control/retention/legal-hold.ts'
import { raise } from '../../../core/api/errors.ts'
import { eraseStoredResponses, type ReplayCondition } from '../../../core/api/idempotency.ts'
import { sql } from '../../../core/db/sql.ts'
import type { Tx } from '../../../core/db/writer.ts'
import type { Services } from '../../../core/process/services.ts'
import { findAbandonedSteps } from '../journal/abandoned-steps.ts'
import { meterStopped } from '../loop/metering.ts'
import { emitSettled, withMemory } from '../loop/turn-hooks.ts'
import { turnOwnerOf } from '../loop/turn-owner.ts'
import { type GenerationRow, generationKind, type TraceRow } from '../model.ts'
import { traceKind } from '../traces/kind.ts'
import { detachTraceFiles } from '../traces/store.ts'
import {
  clearTraceError,
  lockSubtree,
  type PurgeState,
  redactGenerations,
  redactTraces,
  statesOf,
  subtreeIds,
} from './purge-store.ts'

/** Fields of generations and traces that hold content, in their records and in what events show of them. */
const withoutContent = redactFields(
  'metadata',
  'error',
  'extraction',
  'knowledge',
  'output',
  'input',
  'required_action',
  'memory_entries',
)

/** An answer that shows a turn is kept for repeats only while the turn's content is: a purge may come before. */
export const replayWhileContentKept = (generationId: string): ReplayCondition => ({
  holds: sql.fragment`exists (
    select from generations g where g.id = ${generationId} and g.content_redacted_at is null for share of g)`,
  refusal: contentUnavailable,
})

/** Raises GENERATION_ALREADY_IN_PROGRESS for a turn that runs or waits. */
function requireEnded(generations: readonly Pick<GenerationRow, 'id' | 'status'>[]): void {
  const open = generations.find(row => row.status === 'pending' || row.status === 'in_progress')
  if (open) raise('GENERATION_ALREADY_IN_PROGRESS', { meta: { generation_id: open.id } })
}

/** Meters turns that end because what they wait for is erased. */
async function meterPaused(tx: Tx, services: Services, generations: readonly PurgeState[]): Promise<void> {
  for (const { id, status } of generations) {
    const row = status === 'requires_action' ? await generationKind.find(tx, id) : null
    const usage = row && (await meterStopped(tx, services, row, await findAbandonedSteps(tx, services, row)))
    if (usage) await generationKind.update(tx, id, { usage })
  }
}

/** Erases what there is of generations, whose rows are locked, in this module and in all others. */
async function erase(
  tx: Tx,
  services: Services,
  projectId: string,
  { generations, traceIds, by }: { generations: readonly PurgeState[]; traceIds: readonly string[]; by: ErasedBy },
): Promise<{ redacted: readonly GenerationRow[]; counts: Counts }> {
  const ids = generations.map(({ id }) => id)
  await meterPaused(tx, services, generations)
  const redacted = await redactGenerations(tx, ids, by)
  const paused = new Set(generations.filter(({ status }) => status === 'requires_action').map(({ id }) => id))
  const ended = redacted.filter(({ id }) => paused.has(id))
  for (const row of ended) {
    emitSettled(tx, row, null)
    await turnOwnerOf(row)?.settled(tx, row, {
      status: 'failed',
      content: null,
      object: null,
      error: contentUnavailable().recorded(),
    })
  }
  const counts = await eraseTurnContent(tx, redacted, [
    { resource_type: generationKind.name, ids, without: withoutContent },
    { resource_type: traceKind.name, ids: traceIds, without: withoutContent },
  ])
  const kept_answers = await eraseStoredResponses(tx, services, projectId, [...ids, ...traceIds], contentUnavailable())
  for (const row of redacted) tx.emit(generationKind, 'content_purged', row, withMemory(null))
  return { redacted, counts: sumCounts(counts, { generations: redacted.length, kept_answers }) }
}

/**
 * Erases a generation's content and keeps its skeleton; a second purge keeps the first stamp and emits nothing. A paused
 * turn ends failed with GENERATION_CONTENT_UNAVAILABLE. The file of its trace stays as it is.
 * @throws GENERATION_ALREADY_IN_PROGRESS while it runs, waits or something follows from it; CONTENT_ON_HOLD
 */
export async function purgeGeneration(tx: Tx, services: Services, id: string, by: ErasedBy): Promise<Counts> {
  const row = await generationKind.lock(tx, id)
  await requireNoLegalHold(tx, row.project_id)
  requireEnded([row])
  if (row.content_redacted_at !== null) return {}
  const { counts } = await erase(tx, services, row.project_id, { generations: [row], traceIds: [], by })
  if (row.error) await clearTraceError(tx, row)
  return counts
}

/**
 * The same for traces of a project, their descendants and all their generations, with the files of their steps.
 * @throws GENERATION_ALREADY_IN_PROGRESS, CONTENT_ON_HOLD
 */
export async function purgeTraces(
  tx: Tx,
  services: Services,
  projectId: string,
  roots: readonly string[],
  by: ErasedBy,
): Promise<{ traces: readonly TraceRow[]; counts: Counts }> {
  await requireNoLegalHold(tx, projectId)
  const found = await subtreeIds(tx, roots)
  // Not to wait for a turn that runs.
  requireEnded(await statesOf(tx, found))
  // Generations before traces, as a turn that ends locks them.
  const generations = await statesOf(tx, found, true)
  requireEnded(generations)
  const ids = await lockSubtree(tx, roots)
  // One that was made meanwhile: nobody can make another while the traces are held.
  const known = new Set(generations.map(({ id }) => id))
  const later = (await statesOf(tx, ids)).find(({ id }) => !known.has(id))
  if (later) raise('GENERATION_ALREADY_IN_PROGRESS', { meta: { generation_id: later.id } })
  const { counts } = await erase(tx, services, projectId, { generations, traceIds: ids, by })
  const files = await detachTraceFiles(tx, ids)
  await deleteAllBytes(tx, files)
  const traces = await redactTraces(tx, ids, by)
  for (const row of traces) tx.emit(traceKind, 'content_purged', row)
  return { traces, counts: sumCounts(counts, { traces: traces.length, trace_files: files.length }) }
}

class Undo extends Error {
  readonly counts: Counts
  constructor(counts: Counts) {
    super('a dry run')
    this.counts = counts
  }
}

/** What a purge would erase, by what it refuses and what it counts: it is made and undone. Raises what the purge raises. */
export async function dryRun(tx: Tx, purge: (tx: Tx) => Promise<Counts>): Promise<Counts> {
  try {
    await tx.nested(async inner => {
      throw new Undo(await purge(inner))
    })
  } catch (error) {
    if (error instanceof Undo) return error.counts
    throw error
  }
  throw new Error('a dry run was not undone')
}
