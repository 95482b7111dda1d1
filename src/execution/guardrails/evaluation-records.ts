import { createHash } from 'node:crypto'
import { Counter } from 'prom-client'
import { newId } from '../../core/api/ids.ts'
import { srn } from '../../core/api/kind.ts'
import { withTriggerChain } from '../../core/db/trigger-chain.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import { WriteBehind } from '../../core/process/write-behind.ts'
import type { RunOfCall } from '../tools/guardrail-gate.ts'
import { guardrailKind } from './model.ts'
import { type EvaluationDraft, insertEvaluations } from './store.ts'

/** How long evaluations that ask a person wait for the approval that is filed for them. */
const HOLD_MS = 10_000
/** Evaluations that wait to be written. */
const MOST = 5000
const GATHER_MS = 20
const BATCH = 250
const RETRY_MS = 1000

export const evaluationsDropped = new Counter({
  name: 'muster_guardrail_evaluations_dropped_total',
  help: 'Records of guardrail evaluations dropped: the buffer was full, or the database refused them',
  registers: [],
})

type Held = { drafts: EvaluationDraft[]; timer: NodeJS.Timeout }

/**
 * Writes evaluations beside the calls that they are about, in batches. What cannot be written is logged and counted: it
 * changes nothing about a call.
 */
const recorderOf = processSingleton(
  services => {
    const writes = new WriteBehind<EvaluationDraft>({
      what: 'evaluations of guardrails',
      log: services.log,
      most: MOST,
      gatherMs: GATHER_MS,
      batch: BATCH,
      retryMs: RETRY_MS,
      write: (drafts, chainOf) => write(services, drafts, chainOf),
      dropped: count => evaluationsDropped.inc(count),
    })
    const held = new Map<string, Held>()
    const add = (drafts: readonly EvaluationDraft[]) => {
      for (const draft of drafts) writes.add(draft)
    }
    const release = (key: string, approval_id: string | null) => {
      const waiting = held.get(key)
      if (!waiting) return
      held.delete(key)
      clearTimeout(waiting.timer)
      add(waiting.drafts.map(draft => ({ ...draft, approval_id })))
    }
    return {
      add,
      release,
      hold(key: string, drafts: EvaluationDraft[]) {
        release(key, null)
        held.set(key, { drafts, timer: setTimeout(() => release(key, null), HOLD_MS).unref() })
      },
      async close() {
        for (const key of [...held.keys()]) release(key, null)
        await writes.close()
      },
    }
  },
  recorder => recorder.close(),
)

/** The calls of a generation, or of a node of a run, that ask for the same. */
export type EvaluationSubject = { asked_by: string; tool: string; action: string; args: Record<string, unknown> }

/** Who asks where a node of a run makes a call itself. */
export const nodeSubject = ({ orchestration_run_id, node_id }: RunOfCall): string =>
  `${orchestration_run_id} ${node_id ?? ''}`

const keyOf = ({ asked_by, tool, action, args }: EvaluationSubject): string =>
  createHash('sha256')
    .update(JSON.stringify([asked_by, tool, action, args]))
    .digest('base64url')

/** Keeps the evaluations of one call. */
export const recordEvaluations = (services: Services, drafts: readonly EvaluationDraft[]): void =>
  recorderOf(services).add(drafts)

/** The same of a call that a person is asked about: they are kept with the approval once it is filed. */
export const deferEvaluations = (services: Services, asked: EvaluationSubject, drafts: EvaluationDraft[]): void =>
  recorderOf(services).hold(keyOf(asked), drafts)

/** Keeps what was held for a call, with the approval that was filed for it. */
export const recordDeferredEvaluations = (services: Services, asked: EvaluationSubject, approval_id: string): void =>
  recorderOf(services).release(keyOf(asked), approval_id)

/** What was decided other than to execute is in the audit log, too. */
async function write(
  services: Services,
  drafts: readonly EvaluationDraft[],
  chainOf: (place: number) => readonly string[],
): Promise<void> {
  await services.write(async tx => {
    const created_at = services.clock.now().toISOString()
    const added = await insertEvaluations(tx, drafts)
    for (const [place, draft] of drafts.entries()) {
      if (draft.decision === 'execute' || !added.includes(draft.id)) continue
      const { id: _, project_id, tool_id: _tool, approval_id, ...evaluation } = draft
      const entry = {
        id: newId('audit'),
        project_id,
        principal_type: null,
        principal_id: null,
        action: 'guardrails:Evaluate',
        resource_srn: srn(project_id, guardrailKind.name, evaluation.guardrail_id),
        resource_public_id: evaluation.guardrail_id,
        status: 200,
        request_id: null,
        ip: null,
        user_agent: null,
        detail: {
          ...evaluation,
          context_snapshot: namesIn(evaluation.context_snapshot),
          ...(approval_id && { approval_id }),
        },
        created_at,
      }
      withTriggerChain(chainOf(place), () => tx.audit(entry))
    }
  })
}

/**
 * What a rule has read, without what came from the turn: entries of the audit log are never changed, so content that was in
 * one could not be erased.
 */
const namesIn = (snapshot: Record<string, unknown>): Record<string, unknown> =>
  Object.fromEntries(
    Object.entries(snapshot).map(([path, value]) => [path, /^runtime(\.|$)/.test(path) ? value : null]),
  )
