import { turnContent } from '#control/retention/erasure.ts'
import type { Services } from '#core/base/services.ts'
import { module } from '#core/modules/module.ts'
import { deleteInBatches } from '#core/work/sweeps.ts'
import { cloneables } from '#identity/projects/clone.ts'
import { detachPermission } from '#identity/projects/guardrail-ids.ts'
import { guardrailCopies, toolGate } from '../tools/guardrail-gate.ts'
import { copyGuardrails, guardrailCloning } from './clone.ts'
import { guardrailErrors } from './errors.ts'
import { guardrailGate } from './evaluate-call.ts'
import { evaluationsDropped } from './evaluation-records.ts'
import { evaluationKind, guardrailKind } from './model.ts'
import { guardrailOperations } from './operations.ts'
import { guardrailType } from './resource-type.ts'
import { deleteEvaluations, eraseSnapshots } from './store.ts'

const DAY_MS = 86_400_000

/** Deletes evaluations older than GUARDRAIL_EVALUATION_RETENTION_DAYS in batches; 0 disables deletion. */
async function pruneEvaluations({ config, clock, pool }: Services, stopping: AbortSignal): Promise<number> {
  const days = config.GUARDRAIL_EVALUATION_RETENTION_DAYS
  if (days === 0) return 0
  const before = new Date(clock.now().getTime() - days * DAY_MS)
  return deleteInBatches(limit => deleteEvaluations(pool, before, limit), stopping)
}

export default module('guardrails', {
  tags: { Guardrails: 'Rules that allow, escalate or block tool calls, and their evaluations.' },
  errors: guardrailErrors,
  kinds: [guardrailKind, evaluationKind],
  resourceTypes: [guardrailType],
  operations: guardrailOperations,
  extensions: [
    toolGate.with(guardrailGate),
    guardrailCopies.with(copyGuardrails),
    cloneables.with(guardrailCloning),
    turnContent.with({
      erase: async (tx, turns) => ({
        counts: {
          guardrail_evaluations: await eraseSnapshots(
            tx,
            turns.map(({ id }) => id),
          ),
        },
        events: [],
      }),
    }),
  ],
  policyActions: [
    {
      action: detachPermission,
      description:
        'Detach a guardrail from a project, an agent or a tool, in addition to the permission to update that resource',
      resource_type: 'guardrail',
    },
  ],
  metrics: [evaluationsDropped],
  sweeps: [{ name: 'guardrail evaluations', when: '41 3 * * *', run: pruneEvaluations }],
})
