import { createHash } from 'node:crypto'
import { newId } from '../../core/api/ids.ts'
import { srn } from '../../core/api/kind.ts'
import { Batcher } from '../../core/db/batcher.ts'
import { perProcess } from '../../core/process/per-process.ts'
import type { Services } from '../../core/process/services.ts'
import { guardrailKind } from './model.ts'
import { type EvaluationDraft, insertEvaluations } from './store.ts'

/** How long evaluations that ask a person wait for the approval that is filed for them. */
const HOLD_MS = 10_000
/** Evaluations of one statement. */
const BATCH = 500

type Held = { drafts: EvaluationDraft[]; timer: NodeJS.Timeout }

/**
 * Writes evaluations beside the calls that they are about, in batches. What cannot be written is logged: it changes
 * nothing about a call.
 */
const recorderOf = perProcess(
  services => {
    const writes = new Batcher<EvaluationDraft, void>(
      async drafts => {
        try {
          await write(services, drafts)
        } catch (error) {
          services.log.error({ err: error, evaluations: drafts.length }, 'evaluations of guardrails not written')
        }
        return drafts.map(() => undefined)
      },
      { max: BATCH },
    )
    const held = new Map<string, Held>()
    const add = (drafts: readonly EvaluationDraft[]) => {
      for (const draft of drafts) void writes.add(draft)
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
        await writes.idle()
      },
    }
  },
  recorder => recorder.close(),
)

/** The calls of a generation that ask for the same. */
export type Asked = { generation_id: string; tool: string; action: string; args: Record<string, unknown> }

const keyOf = ({ generation_id, tool, action, args }: Asked): string =>
  createHash('sha256')
    .update(JSON.stringify([generation_id, tool, action, args]))
    .digest('base64url')

/** Keeps the evaluations of one call. */
export const recordEvaluations = (services: Services, drafts: readonly EvaluationDraft[]): void =>
  recorderOf(services).add(drafts)

/** The same of a call that a person is asked about: they are kept with the approval once it is filed. */
export const holdEvaluations = (services: Services, asked: Asked, drafts: EvaluationDraft[]): void =>
  recorderOf(services).hold(keyOf(asked), drafts)

/** Keeps what was held for a call, with the approval that was filed for it. */
export const releaseEvaluations = (services: Services, asked: Asked, approval_id: string): void =>
  recorderOf(services).release(keyOf(asked), approval_id)

/** What was decided other than to execute is in the audit log, too. */
async function write(services: Services, drafts: readonly EvaluationDraft[]): Promise<void> {
  await services.write(async tx => {
    const created_at = services.clock.now().toISOString()
    for (const n of await insertEvaluations(tx, drafts)) {
      const { project_id, tool_id: _tool, approval_id, ...evaluation } = drafts[n]
      if (evaluation.decision === 'execute') continue
      tx.audit({
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
        detail: { kind: 'guardrail_evaluation', ...evaluation, ...(approval_id && { approval_id }) },
        created_at,
      })
    }
  })
}
