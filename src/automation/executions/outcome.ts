import { AppError, type RecordedFailure } from '../../core/api/errors.ts'
import { truncateChars } from '../../core/api/storable-text.ts'
import { ExpressionError, evaluate, isObject } from '../../core/expressions/evaluate.ts'
import { evaluateMapping } from '../../core/expressions/mapping.ts'
import { fieldsTooBig } from '../cases/change.ts'
import { FIELDS_KIB } from '../cases/model.ts'
import { conditionOf } from '../playbooks/compile-playbook.ts'
import { FAIL, type PlaybookStep } from '../playbooks/definition.ts'
import type { DrivenOutcome } from '../runs/engine/driver.ts'
import type { NodeExecutionRow as Attempt } from '../runs/engine/node-execution-store.ts'
import type { RunRow } from '../runs/model.ts'
import type { PlaybookStepRow } from './model.ts'

/** What attempts of nodes come to as steps of a playbook. */

const MAX_OUTCOME = 255

/** What came of a step for the expressions of those behind it. */
type Came = { output: unknown; error: RecordedFailure | null }

/** The failure of a step that only its playbook can name. */
export const stepFailed = (step_key: string, reason: string, message: string, more: object = {}): AppError =>
  new AppError('PLAYBOOK_STEP_FAILED', { message, meta: { step_key, ...more, reason } })

/** The status of a step as an attempt of its node leaves it; `skips`: a person passes it over. */
export function executionStatus(
  { status, node_type, generation_id, error }: Attempt,
  skips: boolean,
): PlaybookStepRow['status'] {
  if (status === 'waiting') return node_type === 'delay' ? 'waiting' : 'running'
  if (status === 'requires_action') return generation_id === null ? 'waiting' : 'running'
  if (status === 'completed') return error !== null ? 'failed' : skips ? 'skipped' : 'completed'
  return status
}

/** What came of a step, as far as the run has it; null before. */
export function stepOutcomeOf({ key, type }: PlaybookStep, outcomes: RunRow['outcomes']): Came | null {
  const own = outcomes[key]
  const outcome = own ?? outcomes[conditionOf(key)]
  if (!outcome || (!own && outcome.label === 'true')) return null
  if (outcome.label === 'failed' && type !== 'branch')
    return { output: null, error: (outcome.artifact as { error: RecordedFailure }).error }
  if (!own) return { output: null, error: null }
  return { output: type === 'branch' ? { taken: own.label } : own.artifact, error: null }
}

/** The outcome of an attempt as the output of its step. Throws what fails the step. */
export function toStepOutcome(step: PlaybookStep, attempt: Attempt, given: DrivenOutcome, now: string): DrivenOutcome {
  const { key, type } = step
  const { artifact, label } = given
  switch (type) {
    case 'instruct_agent': {
      if (!isObject(artifact))
        throw new AppError('ORCHESTRATION_NODE_FAILED', {
          message: 'The content of the turn is not kept, so there is nothing to go on with',
          meta: { node_id: key, reason: 'content' },
        })
      const { content, object } = artifact
      return { ...given, artifact: object == null ? { content } : { content, object } }
    }
    case 'call_tool':
      if (label === 'blocked' || label === 'tripwire')
        throw new AppError('TOOL_DISPATCH_FAILED', { meta: { tool_id: step.tool_id, outcome: label, step_key: key } })
      if (label === 'rejected' || label === 'expired') throw notApproved(key, label)
      return given
    case 'require_approval': {
      const route = label === 'rejected' ? step.on_rejected : label === 'expired' ? step.on_expired : undefined
      if ((label === 'rejected' || label === 'expired') && (route ?? FAIL) === FAIL) throw notApproved(key, label)
      const { decision, approval_id, resolved_by = null, reason = null } = artifact as Record<string, unknown>
      return { ...given, artifact: { decision, approval_id, resolved_by, reason } }
    }
    case 'wait':
      if (label === 'expired') throw stepFailed(key, 'timeout', 'The event did not come in time')
      if (step.event) return { ...given, artifact: { waited_until: now, event: artifact } }
      return {
        ...given,
        artifact: {
          waited_until:
            step.duration_seconds == null
              ? (artifact as { waited: unknown }).waited
              : new Date(attempt.wake_at ?? now).toISOString(),
        },
      }
    case 'manual':
      if (label === 'expired') throw stepFailed(key, 'timeout', 'Nobody completed the step in time')
      return given
    default:
      return given
  }
}

const notApproved = (key: string, label: string): AppError =>
  stepFailed(key, label, label === 'rejected' ? 'The approval was rejected' : 'Nobody decided in time')

/**
 * What a step writes into its case.
 * @throws PLAYBOOK_STEP_FAILED (expression), VALIDATION_FAILED for more than a case holds
 */
export const caseWritesOf = ({ key, case_writes }: PlaybookStep, root: unknown): Record<string, unknown> =>
  evaluateMapping(case_writes, root, {
    bytes: FIELDS_KIB * 1024,
    tooLarge: fieldsTooBig,
    failed: (name, { message }) => {
      const field = `case_writes.${name}`
      return stepFailed(key, 'expression', `The expression of ${field} ${message}`, { field })
    },
  })

/** The outcome of an execution as text; null where it gives none. */
export function outcomeText(outcome: unknown, root: unknown): string | null {
  try {
    const value = outcome == null || typeof outcome === 'string' ? outcome : evaluate(outcome, root)
    if (value === null || value === undefined) return null
    return truncateChars(typeof value === 'string' ? value : JSON.stringify(value), MAX_OUTCOME)
  } catch (error) {
    if (!(error instanceof ExpressionError)) throw error
    return null
  }
}
