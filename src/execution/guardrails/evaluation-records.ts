import { createHash } from 'node:crypto'
import { Counter } from 'prom-client'
import { srn } from '#core/api/kind.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { withTriggerChain } from '#core/db/trigger-chain.ts'
import { WriteBehind } from '#core/db/write-behind.ts'
import { newAuditEntry } from '#core/writes/audit-entry.ts'
import type { RunOfCall } from '../tools/guardrail-gate.ts'
import { guardrailKind } from './model.ts'
import { type EvaluationDraft, insertEvaluations } from './store.ts'

/** Time for which deferred evaluations wait for their approval. */
const DEFER_MS = 10_000
/** Maximum number of buffered evaluations. */
const MAX_BUFFERED = 5000
const GATHER_MS = 20
const BATCH = 250
const RETRY_MS = 1000

export const evaluationsDropped = new Counter({
  name: 'muster_guardrail_evaluations_dropped_total',
  help: 'Guardrail evaluations dropped because the buffer was full or the database refused them',
  registers: [],
})

type DeferredEvaluations = { drafts: EvaluationDraft[]; timer: NodeJS.Timeout }

/**
 * Writes evaluations in batches, separately from their calls. Evaluations that cannot be written are logged and
 * counted; the calls are unaffected.
 */
const recorderOf = processSingleton(
  services => {
    const writes = new WriteBehind<EvaluationDraft>({
      what: 'guardrail evaluations',
      log: services.log,
      most: MAX_BUFFERED,
      gatherMs: GATHER_MS,
      batch: BATCH,
      retryMs: RETRY_MS,
      write: (drafts, chainOf) => write(services, drafts, chainOf),
      dropped: count => evaluationsDropped.inc(count),
    })
    const deferred = new Map<string, DeferredEvaluations>()
    const add = (drafts: readonly EvaluationDraft[]) => {
      for (const draft of drafts) writes.add(draft)
    }
    const release = (key: string, approval_id: string | null) => {
      const waiting = deferred.get(key)
      if (!waiting) return
      deferred.delete(key)
      clearTimeout(waiting.timer)
      add(waiting.drafts.map(draft => ({ ...draft, approval_id })))
    }
    return {
      add,
      release,
      hold(key: string, drafts: EvaluationDraft[]) {
        release(key, null)
        deferred.set(key, { drafts, timer: setTimeout(() => release(key, null), DEFER_MS).unref() })
      },
      async close() {
        for (const key of [...deferred.keys()]) release(key, null)
        await writes.close()
      },
    }
  },
  recorder => recorder.close(),
)

/** Key of equal calls by a generation or a run node. */
export type EvaluationSubject = { subject_id: string; tool: string; action: string; args: Record<string, unknown> }

/** Returns the subject id of a call that a run node makes itself. */
export const nodeSubject = ({ orchestration_run_id, node_id }: RunOfCall): string =>
  `${orchestration_run_id} ${node_id ?? ''}`

const keyOf = ({ subject_id, tool, action, args }: EvaluationSubject): string =>
  createHash('sha256')
    .update(JSON.stringify([subject_id, tool, action, args]))
    .digest('base64url')

/** Records the evaluations of one call. */
export const recordEvaluations = (services: Services, drafts: readonly EvaluationDraft[]): void =>
  recorderOf(services).add(drafts)

/** Defers evaluations that require an approval until the approval is filed. */
export const deferEvaluations = (services: Services, subject: EvaluationSubject, drafts: EvaluationDraft[]): void =>
  recorderOf(services).hold(keyOf(subject), drafts)

/** Records deferred evaluations with the approval that was filed for them. */
export const recordDeferredEvaluations = (services: Services, subject: EvaluationSubject, approval_id: string): void =>
  recorderOf(services).release(keyOf(subject), approval_id)

/** Writes a batch of evaluations; decisions other than execute are also written to the audit log. */
async function write(
  services: Services,
  drafts: readonly EvaluationDraft[],
  chainOf: (index: number) => readonly string[],
): Promise<void> {
  await services.write(async tx => {
    const created_at = services.clock.now().toISOString()
    const inserted = await insertEvaluations(tx, drafts)
    for (const [index, draft] of drafts.entries()) {
      if (draft.decision === 'execute' || !inserted.includes(draft.id)) continue
      const { id: _, project_id, tool_id: _tool, approval_id, ...evaluation } = draft
      const entry = newAuditEntry({
        project_id,
        action: 'guardrails:Evaluate',
        resource_srn: srn(project_id, guardrailKind.name, evaluation.guardrail_id),
        resource_public_id: evaluation.guardrail_id,
        detail: {
          ...evaluation,
          context_snapshot: auditSnapshot(evaluation.context_snapshot),
          ...(approval_id && { approval_id }),
        },
        created_at,
      })
      withTriggerChain(chainOf(index), () => tx.audit(entry))
    }
  })
}

/**
 * Returns a snapshot without values from the turn: audit log entries are immutable, so content in them could not be
 * erased.
 */
const auditSnapshot = (snapshot: Record<string, unknown>): Record<string, unknown> =>
  Object.fromEntries(
    Object.entries(snapshot).map(([path, value]) => [path, /^runtime(\.|$)/.test(path) ? value : null]),
  )
