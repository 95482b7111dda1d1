import { deleteAllBytes } from '#content/storage/backends.ts'
import { redactFields } from '#control/events/redact.ts'
import {
  type Counts,
  contentUnavailable,
  type ErasedBy,
  eraseTurnContent,
  sumCounts,
} from '#control/retention/erasure.ts'
import { requireNoLegalHold } from '#control/retention/legal-hold.ts'
import { eraseStoredResponses, type ReplayCondition } from '#core/api/idempotency.ts'
import { raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { sql } from '#core/db/sql.ts'
import type { Tx } from '#core/writes/writer.ts'
import { findAbandonedSteps } from '../journal/store.ts'
import { meterAbortedTurn } from '../loop/metering.ts'
import { emitSettled, withMemory } from '../loop/turn-hooks.ts'
import { turnOwnerOf } from '../loop/turn-owner.ts'
import { type GenerationRow, generationKind, type TraceRow } from '../model.ts'
import { mailboxHooks } from '../request/cancel-turn.ts'
import { notifyEnd } from '../streams/turn-end.ts'
import { traceKind } from '../traces/kind.ts'
import { detachTraceFiles } from '../traces/store.ts'
import {
  clearTraceError,
  listPurgeStates,
  listSubtree,
  lockSubtree,
  type PurgeState,
  redactGenerations,
  redactTraces,
} from './purge-store.ts'

/** Content fields of generations and traces, in records and events. */
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

/** Stores a response that contains a turn only while the turn's content is stored: a purge may precede it. */
export const replayWhileContentKept = (generationId: string): ReplayCondition => ({
  holds: sql.fragment`exists (
    select from generations g where g.id = ${generationId} and g.content_redacted_at is null for share of g)`,
  refusal: contentUnavailable,
})

/** @throws GENERATION_ALREADY_IN_PROGRESS for a pending or running turn */
function requireEnded(generations: readonly Pick<GenerationRow, 'id' | 'status'>[]): void {
  const open = generations.find(row => row.status === 'pending' || row.status === 'in_progress')
  if (open) raise('GENERATION_ALREADY_IN_PROGRESS', { meta: { generation_id: open.id } })
}

/** Meters paused turns, which the purge ends. */
async function meterPaused(tx: Tx, services: Services, generations: readonly PurgeState[]): Promise<void> {
  for (const { id, status } of generations) {
    const row = status === 'requires_action' ? await generationKind.find(tx, id) : null
    const usage = row && (await meterAbortedTurn(tx, services, row, await findAbandonedSteps(tx, services, row)))
    if (usage) await generationKind.update(tx, id, { usage })
  }
}

/** Erases the content of locked generations in this module and in all others. */
async function eraseGenerations(
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
    mailboxHooks.only()?.pausedEnded(tx, row)
    emitSettled(tx, row, null)
    notifyEnd(tx, row.id)
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
 * Erases the content of a generation and retains its record; a second purge changes nothing and emits nothing. A paused
 * turn fails with GENERATION_CONTENT_UNAVAILABLE. The file of its trace is unchanged.
 * @throws GENERATION_ALREADY_IN_PROGRESS while the turn or a completion hook is pending or running; CONTENT_ON_HOLD
 */
export async function purgeGeneration(tx: Tx, services: Services, id: string, by: ErasedBy): Promise<Counts> {
  const row = await generationKind.lock(tx, id)
  await requireNoLegalHold(tx, row.project_id)
  requireEnded([row])
  if (row.content_redacted_at !== null) return {}
  const { counts } = await eraseGenerations(tx, services, row.project_id, { generations: [row], traceIds: [], by })
  if (row.error) await clearTraceError(tx, row)
  return counts
}

/**
 * Erases the content of traces of a project, their descendants and all their generations, and deletes their steps
 * files.
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
  const found = await listSubtree(tx, roots)
  // Checked before locking, so that the purge does not wait for a running turn.
  requireEnded(await listPurgeStates(tx, found))
  // Generations are locked before traces, in the order of a turn that settles.
  const generations = await listPurgeStates(tx, found, true)
  requireEnded(generations)
  const ids = await lockSubtree(tx, roots)
  // A turn created meanwhile refuses the purge; no further one can be created while the traces are locked.
  const lockedIds = new Set(generations.map(({ id }) => id))
  const later = (await listPurgeStates(tx, ids)).find(({ id }) => !lockedIds.has(id))
  if (later) raise('GENERATION_ALREADY_IN_PROGRESS', { meta: { generation_id: later.id } })
  const { counts } = await eraseGenerations(tx, services, projectId, { generations, traceIds: ids, by })
  const files = await detachTraceFiles(tx, ids)
  await deleteAllBytes(tx, files)
  const traces = await redactTraces(tx, ids, by)
  for (const row of traces) tx.emit(traceKind, 'content_purged', row)
  return { traces, counts: sumCounts(counts, { traces: traces.length, trace_files: files.length }) }
}

class DryRunRollback extends Error {
  readonly counts: Counts
  constructor(counts: Counts) {
    super('dry run')
    this.counts = counts
  }
}

/** Runs a purge in a nested transaction that is rolled back, and returns its counts. Raises errors of the purge. */
export async function dryRun(tx: Tx, purge: (tx: Tx) => Promise<Counts>): Promise<Counts> {
  try {
    await tx.nested(async inner => {
      throw new DryRunRollback(await purge(inner))
    })
  } catch (error) {
    if (error instanceof DryRunRollback) return error.counts
    throw error
  }
  throw new Error('dry run was not rolled back')
}
